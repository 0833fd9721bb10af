package lite

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restwatch "k8s.io/client-go/rest/watch"
)

const (
	node    = "n1"
	issuer  = "https://kubernetes.default.svc.cluster.local"
	account = "agent"
	shop    = "shop"
)

// keys are the cluster's.
type keys struct {
	number              int
	ca                  *x509.Certificate
	caKey               *ecdsa.PrivateKey
	caPEM               []byte
	signer              *rsa.PrivateKey
	server              tls.Certificate
	kubelet, kubeletKey []byte
}

func newKeys(number int) *keys {
	k := &keys{number: number}
	var err error
	k.caKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	k.signer, err = rsa.GenerateKey(rand.Reader, 2048)
	must(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.caKey.Public(), k.caKey)
	must(err)
	k.ca, err = x509.ParseCertificate(der)
	must(err)
	k.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	certificate, key := k.issue(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	k.server, err = tls.X509KeyPair(certificate, key)
	must(err)
	k.kubelet, k.kubeletKey = k.issue(pkix.Name{CommonName: "system:node:" + node,
		Organization: []string{"system:nodes"}}, x509.ExtKeyUsageClientAuth)
	return k
}

func (k *keys) issue(subject pkix.Name, usage x509.ExtKeyUsage) (certificate, key []byte) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(23 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}}, k.ca, private.Public(), k.caKey)
	must(err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

func (k *keys) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(k.ca)
	return pool
}

// sign makes a token of claims.
func (k *keys) sign(claims map[string]any) string {
	body, err := json.Marshal(claims)
	must(err)
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"RS256","kid":"k1"}`)) + "." + encode(body)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, k.signer, crypto.SHA256, sum[:])
	must(err)
	return text + "." + encode(signature)
}

func (k *keys) jwks() string {
	return fmt.Sprintf(`{"keys":[{"use":"sig","kty":"RSA","kid":"k1","alg":"RS256","n":%q,"e":"AQAB"}]}`,
		base64.RawURLEncoding.EncodeToString(k.signer.N.Bytes()))
}

// answer is how the place where kube-apiserver should be answers, instead of kube-apiserver if body is set.
type answer struct {
	name              string
	code              int
	contentType, body string
	// gateway is set if it is not kube-apiserver that answers.
	gateway bool
}

func (a answer) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", a.contentType)
	if a.code == http.StatusFound {
		w.Header().Set("Location", "https://127.0.0.1:1/login")
	}
	w.WriteHeader(a.code)
	_, _ = io.WriteString(w, a.body)
}

func statusBody(code int, reason string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":%q,"code":%d}`,
		reason, code)
}

// statuses are kube-apiserver's own, for a while. gateways are others that answer in its place.
var (
	statuses = []answer{
		{"429", 429, "application/json", statusBody(429, "TooManyRequests"), false},
		{"500", 500, "application/json", statusBody(500, "InternalError"), false},
		{"503", 503, "application/json", statusBody(503, "ServiceUnavailable"), false},
		{"401", 401, "application/json", statusBody(401, "Unauthorized"), false},
		{"403", 403, "application/json", statusBody(403, "Forbidden"), false},
	}
	gateways = []answer{
		{"an HTML page with 200", 200, "text/html", "<html>welcome</html>", true},
		{"a plain 404", 404, "text/plain", "404 page not found\n", true},
		{"a login page", 302, "text/html", "<html>log in</html>", true},
		{"an error in JSON with 200", 200, "application/json", `{"error":"x"}`, true},
		{"an error in JSON with 404", 404, "application/json", `{"error":"x"}`, true},
		{"an error in JSON with 502", 502, "application/json", `{"error":"x"}`, true},
		{"a list of another kind", 200, "application/json",
			`{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":null}`, true},
	}
)

// verdict is what becomes of a pod's last DELETE.
type verdict struct {
	code    int // 409, 403, or 0
	applied bool
	lost    func()  // called instead of an answer
	page    *answer // what something else answers in kube-apiserver's place
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	mode := c.mode
	c.mu.Unlock()
	if mode.body != "" {
		mode.write(w)
		return
	}
	user := c.user(r)
	switch path := r.URL.Path; {
	case user == "":
		reply(w, r, 401, status(401, metav1.StatusReasonUnauthorized, "Unauthorized"))
	case path == "/openid/v1/jwks":
		w.Header().Set("Content-Type", "application/jwk-set+json")
		_, _ = io.WriteString(w, c.keys.jwks())
	case path == "/.well-known/openid-configuration":
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/openid/v1/jwks","response_types_supported":["id_token"],`+
			`"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["RS256"]}`, issuer, issuer)
	case path == "/readyz" || path == "/livez" || path == "/healthz":
		_, _ = io.WriteString(w, "ok")
	case path == "/version":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`)
	case path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
		reply(w, r, 201, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{
			UserInfo: authenticationv1.UserInfo{Username: user}}})
	default:
		c.serveResource(w, r, user)
	}
}

// user is the name of who asks.
func (c *cloud) user(r *http.Request) string {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, issued := c.tokens[token]; !issued {
			return ""
		}
		return "system:serviceaccount:" + shop + ":" + account
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	return ""
}

func (c *cloud) serveResource(w http.ResponseWriter, r *http.Request, user string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := 2 // api/v1
	if parts[0] == "apis" {
		skip = 3
	}
	var namespace, name, sub string
	if len(parts) > skip+2 && parts[skip] == "namespaces" {
		namespace, parts = parts[skip+1], parts[2:]
	}
	parts = append(parts, make([]string, 6)...)
	resource := parts[skip]
	name, sub = parts[skip+1], parts[skip+2]
	query := r.URL.Query()
	k := key{resource, namespace, name}
	if _, known := kinds[resource]; !known {
		if r.Method == http.MethodPost { // Events
			reply(w, r, 201, &corev1.Event{})
			return
		}
		reply(w, r, 404, status(404, metav1.StatusReasonNotFound, "the server could not find the requested resource"))
		return
	}
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	must(err)
	if one, ok := selector.RequiresExactMatch("metadata.name"); ok && k.name == "" {
		k.name = one
	}
	if !c.allows(user, k) {
		reply(w, r, 403, status(403, metav1.StatusReasonForbidden, "no relationship found between node and this object"))
		return
	}
	q := request{resource: resource, namespace: namespace, selector: selector, version: query.Get("resourceVersion"),
		initial: query.Get("sendInitialEvents") == "true", bookmarks: query.Get("allowWatchBookmarks") == "true"}
	switch {
	case r.Method == http.MethodGet && query.Get("watch") != "" && query.Get("watch") != "false":
		c.serveWatch(w, r, q)
	case r.Method == http.MethodGet && name == "":
		c.serveList(w, r, q)
	case r.Method == http.MethodGet:
		c.serveGet(w, r, k, q)
	case r.Method == http.MethodPost && sub == "token":
		c.serveToken(w, r, k)
	case r.Method == http.MethodPatch:
		c.servePatch(w, r, k)
	case r.Method == http.MethodDelete && resource == "pods":
		c.serveDelete(w, r, k)
	default:
		reply(w, r, 405, status(405, metav1.StatusReasonMethodNotAllowed, "not in this cloud"))
	}
}

// allows is what the authorizer of nodes says: a node reads Secrets and ConfigMaps that its pods name. The account
// reads no Secrets.
func (c *cloud) allows(user string, k key) bool {
	if k.resource != "secrets" && k.resource != "configmaps" {
		return true
	}
	if user != "system:node:"+node {
		return k.resource != "secrets"
	}
	for _, pod := range c.list("pods") {
		for _, n := range needs(pod.(*corev1.Pod)) {
			if n.key == k && pod.(*corev1.Pod).Spec.NodeName == node {
				return true
			}
		}
	}
	return false
}

func (c *cloud) serveGet(w http.ResponseWriter, r *http.Request, k key, q request) {
	version, problem := c.since(q)
	if problem != nil {
		reply(w, r, int(problem.Code), problem)
		return
	}
	c.mu.Lock()
	o := c.at(k, version)
	c.mu.Unlock()
	if o == nil {
		notFound(w, r, k)
		return
	}
	reply(w, r, http.StatusOK, o)
}

func notFound(w http.ResponseWriter, r *http.Request, k key) {
	missing := status(404, metav1.StatusReasonNotFound, fmt.Sprintf("%s %q not found", k.resource, k.name))
	missing.Details = &metav1.StatusDetails{Name: k.name, Kind: k.resource}
	reply(w, r, 404, missing)
}

// decode reads a body into an object.
func decode(r *http.Request, into runtime.Object) {
	body, err := io.ReadAll(r.Body)
	if err == nil && len(body) > 0 {
		_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	}
	must(err)
}

func (c *cloud) serveToken(w http.ResponseWriter, r *http.Request, k key) {
	asked := &authenticationv1.TokenRequest{}
	decode(r, asked)
	if c.get(k) == nil || asked.Spec.BoundObjectRef == nil {
		notFound(w, r, k)
		return
	}
	bound, seconds := asked.Spec.BoundObjectRef, int64(3600)
	if asked.Spec.ExpirationSeconds != nil {
		seconds = *asked.Spec.ExpirationSeconds
	}
	now := time.Now()
	if len(asked.Spec.Audiences) == 0 {
		asked.Spec.Audiences = []string{issuer}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uids++
	token := c.keys.sign(map[string]any{"iss": issuer, "aud": asked.Spec.Audiences, "iat": now.Unix(), "nbf": now.Unix(),
		"exp": now.Unix() + seconds, "jti": fmt.Sprint(c.uids),
		"sub": "system:serviceaccount:" + k.namespace + ":" + k.name,
		"kubernetes.io": map[string]any{"namespace": k.namespace,
			"serviceaccount": map[string]any{"name": k.name, "uid": c.at(k, c.head).GetUID()},
			"pod":            map[string]any{"name": bound.Name, "uid": bound.UID}}})
	c.tokens[token] = bound.UID
	asked.Status = authenticationv1.TokenRequestStatus{Token: token,
		ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(seconds) * time.Second).Truncate(time.Second))}
	reply(w, r, http.StatusCreated, asked)
}

func (c *cloud) servePatch(w http.ResponseWriter, r *http.Request, k key) {
	patch, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.at(k, c.head)
	if o == nil {
		notFound(w, r, k)
		return
	}
	before, err := json.Marshal(o)
	must(err)
	patched, err := scheme.Scheme.New(kinds[k.resource])
	must(err)
	after, err := strategicpatch.StrategicMergePatch(before, patch, patched)
	must(err)
	must(json.Unmarshal(after, patched))
	if string(after) != string(before) {
		c.store(k, patched.(object))
	}
	reply(w, r, http.StatusOK, c.at(k, c.head))
}

// serveDelete is a kubelet's DELETE of a pod, of which nothing is left.
func (c *cloud) serveDelete(w http.ResponseWriter, r *http.Request, k key) {
	options := &metav1.DeleteOptions{}
	decode(r, options)
	c.mu.Lock()
	pod, _ := c.at(k, c.head).(*corev1.Pod)
	var v verdict
	if pod != nil && c.onDelete != nil && len(options.DryRun) == 0 {
		v = c.onDelete(pod)
	}
	conflict := pod != nil && options.Preconditions != nil && options.Preconditions.UID != nil &&
		*options.Preconditions.UID != pod.UID
	answered := v.code == 0 && v.page == nil && v.lost == nil
	if pod != nil && !conflict && (answered || v.applied) && len(options.DryRun) == 0 {
		c.store(k, nil)
	}
	c.mu.Unlock()
	switch {
	case v.page != nil:
		v.page.write(w)
	case v.lost != nil:
		v.lost()
		<-r.Context().Done()
	case pod == nil:
		notFound(w, r, k)
	case conflict || v.code == 409:
		reply(w, r, 409, status(409, metav1.StatusReasonConflict, "the UID in the precondition does not match"))
	case v.code == 403:
		reply(w, r, 403, status(403, metav1.StatusReasonForbidden, "not allowed"))
	default:
		reply(w, r, 200, pod)
	}
}

// encoding is what the client accepts, JSON or protobuf.
func encoding(r *http.Request) runtime.SerializerInfo {
	mediaType := runtime.ContentTypeJSON
	if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) ||
		strings.Contains(r.Header.Get("Accept"), ","+runtime.ContentTypeProtobuf) {
		mediaType = runtime.ContentTypeProtobuf
	}
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	return info
}

func reply(w http.ResponseWriter, r *http.Request, code int, o runtime.Object) {
	info := encoding(r)
	kind, _, err := scheme.Scheme.ObjectKinds(o)
	must(err)
	body, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, kind[0].GroupVersion()), o)
	must(err)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// stream is the answer to a watch.
type stream struct {
	w       http.ResponseWriter
	encode  func(kind string, o runtime.Object) error
	flusher *http.ResponseController
	err     error
}

func newStream(w http.ResponseWriter, r *http.Request) *stream {
	info := encoding(r)
	w.Header().Set("Content-Type", info.MediaType)
	if info.MediaType == runtime.ContentTypeProtobuf {
		w.Header().Set("Content-Type", info.MediaType+";stream=watch")
	}
	w.WriteHeader(http.StatusOK)
	s := &stream{w: w, flusher: http.NewResponseController(w)}
	frames := info.StreamSerializer.NewFrameWriter(w)
	s.encode = func(kind string, o runtime.Object) error {
		gvk, _, err := scheme.Scheme.ObjectKinds(o)
		must(err)
		version := gvk[0].GroupVersion()
		if _, isStatus := o.(*metav1.Status); isStatus {
			version = metav1.Unversioned
		}
		outer := scheme.Codecs.EncoderForVersion(info.StreamSerializer.Serializer, corev1.SchemeGroupVersion)
		encoder := restwatch.NewEncoder(streaming.NewEncoder(frames, outer),
			scheme.Codecs.EncoderForVersion(info.Serializer, version))
		return encoder.Encode(&watch.Event{Type: watch.EventType(kind), Object: o})
	}
	s.err = s.flusher.Flush()
	return s
}

func (s *stream) send(kind string, o runtime.Object) {
	if s.err == nil {
		s.err = s.encode(kind, o)
	}
	if s.err == nil {
		s.err = s.flusher.Flush()
	}
}
