package lite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	bearerPrefix = "Bearer "
	// tokenLength is the largest length of a token. Those of kube-apiserver have about 1 kB.
	tokenLength = 16 << 10
)

// algorithms are the algorithms with which kube-apiserver signs tokens (pkg/serviceaccount/jwt.go of Kubernetes).
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// tokenClaims are the claims of a ServiceAccount's token (pkg/serviceaccount/claims.go of Kubernetes).
type tokenClaims struct {
	jwt.Claims

	Kubernetes struct {
		Namespace      string       `json:"namespace"`
		ServiceAccount tokenObject  `json:"serviceaccount"`
		Pod            tokenObject  `json:"pod"`
		Node           *tokenObject `json:"node"`
	} `json:"kubernetes.io"`
}

// tokenObject is a token's reference to an object.
type tokenObject struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// account returns the ServiceAccount as NAMESPACE/NAME.
func (c tokenClaims) account() string {
	return c.Kubernetes.Namespace + "/" + c.Kubernetes.ServiceAccount.Name
}

// parseToken reads a token without verifying it.
func parseToken(bearer string) (*jwt.JSONWebToken, tokenClaims, error) {
	var said tokenClaims
	if len(bearer) > tokenLength {
		return nil, said, errors.New("it is too long")
	}
	parsed, err := jwt.ParseSigned(bearer, algorithms)
	if err != nil {
		return nil, said, err
	}
	return parsed, said, parsed.UnsafeClaimsWithoutVerification(&said)
}

// signingKeys returns the cluster's keys with the key ID of a token.
func (s *Store) signingKeys(parsed *jwt.JSONWebToken) []jose.JSONWebKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(parsed.Headers) != 1 || parsed.Headers[0].KeyID == "" {
		return nil
	}
	return s.keys.Key(parsed.Headers[0].KeyID)
}

// authenticate returns the account of a token. The error is why the token is not accepted here.
//
// A token is accepted if a key of the cluster signed it for the API server and an allowed account, it has not expired,
// and it is bound to a pod of this node that is not gone. Issuer, audience and the account's UID must be those of the
// token that kube-apiserver has given this node for the same account. Answers do not depend on which of the account's
// pods asks, because rights in the cluster do not either.
func (s *Store) authenticate(bearer string) (account string, err error) {
	parsed, _, err := parseToken(bearer)
	if err != nil {
		return "", err
	}
	var said tokenClaims
	keys := s.signingKeys(parsed)
	if len(keys) == 0 {
		return "", errors.New("no key of the cluster that is known here signed it")
	}
	if !slices.ContainsFunc(keys, func(k jose.JSONWebKey) bool { return parsed.Claims(k.Key, &said) == nil }) {
		return "", errors.New("its signature is wrong")
	}
	account = said.account()
	of := said.Kubernetes
	if !s.accounts[account] || said.Subject != "system:serviceaccount:"+of.Namespace+":"+of.ServiceAccount.Name {
		return "", fmt.Errorf("%s is not in --allow-service-accounts", said.Subject)
	}
	kept, err := accountTokens{s, account}.Token()
	if err != nil {
		return "", err
	}
	_, own, err := parseToken(kept.AccessToken)
	if err != nil || own.Issuer == "" || len(own.Audience) == 0 {
		return "", errors.New("the token of this node for the same account cannot be read")
	}
	now, pod := s.now(), s.findObject(types.NamespacedName{Namespace: of.Namespace, Name: of.Pod.Name}, pods)
	// kube-apiserver has signed it, so it has been valid. A clock that is behind must not make it invalid.
	if err := said.ValidateWithLeeway(jwt.Expected{Issuer: own.Issuer, AnyAudience: own.Audience, Time: now},
		maxContactPrecision); err != nil {
		return "", err
	}
	switch {
	case said.Expiry == nil || !now.Before(said.Expiry.Time()):
		return "", jwt.ErrExpired
	case of.ServiceAccount.UID != own.Kubernetes.ServiceAccount.UID:
		return "", errors.New("the ServiceAccount has been deleted and recreated since")
	case of.Node != nil && of.Node.Name != s.node, pod == nil || pod.UID != string(of.Pod.UID):
		return "", errors.New("it is not bound to a pod of this node")
	}
	return account, nil
}

// useKeys starts to use the cluster's keys, a JSON Web Key Set. The caller holds the lock.
func (s *Store) useKeys(encoded []byte) error {
	var keys jose.JSONWebKeySet
	if err := json.Unmarshal(encoded, &keys); err != nil {
		return err
	}
	keys.Keys = slices.DeleteFunc(keys.Keys, func(k jose.JSONWebKey) bool { return !k.Valid() || !k.IsPublic() })
	if len(keys.Keys) == 0 {
		return errors.New("it has no public key")
	}
	s.keys = keys
	return nil
}

// refreshKeys reads the cluster's keys from time to time, with the credentials of any account. Every ServiceAccount may
// read them (the ClusterRole system:service-account-issuer-discovery), but the node may not.
func (s *Store) refreshKeys(ctx context.Context, asAny rest.Interface) error {
	s.mu.Lock()
	fresh := time.Since(s.keysAt) < refetchInterval
	s.mu.Unlock()
	if fresh {
		return nil
	}
	encoded, err := asAny.Get().Timeout(tokenTimeout).MaxRetries(0).AbsPath("/openid/v1/jwks").DoRaw(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.useKeys(encoded); err != nil {
		return err
	}
	if s.keysAt = time.Now(); string(s.values[keyKeys]) != string(encoded) {
		s.recordValue(keyKeys, encoded)
	}
	return nil
}
