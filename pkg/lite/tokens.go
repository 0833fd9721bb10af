package lite

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// tokenTimeout is how long a request for a token may take, and tokenLimit how large a request of the kubelet may be.
const (
	tokenTimeout = 10 * time.Second
	tokenLimit   = 1 << 20
)

// renewToken fetches a token if it is missing or due.
func (f *follower) renewToken(ctx context.Context, request tokenRequest) error {
	kept, ok := f.store.token(request)
	if ok && !kept.isDue() {
		return nil
	}
	granted, err := f.fetchToken(ctx, request)
	if err != nil {
		return err
	}
	f.store.putToken(request, granted)
	if group := f.groups[request.account()]; !ok && group != nil {
		group.Retry() // the scopes of the account may have waited for it
		f.groups[byName].Retry()
	}
	return nil
}

// object returns the request in the form in which the kubelet sends it.
func (r tokenRequest) object() *authenticationv1.TokenRequest {
	o := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &r.ExpirationSeconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Pod", Name: r.Pod, UID: r.PodUID,
			},
		},
	}
	if r.Audience != "" {
		o.Spec.Audiences = []string{r.Audience}
	}
	return o
}

// requestOf reads a request for a token of a ServiceAccount. ok is false for one that no volume makes.
func requestOf(account types.NamespacedName, o *authenticationv1.TokenRequest) (r tokenRequest, ok bool) {
	bound := o.Spec.BoundObjectRef
	if bound == nil || bound.Kind != "Pod" || bound.APIVersion != "v1" || len(o.Spec.Audiences) > 1 {
		return tokenRequest{}, false
	}
	r = tokenRequest{Namespace: account.Namespace, ServiceAccount: account.Name, Pod: bound.Name, PodUID: bound.UID,
		ExpirationSeconds: ptr.Deref(o.Spec.ExpirationSeconds, defaultExpiration)}
	if len(o.Spec.Audiences) == 1 {
		r.Audience = o.Spec.Audiences[0]
	}
	return r, true
}

// fetchToken asks kube-apiserver.
func (f *follower) fetchToken(ctx context.Context, request tokenRequest) (token, error) {
	body, err := json.Marshal(request.object())
	if err != nil {
		return token{}, err
	}
	began := time.Now()
	answer, err := f.api.Post().Timeout(tokenTimeout).MaxRetries(0).Body(body).
		AbsPath("/api/v1/namespaces", request.Namespace, "serviceaccounts", request.ServiceAccount, "token").DoRaw(ctx)
	if err != nil {
		return token{}, err
	}
	var granted authenticationv1.TokenRequest
	if err := json.Unmarshal(answer, &granted); err != nil {
		return token{}, err
	}
	// When it was issued and when it expires by itself is read from the token (RFC 7519, 4.1). It comes from
	// kube-apiserver, so nothing is verified.
	_, said, err := parseToken(granted.Status.Token)
	if err != nil || said.Expiry == nil || said.IssuedAt == nil {
		return token{}, errors.New("the token is not a JSON web token with the times of its issue and expiry")
	}
	return token{Token: granted.Status.Token, Expiration: granted.Status.ExpirationTimestamp.Time,
		Until: said.Expiry.Time(), Issued: said.IssuedAt.Time(), fetched: began}, nil
}
