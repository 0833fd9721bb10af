package lite

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// tokenTimeout is how long a request for a token may take, tokenLimit how large an answer may be.
const (
	tokenTimeout = 10 * time.Second
	tokenLimit   = 1 << 20
)

// renewTokens fetches the tokens that there are none of, and those of whose life half is over.
func (f *follower) renewTokens(ctx context.Context, wanted needs) {
	for request := range wanted.tokens {
		kept, ok := f.store.token(request)
		if ok && time.Now().Before(kept.Issued.Add(kept.Expiration.Sub(kept.Issued)/2)) {
			continue
		}
		fetched, err := f.fetchToken(ctx, request)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot get a token for a pod, trying again",
				"namespace", request.Namespace, "pod", request.Pod, "err", err)
			continue
		}
		f.store.putToken(request, fetched)
	}
}

// object is the request as the kubelet sends it.
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

// requestOf reads a request that came for a ServiceAccount. ok is false for one that no volume makes.
func requestOf(account types.NamespacedName, o *authenticationv1.TokenRequest) (r tokenRequest, ok bool) {
	bound := o.Spec.BoundObjectRef
	if bound == nil || bound.Kind != "Pod" || bound.APIVersion != "v1" || len(o.Spec.Audiences) > 1 {
		return tokenRequest{}, false
	}
	r = tokenRequest{Namespace: account.Namespace, ServiceAccount: account.Name, Pod: bound.Name, PodUID: bound.UID,
		ExpirationSeconds: 3600}
	if o.Spec.ExpirationSeconds != nil {
		r.ExpirationSeconds = *o.Spec.ExpirationSeconds
	}
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
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	where := fmt.Sprintf("%s/api/v1/namespaces/%s/serviceaccounts/%s/token", strings.TrimSuffix(f.server, "/"),
		url.PathEscape(request.Namespace), url.PathEscape(request.ServiceAccount))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, where, bytes.NewReader(body))
	if err != nil {
		return token{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	issued := time.Now()
	response, err := f.client.Do(r)
	if err != nil {
		return token{}, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, tokenLimit))
	if err != nil {
		return token{}, err
	}
	if response.StatusCode != http.StatusCreated {
		var status metav1.Status
		_ = json.Unmarshal(answer, &status) // without a message the code has to do
		return token{}, fmt.Errorf("%s: %s", response.Status, status.Message)
	}
	var granted authenticationv1.TokenRequest
	if err := json.Unmarshal(answer, &granted); err != nil {
		return token{}, err
	}
	until, err := expiry(granted.Status.Token)
	return token{Token: granted.Status.Token, Expiration: granted.Status.ExpirationTimestamp.Time, Until: until,
		Issued: issued}, err
}

// errNoToken is the error for a token that does not say when it expires.
var errNoToken = errors.New("the token is not a JSON web token with an expiry")

// expiry reads when a token expires by itself (RFC 7519, 4.1.4). It comes from kube-apiserver, so nothing is verified.
func expiry(jwt string) (time.Time, error) {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return time.Time{}, errNoToken
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, errNoToken
	}
	var expires struct {
		Exp int64 `json:"exp"`
	}
	if err := json.Unmarshal(claims, &expires); err != nil || expires.Exp == 0 {
		return time.Time{}, errNoToken
	}
	return time.Unix(expires.Exp, 0), nil
}
