package lite

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/program/health"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// issuer signs tokens as kube-apiserver does.
type issuer struct {
	key *ecdsa.PrivateKey
	id  string
}

const (
	issuerURL = "https://kubernetes.default.svc"
	dnsName   = "kube-system/coredns"
)

func newIssuer(t *testing.T) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{key, "key-1"}
}

// published are its public keys, with some that nobody may be believed with.
func (i issuer) published() jose.JSONWebKeySet {
	return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: i.key.Public(), KeyID: i.id, Algorithm: string(jose.ES256), Use: "sig"},
		{Key: []byte("a shared secret, which has no place here"), KeyID: "secret", Algorithm: string(jose.HS256)},
	}}
}

// sign signs claims with any key.
func sign(algorithm jose.SignatureAlgorithm, key any, id string, said any) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(said).Serialize()
}

// ofPod are the claims of a pod's token.
func ofPod(account, pod string, uid types.UID, expiry time.Time) tokenClaims {
	namespace, name, _ := strings.Cut(account, "/")
	var said tokenClaims
	said.Issuer, said.Audience, said.Subject = issuerURL, jwt.Audience{issuerURL},
		"system:serviceaccount:"+namespace+":"+name
	said.Expiry, said.IssuedAt = jwt.NewNumericDate(expiry), jwt.NewNumericDate(time.Now())
	said.NotBefore = said.IssuedAt
	said.Kubernetes.Namespace = namespace
	said.Kubernetes.ServiceAccount = tokenObject{name, types.UID("of-" + name)}
	said.Kubernetes.Pod = tokenObject{pod, uid}
	said.Kubernetes.Node = &tokenObject{"node0", "n0"}
	return said
}

// grant answers a TokenRequest.
func (i issuer) grant(r *http.Request, expiry time.Time) (string, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	request := &authenticationv1.TokenRequest{}
	if err := decodeBody(body, request); err != nil {
		return "", err
	}
	parts := strings.Split(r.URL.Path, "/")
	said := ofPod(parts[4]+"/"+parts[6], request.Spec.BoundObjectRef.Name, request.Spec.BoundObjectRef.UID, expiry)
	return sign(jose.ES256, i.key, i.id, said)
}

// podOf is a pod with a token.
func podOf(account string, uid types.UID) corev1.Pod {
	namespace, name, _ := strings.Cut(account, "/")
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, ResourceVersion: "3"},
		Spec: corev1.PodSpec{NodeName: "node0", ServiceAccountName: name, Volumes: []corev1.Volume{
			{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}}}}}
}

// newAccountsFixture has pods of CoreDNS and of the till, which are allowed, and of a guest, who is not.
func newAccountsFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.config.Accounts = []types.NamespacedName{{Namespace: "kube-system", Name: "coredns"},
		{Namespace: "shop", Name: "till"}}
	f.cloud.lists["/api/v1/pods"] = list("PodList", "v1", podOf(dnsName, "u-dns"), podOf("shop/till", "u-till"),
		podOf("shop/guest", "u-guest"))
	f.cloud.lists["/api/v1/namespaces"] = list("NamespaceList", "v1",
		corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", ResourceVersion: "1"}})
	f.cloud.lists["/api/v1/nodes/node0"] = corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node0", ResourceVersion: "2"}}
	f.cloud.lists["/apis/discovery.k8s.io/v1/endpointslices"] = list("EndpointSliceList", "discovery.k8s.io/v1",
		discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till-1",
			ResourceVersion: "4"}})
	return f
}

// tokenOf is a token as the pod of an account has it.
func (f *fixture) tokenOf(account string) string {
	f.Helper()
	_, name, _ := strings.Cut(account, "/")
	uid := types.UID("u-" + strings.TrimPrefix(name, "core"))
	token, err := sign(jose.ES256, f.cloud.issuer.key, f.cloud.issuer.id,
		ofPod(account, name, uid, time.Now().Add(time.Hour)))
	f.must(err)
	return token
}

func (f *fixture) withToken(token string) *rest.Config {
	f.Helper()
	config := rest.AnonymousClientConfig(f.kubelet())
	config.CertFile, config.KeyFile = "", ""
	config.BearerToken = token
	return config
}

func (f *fixture) client(token string) kubernetes.Interface {
	f.Helper()
	return f.clientFor(f.withToken(token))
}

// ask sends a GET with a token, and returns the code and the answer.
func (f *fixture) ask(token, path string) (int, string) {
	f.Helper()
	code, body, err := f.get(f.withToken(token), path)
	f.must(err)
	return code, body
}

// kept waits until what accounts have read is followed, and on the disk.
func (f *fixture) kept(scopes int) {
	f.Helper()
	store := f.server.store
	patience.Until(f.T, "what accounts read is kept", func() error {
		store.signalNeeds()
		store.mu.Lock()
		defer store.mu.Unlock()
		followed := 0
		for in, set := range store.sets {
			if in.kind.account != "" && set.version > 0 {
				followed++
			}
		}
		if followed != scopes || len(store.keys.Keys) != 1 {
			return fmt.Errorf("%d scopes and %d keys are", followed, len(store.keys.Keys))
		}
		return nil
	})
	f.server.commit(klog.Background(), hourlyBytes)
}

// readAll lets CoreDNS and the till read what each of them reads, while the cloud is there.
func (f *fixture) readAll() {
	f.Helper()
	for account, paths := range map[string][]string{
		dnsName: {"/api/v1/services?limit=500", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/namespaces",
			"/api/v1/namespaces/shop/secrets"},
		"shop/till":  {"/api/v1/nodes/node0", "/api/v1/pods?fieldSelector=metadata.namespace%3Dshop"},
		"shop/guest": {"/api/v1/services"},
	} {
		for _, path := range paths {
			if code, body := f.ask(f.tokenOf(account), path); code != http.StatusOK {
				f.Fatalf("%s, %s: %d %s", account, path, code, body)
			}
		}
	}
	f.kept(5)
}

// rewritten has the store written anew, as it is when it has grown.
func (f *fixture) rewritten() {
	f.Helper()
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.must(f.server.disk.Rewrite())
}

// TestAccounts: after a loss of power, without the cloud, accounts get what each of them read, and nothing else.
func TestAccounts(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	f.rewritten()
	f.rebootWithoutTheCloud()

	f.server.store.mu.Lock()
	age := time.Since(f.server.store.lastContact)
	f.server.store.mu.Unlock()
	if age < 0 || age > time.Minute {
		t.Errorf("kube-apiserver was last heard %s ago", age)
	}
	if code, body := f.ask(f.tokenOf(dnsName), "/api/v1/services"); code != http.StatusOK {
		t.Fatalf("got %d %s", code, body)
	}
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		config := f.withToken(f.tokenOf(dnsName))
		config.ContentType = contentType
		client := f.clientFor(config)
		for resource, from := range map[string]struct {
			client  rest.Interface
			example runtime.Object
			want    int
		}{
			"services":       {client.CoreV1().RESTClient(), &corev1.Service{}, 2},
			"namespaces":     {client.CoreV1().RESTClient(), &corev1.Namespace{}, 1},
			"endpointslices": {client.DiscoveryV1().RESTClient(), &discoveryv1.EndpointSlice{}, 1},
		} {
			informer := f.informed(cache.NewListWatchFromClient(from.client, resource, "", fields.Everything()),
				from.example)
			if all := informer.GetStore().List(); len(all) != from.want {
				t.Errorf("%s: the informer has %v", resource, all)
			}
			if informer.LastSyncResourceVersion() != version5 {
				t.Errorf("%s: the version is %s", resource, informer.LastSyncResourceVersion())
			}
		}
	}
	till := f.client(f.tokenOf("shop/till"))
	if node, err := till.CoreV1().Nodes().Get(t.Context(), "node0", metav1.GetOptions{}); err != nil ||
		node.Name != "node0" {
		t.Errorf("got %v, %v", node, err)
	}
	dns, guest := f.tokenOf(dnsName), f.tokenOf("shop/guest")
	for path, token := range map[string]string{
		"/api/v1/services":                                           f.tokenOf("shop/till"),
		"/api/v1/nodes":                                              f.tokenOf("shop/till"),
		"/api/v1/nodes/node1":                                        f.tokenOf("shop/till"),
		"/api/v1/pods":                                               f.tokenOf("shop/till"),
		"/api/v1/nodes/node0":                                        dns,
		"/api/v1/namespaces/shop/secrets":                            dns,
		"/api/v1/namespaces/shop/secrets/password":                   dns,
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode0":           dns,
		"/api/v1/watch/services/till":                                dns,
		"/api/v1/watch/namespaces/shop/services/till":                dns,
		"/api/v1/namespaces/other":                                   dns,
		"/api/v1/namespaces/shop/services/other":                     dns,
		"/api/v1/services?labelSelector=a%3Db":                       dns,
		"/apis/storage.k8s.io/v1/csidrivers":                         dns,
		"/apis/superedge.io/v1/servicegrids":                         dns,
		"/openid/v1/jwks":                                            dns,
		"/api":                                                       dns,
		"/api/v1/namespaces/shop/services":                           guest,
		"/apis/discovery.k8s.io/v1/endpointslices":                   guest,
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/x": guest,
	} {
		if code, body := f.ask(token, path); code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if code, body := f.ask(dns, "/api/v1/namespaces/shop/services/till"); code != http.StatusOK {
		t.Errorf("an object of a list that was read: %d %s", code, body)
	}
	client := f.client(dns)
	_, write := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{}, metav1.CreateOptions{})
	_, granted := f.tokenFor(client, "u-till")
	if !apierrors.IsServiceUnavailable(write) || !apierrors.IsServiceUnavailable(granted) {
		t.Errorf("a write: %v; the kubelet's token for a pod: %v", write, granted)
	}
}

// strangers are tokens that are not answered without the cloud, whoever shows them.
func (f *fixture) strangers() map[string]string {
	f.Helper()
	own := f.cloud.issuer
	at := func(in time.Duration) *jwt.NumericDate { return jwt.NewNumericDate(time.Now().Add(in)) }
	changed := func(change func(*tokenClaims)) string {
		said := ofPod(dnsName, "coredns", "u-dns", time.Now().Add(time.Hour))
		change(&said)
		token, err := sign(jose.ES256, own.key, own.id, said)
		f.must(err)
		return token
	}
	signed := func(algorithm jose.SignatureAlgorithm, key any, id string) string {
		token, err := sign(algorithm, key, id, ofPod(dnsName, "coredns", "u-dns", time.Now().Add(time.Hour)))
		f.must(err)
		return token
	}
	good := strings.Split(f.tokenOf(dnsName), ".")
	till := strings.Split(f.tokenOf("shop/till"), ".")
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"` + own.id + `"}`))
	public, err := x509.MarshalPKIXPublicKey(own.key.Public())
	f.must(err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	f.must(err)
	other := newIssuer(f.T)
	return map[string]string{
		"expired":             changed(func(c *tokenClaims) { c.Expiry = at(-time.Second) }),
		"without an expiry":   changed(func(c *tokenClaims) { c.Expiry = nil }),
		"not valid yet":       changed(func(c *tokenClaims) { c.NotBefore = at(time.Hour) }),
		"of another issuer":   changed(func(c *tokenClaims) { c.Issuer = "https://other" }),
		"without an issuer":   changed(func(c *tokenClaims) { c.Issuer = "" }),
		"for another":         changed(func(c *tokenClaims) { c.Audience = jwt.Audience{"vault"} }),
		"for nobody":          changed(func(c *tokenClaims) { c.Audience = nil }),
		"of another subject":  changed(func(c *tokenClaims) { c.Subject = "system:serviceaccount:shop:guest" }),
		"of a new account":    changed(func(c *tokenClaims) { c.Kubernetes.ServiceAccount.UID = "new" }),
		"of no pod":           changed(func(c *tokenClaims) { c.Kubernetes.Pod = tokenObject{} }),
		"of another pod":      changed(func(c *tokenClaims) { c.Kubernetes.Pod.UID = "u-till" }),
		"of an unknown pod":   changed(func(c *tokenClaims) { c.Kubernetes.Pod = tokenObject{"coredns-2", "u-dns"} }),
		"on another node":     changed(func(c *tokenClaims) { c.Kubernetes.Node.Name = "node1" }),
		"of another cluster":  signed(jose.ES256, other.key, own.id),
		"with an unknown key": signed(jose.ES256, own.key, "key-2"),
		"without a key's id":  signed(jose.ES256, own.key, ""),
		"HS256, public key":   signed(jose.HS256, public, own.id),
		"HS256, shared":       signed(jose.HS256, []byte("a shared secret, which has no place here"), "secret"),
		"of another curve":    signed(jose.ES384, p384, own.id),
		"alg none":            header + "." + good[1] + ".",
		"alg none, signed":    header + "." + good[1] + "." + good[2],
		"without a signature": good[0] + "." + good[1] + ".",
		"another's signature": good[0] + "." + good[1] + "." + till[2],
		"a part":              good[0] + "." + good[1],
		"a word":              "x",
		"nothing":             "",
		"huge":                good[0] + "." + good[1] + "." + strings.Repeat("A", tokenLength),
		"JSON": fmt.Sprintf(`{"payload":%q,"signatures":[{"protected":%q,"signature":%q}]}`, good[1], good[0],
			good[2]),
		"of a guest": f.tokenOf("shop/guest"),
	}
}

// TestStrangersWithTokens get nothing without the cloud.
func TestStrangersWithTokens(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	strangers := f.strangers()
	f.away()
	paths := []string{"/api/v1/services", "/api/v1/namespaces", "/api/v1/nodes/node0",
		"/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dpassword",
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode0"}
	for what, token := range strangers {
		for _, path := range paths {
			code, body := f.ask(token, path)
			if code != http.StatusServiceUnavailable && (code != http.StatusUnauthorized || token != "") {
				t.Errorf("%s: %s: %d %s", what, path, code, body)
			}
		}
	}
	if code, _ := f.ask(f.tokenOf(dnsName), paths[0]); code != http.StatusOK {
		t.Errorf("CoreDNS: %d", code)
	}
	if account, err := f.server.store.authenticate(strangers["of a guest"]); err == nil {
		t.Errorf("a guest is taken for %s", account)
	}
	// A clock that is behind makes nothing invalid, and nothing valid.
	late := f.tokenOf(dnsName)
	soon, err := sign(jose.ES256, f.cloud.issuer.key, f.cloud.issuer.id,
		ofPod(dnsName, "coredns", "u-dns", time.Now().Add(time.Minute)))
	f.must(err)
	store := f.server.store
	f.setLastContact(time.Now().Add(2 * time.Minute))
	for token, want := range map[string]int{late: http.StatusOK, soon: http.StatusServiceUnavailable} {
		if code, body := f.ask(token, paths[0]); code != want {
			t.Errorf("with a clock that is behind: %d %s", code, body)
		}
	}
	// A pod that is gone has no token any more.
	store.setRemoval("u-dns", removal{at: time.Now(), outcome: confirmed})
	if code, body := f.ask(late, paths[0]); code != http.StatusServiceUnavailable {
		t.Errorf("of a pod that is gone: %d %s", code, body)
	}
	// Nor is it in what others are answered.
	store.setRemoval("u-guest", removal{at: time.Now(), outcome: confirmed})
	code, body := f.ask(f.tokenOf("shop/till"), "/api/v1/pods?fieldSelector=metadata.namespace%3Dshop")
	if code != http.StatusOK || strings.Contains(body, "guest") {
		t.Errorf("pods without those that are gone: %d %s", code, body)
	}
}

// TestTokenBeforeTheClock: kube-apiserver has signed a token some minutes after it was last heard of.
func TestTokenBeforeTheClock(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	said := ofPod(dnsName, "coredns", "u-dns", time.Now().Add(time.Hour))
	said.IssuedAt = jwt.NewNumericDate(time.Now().Add(maxContactPrecision - time.Minute))
	said.NotBefore = said.IssuedAt
	token, err := sign(jose.ES256, f.cloud.issuer.key, f.cloud.issuer.id, said)
	f.must(err)
	if account, err := f.server.store.authenticate(token); err != nil || account != dnsName {
		t.Errorf("got %q, %v", account, err)
	}
}

// TestAccountsAreBounded: thousands of questions, and large ones, cost no more than some.
func TestAccountsAreBounded(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	store := f.server.store
	r := func(query string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x/api/v1/services?"+query, nil)
		f.must(err)
		return r
	}
	for i := range 5000 {
		in, ok := store.scopeOf(r(fmt.Sprintf("fieldSelector=metadata.name%%3Ds%d", i)), dnsName)
		if !ok {
			t.Fatal("it is no scope")
		}
		store.noteScope(in, time.Now())
	}
	var report health.Report
	if f.server.reportAccounts(&report); !strings.Contains(report.Summary(), dnsName+" reads 64 different lists") ||
		strings.Contains(report.Summary(), "shop/till") {
		t.Errorf("who reads too much is not named: %s", report.Summary())
	}
	of := map[string]int{}
	for in := range store.scopes() {
		of[in.kind.account]++
	}
	if of[dnsName] != accountScopes || of["shop/till"] != 2 {
		t.Errorf("there are %v", of)
	}
	if in, ok := store.scopeOf(r("fieldSelector=metadata.name%3D"+strings.Repeat("x", scopeLength)), dnsName); ok {
		t.Errorf("a scope with a name of %d bytes is kept", len(in.fields))
	}
	for _, other := range []string{"labelSelector=a%3Db", "fieldSelector=a%3D%3D%3Db%2C%3D"} {
		if in, ok := store.scopeOf(r(other), dnsName); ok {
			t.Errorf("%s is kept as %v", other, in)
		}
	}
}

// TestBytesOfAccountsAreBounded, of one and of all, with their metadata; the largest are forgotten.
func TestBytesOfAccountsAreBounded(t *testing.T) {
	for readers, most := range map[int]int{1: accountBytes, 6: accountsBytes} {
		t.Run(fmt.Sprint(readers), func(t *testing.T) { testBytesOfAccounts(t, readers, most) })
	}
}

func testBytesOfAccounts(t *testing.T, readers, all int) {
	t.Helper()
	s, wanted := newStore("node0"), needs{}
	var accounts []types.NamespacedName
	for i := range readers {
		account := types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("reader-", i)}
		accounts = append(accounts, account)
		wanted[tokenRequest{Namespace: account.Namespace, ServiceAccount: account.Name}] = true
	}
	s.allow(accounts)
	const small, large = 10 << 10, 3 << 20
	for _, account := range accounts {
		for i := range 10 {
			size := large
			if i == 0 {
				size = small
			}
			in := objectScope(s.kinds[(&kind{resource: configMaps.resource, account: account.String()}).key()], "shop",
				fmt.Sprint("large-", i))
			sink{s, in}.ChangeAt("7", func() {
				sink{s, in}.Replace([]*wire.Object{wiretest.Object(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: in.objectName(), ResourceVersion: "7",
					Annotations: map[string]string{"large": strings.Repeat("x", size)}}})})
			})
		}
	}
	f := &follower{store: s, sources: map[any]*follow.Source{}}
	f.addAccounts(t.Context(), wanted, s.scopes())
	bytes, count := map[string]int{}, 0
	for id := range wanted {
		in, ok := id.(scope)
		if !ok {
			continue
		}
		size := s.sets[in].size()
		bytes[in.kind.account] += size
		bytes["all"] += size
		if size < large {
			count++
		}
	}
	if count != len(accounts) {
		t.Errorf("%d of %d small objects are kept", count, len(accounts))
	}
	for account, size := range bytes {
		if account != "all" && size > accountBytes || size > all {
			t.Errorf("%s has %d bytes", account, size)
		}
	}
	if bytes["all"] < all-large {
		t.Errorf("%d bytes are kept of all: what may be kept is not made use of", bytes["all"])
	}
	for in := range s.scopes() {
		if s.noteScope(in, time.Now()); wanted[in] != (s.heavy[in].size == 0) {
			t.Errorf("%v is kept, or said again", in)
		}
	}
}

// TestTooLargeForAWhile: what an account reads is kept again when it is small again, listed rarely while it is too
// large, and named while it is not kept.
func TestTooLargeForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore("node0")
		s.allow([]types.NamespacedName{{Namespace: "kube-system", Name: "coredns"}})
		f := &follower{store: s, sources: map[any]*follow.Source{}}
		in := scope{kind: s.kinds[(&kind{resource: services.resource, account: dnsName}).key()]}
		token := tokenRequest{Namespace: "kube-system", ServiceAccount: "coredns"}
		// pass reports whether the scope is followed, as follower.syncSources does.
		pass := func() bool {
			wanted := needs{token: true}
			f.addAccounts(t.Context(), wanted, s.scopes())
			if !wanted[in] {
				s.dropSet(in)
			}
			return wanted[in]
		}
		list := func(size int) {
			sink{s, in}.ChangeAt("7", func() {
				sink{s, in}.Replace([]*wire.Object{wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
					Namespace: "shop", Name: "till", Annotations: map[string]string{"a": strings.Repeat("x", size)}}})})
			})
		}
		lists := 0
		for second := range 7200 {
			s.noteScope(in, time.Now())
			if pass() {
				lists++
				list(accountBytes + 1)
			}
			if pass() || s.covering(in) != nil {
				t.Fatalf("after %d s it is kept", second)
			}
			time.Sleep(time.Second)
		}
		if lists > 10 {
			t.Errorf("in two hours it was listed %d times", lists)
		}
		server := &Server{store: s}
		s.keys.Keys = make([]jose.JSONWebKey, 1)
		var report health.Report
		server.reportAccounts(&report)
		if text := report.Summary(); !strings.Contains(text, "services of kube-system/coredns (16.0 MiB)") {
			t.Errorf("it is not named: %s", text)
		}
		time.Sleep(time.Hour)
		if s.noteScope(in, time.Now()); !pass() {
			t.Fatal("it is not listed again")
		}
		if list(10); !pass() || s.covering(in) == nil {
			t.Error("it is small again, and not kept")
		}
		if list(accountBytes + 1); pass() {
			t.Error("it is too large again, and kept")
		}
	})
}

// TestLeastRecentlyReadLeave: of more scopes than are kept, those leave that an account read longest ago, and none
// that it watches or has read a moment ago.
func TestLeastRecentlyReadLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore("node0")
		s.allow([]types.NamespacedName{{Namespace: "kube-system", Name: "coredns"}})
		f := &follower{store: s, sources: map[any]*follow.Source{}}
		wanted := func() needs {
			token := tokenRequest{Namespace: "kube-system", ServiceAccount: "coredns"}
			all := needs{token: true}
			f.addAccounts(t.Context(), all, s.scopes())
			delete(all, token)
			return all
		}
		read := func(path string) scope {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://x"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			in, _ := s.scopeOf(r, dnsName)
			s.noteScope(in, readUntil(r))
			return in
		}
		watched := read("/api/v1/services?watch=true&timeoutSeconds=500")
		for i := range accountScopes - 1 {
			read(fmt.Sprintf("/api/v1/nodes/early-%d", i))
		}
		refused := read("/api/v1/nodes/refused")
		time.Sleep(2 * readLately)
		late := read("/api/v1/nodes/late")
		if all := wanted(); !all[watched] || !all[late] || all[refused] || len(all) != accountScopes {
			t.Errorf("%d are kept: the watched one %v, the late one %v, the refused one %v", len(all), all[watched],
				all[late], all[refused])
		}
	})
}

// forbid has an account refused, or not any more.
func (f *fixture) forbid(what string, refused bool) {
	f.cloud.mu.Lock()
	defer f.cloud.mu.Unlock()
	f.cloud.forbidden[what], f.cloud.refusals = refused, 0
}

// refusedOnce waits for a refusal, and until what follows from it is on the disk.
func (f *fixture) refusedOnce() {
	f.Helper()
	patience.Until(f.T, "an account is refused", func() error {
		f.cloud.mu.Lock()
		defer f.cloud.mu.Unlock()
		if f.cloud.refusals == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	f.server.store.signalNeeds()
	time.Sleep(100 * time.Millisecond) // nothing is to follow
	f.server.commit(klog.Background(), hourlyBytes)
}

// TestAccountsThatMayNotReadAnyMore are answered nothing.
func TestAccountsThatMayNotReadAnyMore(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	f.stop()

	// One account is not in the flag any more; its objects are removed from the disk.
	f.config.Accounts = f.config.Accounts[1:]
	f.start()
	f.server.commit(klog.Background(), hourlyBytes)
	f.stop()
	state, problems := store.Read(filepath.Join(f.config.Dir, storeDir), nil)
	f.must(errors.Join(problems...))
	for key := range state {
		if strings.Contains(key, "by "+dnsName) {
			t.Errorf("the store has %q", key)
		}
	}
	for i, what := range []string{"shop/till /api/v1/pods", "shop/till /api/v1/nodes/node0"} {
		// A refusal of some seconds, as of a kube-apiserver that starts, takes nothing away.
		f.prepare = nil
		f.forbid(what, true)
		f.start()
		f.refusedOnce()
		f.stop()
		f.forbid(what, false)
		f.start()
		f.kept(2 - i)
		f.stop()
		f.prepare = func(s *Server) { s.follower.patience = 0 }
		f.forbid(what, true)
		f.start()
		f.kept(1 - i)
		path := strings.TrimPrefix(what, "shop/till ")
		if code, body := f.ask(f.tokenOf("shop/till"), path); code != http.StatusForbidden {
			t.Errorf("the account is answered %d %s", code, body)
		}
		f.kept(1 - i) // nothing is noted of what kube-apiserver refuses
		f.stop()
	}
}

// TestPlaces: one caller that holds many watches leaves places to others, and the kubelet needs none.
func TestPlaces(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.prepare = func(s *Server) { s.tokens = quota.New(3) }
	f.start()
	const path = "/api/v1/services"
	dns := f.tokenOf(dnsName)
	for range 2 {
		held, err := f.client(dns).CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
		f.must(err)
		defer held.Stop()
	}
	if code, body := f.ask(dns, path); code != http.StatusTooManyRequests {
		t.Errorf("the third request is answered %d %s", code, body)
	}
	if code, body := f.ask(f.tokenOf("shop/till"), path); code != http.StatusOK {
		t.Errorf("another caller is answered %d %s", code, body)
	}
	release, _ := f.server.tokens.Acquire("a third")
	defer release()
	_, err := f.clientFor(f.kubelet()).CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	f.must(err)
}

// TestPlacesOfMadeUpTokens: however many tokens a process makes up, it has the places of one caller.
func TestPlacesOfMadeUpTokens(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	answered, end := make(chan int, 10), make(chan struct{})
	defer close(end)
	f.prepare = func(s *Server) {
		s.callers, s.tokens = quota.New(4), quota.New(4)
		s.asCaller = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end })
	}
	f.start()
	for i := range cap(answered) {
		wg.Go(func() {
			code, _, err := f.get(f.withToken(fmt.Sprint("made up ", i)), "/api/v1/services")
			if err != nil {
				t.Error(err)
			}
			answered <- code
		})
	}
	for range cap(answered) - 2 {
		if code := <-answered; code != http.StatusTooManyRequests {
			t.Errorf("one more token is answered %d", code)
		}
	}
	if places := f.server.callers.Stats().Taken; places != 2 {
		t.Errorf("%d of 4 places are taken", places)
	}
	if release, ok := f.server.callers.Acquire(""); !ok {
		t.Error("callers from elsewhere have no places")
	} else {
		release()
	}
}

// TestReplacedObjectsAreForgotten: an account reads one object by name after the other, as a pod that reads itself.
func TestReplacedObjectsAreForgotten(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	for i := range 2 * accountScopes {
		path := fmt.Sprintf("/api/v1/namespaces/shop/pods/till-%d", i)
		f.cloud.mu.Lock()
		f.cloud.lists[path] = corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("till-%d", i), ResourceVersion: "6"}}
		delete(f.cloud.lists, fmt.Sprintf("/api/v1/namespaces/shop/pods/till-%d", i-1))
		f.cloud.mu.Unlock()
		if code, body := f.ask(f.tokenOf("shop/till"), path); code != http.StatusOK {
			t.Fatalf("%d %s", code, body)
		}
		patience.Until(t, "it is kept", func() error {
			if o := f.server.store.getObject(serve.RequestInfo{Version: "v1", Resource: "pods", Namespace: "shop",
				Name: fmt.Sprintf("till-%d", i)}, "shop/till"); o == nil {
				return errors.New("it is not")
			}
			return nil
		})
		f.server.follower.groups["shop/till"].Retry()
	}
}

// TestAccountsWithoutAPod of theirs on the node are forgotten.
func TestAccountsWithoutAPod(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	f.stop()
	f.cloud.says("/api/v1/pods", list("PodList", "v1", podOf("shop/till", "u-till")))
	f.start()
	f.kept(2)
	if account, err := f.server.store.authenticate(f.tokenOf(dnsName)); err == nil {
		t.Errorf("%s is still known", account)
	}
}

// TestNewKeysOfTheCluster are read when a token that kube-apiserver has accepted is signed with one, and the old ones
// do not count any more.
func TestNewKeysOfTheCluster(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.start()
	f.readAll()
	old := f.tokenOf(dnsName)
	next := newIssuer(t)
	next.id = "key-2"
	f.cloud.mu.Lock()
	f.cloud.issuer = next
	f.cloud.mu.Unlock()
	token := f.tokenOf(dnsName)
	if code, _ := f.ask(token, "/api/v1/services"); code != http.StatusOK {
		t.Fatalf("got %d", code)
	}
	f.server.follower.groups[byName].Retry()
	patience.Until(t, "the new key is known", func() error {
		_, err := f.server.store.authenticate(token)
		return err
	})
	if _, err := f.server.store.authenticate(old); err == nil {
		t.Error("the old key counts")
	}
	// Keys that cannot be used do not take the place of those that can.
	f.server.store.mu.Lock()
	defer f.server.store.mu.Unlock()
	for _, bad := range []string{"", "{}", `{"keys":[]}`, `{"keys":[{"kty":"oct","kid":"key-2","k":"c2VjcmV0"}]}`} {
		if err := f.server.store.useKeys([]byte(bad)); err == nil || len(f.server.store.keys.Key("key-2")) != 1 {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestFurtherAddress: pods are served there once there is a certificate, which may change; the kubelet does not wait.
func TestFurtherAddress(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	dir := t.TempDir()
	f.config.Further = Further{Address: strings.Replace(f.config.Address, "127.0.0.1", "127.0.0.2", 1),
		CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	f.start() // it waits until the kubelet is served
	f.readAll()
	trusting := func(ca *tlstest.Authority, token string) (int, error) {
		config := f.withToken(token)
		config.Host = "https://" + f.config.Further.Address
		config.CAFile, config.CAData, config.ServerName = "", ca.PEM, "127.0.0.1"
		code, _, err := f.get(config, "/api/v1/services")
		return code, err
	}
	// issue gives the address a certificate of a new CA.
	issue := func() *tlstest.Authority {
		ca := tlstest.NewAuthority(t)
		certificate, key := ca.IssueFiles(t, t.TempDir(), "pods")
		f.must(os.Rename(certificate, f.config.Further.CertFile))
		f.must(os.Rename(key, f.config.Further.KeyFile))
		return ca
	}
	for range 2 {
		ca := issue()
		patience.Until(t, "pods are served", func() error {
			code, err := trusting(ca, f.tokenOf(dnsName))
			if err == nil && code != http.StatusOK {
				t.Errorf("got %d", code)
			}
			return err
		})
		if code, err := trusting(ca, ""); err != nil || code != http.StatusUnauthorized {
			t.Errorf("nobody: %d, %v", code, err)
		}
		f.must(os.WriteFile(f.config.Further.CertFile, []byte("broken"), 0o600))
		if code, err := trusting(ca, f.tokenOf(dnsName)); err != nil || code != http.StatusOK {
			t.Errorf("while the file is broken: %d, %v", code, err)
		}
	}
	f.away()
	ca := issue()
	for account, want := range map[string]int{dnsName: http.StatusOK, "shop/guest": http.StatusServiceUnavailable} {
		if code, err := trusting(ca, f.tokenOf(account)); err != nil || code != want {
			t.Errorf("%s without the cloud: %d, %v", account, code, err)
		}
	}
}
