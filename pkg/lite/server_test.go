package lite

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/freeport"
	"github.com/application-grid/application-grid/internal/testkit/tlstest"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/health"
)

var patience = await.Patience{Within: 30 * time.Second, Between: 10 * time.Millisecond}

// cloud is a kube-apiserver that has some objects, and can be away.
type cloud struct {
	*httptest.Server

	mu sync.Mutex
	// lists are the answers to lists, by path; expiry is that of tokens. Guarded by mu.
	lists   map[string]any
	expiry  time.Time
	deleted []string
	// lags has the lists of a replica that has reached no other version. Guarded by mu.
	lags    map[string]any
	patched []string
	// issuer signs tokens. forbidden has what accounts may not read, as "NAMESPACE/NAME PATH". Guarded by mu.
	issuer    issuer
	forbidden map[string]bool
	// refusals counts those; guarded by mu.
	refusals int
	// deletes is the answer to each DELETE, if it is set.
	deletes atomic.Pointer[answerOf]
	// gateway is set while something else answers in its place, with 503, and asks to come back much later.
	gateway atomic.Bool
	// slow is set while requests for tokens are not answered. slowed counts them, givenUp those that are over.
	slow            atomic.Bool
	slowed, givenUp atomic.Int64
	// late is how long each answer takes, but for watches, in nanoseconds.
	late atomic.Int64
	// who are the names in the certificates of requests, "" for none. Guarded by mu.
	who map[string]bool
}

// tooLarge is what kube-apiserver says of a version that it has not reached.
var tooLarge = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
	Status: metav1.StatusFailure, Reason: metav1.StatusReasonTimeout, Code: http.StatusGatewayTimeout,
	Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}}

// answerOf is an answer with a body; the connection ends in place of it if the code is below 0.
type answerOf struct {
	code int
	body string
}

// write writes an object as JSON.
func (*cloud) write(w http.ResponseWriter, object any) {
	if err := json.NewEncoder(w).Encode(object); err != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
}

// ServeHTTP answers with objects in protobuf where the client prefers that, as kube-apiserver does.
func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) || isWatch(r) {
		c.answer(w, r)
		return
	}
	said := httptest.NewRecorder()
	c.answer(said, r)
	maps.Copy(w.Header(), said.Header())
	body := said.Body.Bytes()
	if bytes.HasPrefix(body, []byte("{}")) {
		body = []byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}
	if o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
		var encoded bytes.Buffer
		if protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(o, &encoded) == nil {
			body = encoded.Bytes()
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		}
	}
	w.WriteHeader(said.Code)
	_, _ = w.Write(body) // if the client is gone, it needs no answer
}

func (c *cloud) answer(w http.ResponseWriter, r *http.Request) {
	if c.gateway.Load() {
		w.Header().Set("Retry-After", "60")
		http.Error(w, "no server is available", http.StatusServiceUnavailable)
		return
	}
	if c.slow.Load() && strings.HasSuffix(r.URL.Path, "/token") {
		c.slowed.Add(1)
		<-r.Context().Done()
		c.givenUp.Add(1)
		return
	}
	if late := c.late.Load(); late > 0 && r.URL.Query().Get("watch") != "true" {
		select {
		case <-time.After(time.Duration(late)):
		case <-r.Context().Done():
			return
		}
	}
	if with := c.deletes.Load(); with != nil && r.Method == http.MethodDelete {
		if with.code < 0 {
			panic(http.ErrAbortHandler)
		}
		if strings.HasPrefix(with.body, "{") {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(with.code)
		_, _ = io.WriteString(w, with.body) // if the client is gone, it needs no answer
		return
	}
	c.mu.Lock()
	name := ""
	if len(r.TLS.PeerCertificates) > 0 {
		name = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	c.who[name] = true
	list, ok := c.lists[r.URL.Path]
	lagging, lags := c.lags[r.URL.Path]
	version := r.URL.Query().Get("resourceVersion")
	_, said, err := parseToken(bearerOf(r))
	forbidden := err == nil && c.forbidden[said.account()+" "+r.URL.Path]
	issuer := c.issuer
	expiry := c.expiry
	if r.Method == http.MethodDelete {
		c.deleted = append(c.deleted, r.URL.Path)
	}
	if r.Method == http.MethodPatch {
		body, _ := io.ReadAll(r.Body) // what is missing is compared
		c.patched = append(c.patched, string(body))
	}
	c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case forbidden:
		c.mu.Lock()
		c.refusals++
		c.mu.Unlock()
		w.WriteHeader(http.StatusForbidden)
		c.write(w, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
	case r.URL.Path == "/openid/v1/jwks":
		c.write(w, issuer.published())
	case strings.HasSuffix(r.URL.Path, "/token"):
		token, err := issuer.grant(r, expiry)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		c.write(w, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: token, ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}})
	case r.URL.Query().Get("watch") == "true":
		if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case lags && version == "0":
		c.write(w, lagging)
	case lags && version != "":
		w.WriteHeader(http.StatusGatewayTimeout)
		c.write(w, tooLarge)
	case ok:
		c.write(w, list)
	case r.Method == http.MethodDelete || r.Method == http.MethodPatch || r.URL.Path == "/livez":
		fmt.Fprintln(w, "{}")
	default:
		name := path.Base(r.URL.Path)
		w.WriteHeader(http.StatusNotFound)
		c.write(w, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
			Details: &metav1.StatusDetails{Name: name}})
	}
}

// end takes it away, with all watches.
func (c *cloud) end() {
	_ = c.Listener.Close() // it may be closed already
	c.CloseClientConnections()
}

// fixture is a node with a server between its kubelet and the cloud.
type fixture struct {
	*testing.T
	authority *tlstest.Authority
	cloud     *cloud
	config    Config
	// prepare, if set, changes a server before it runs.
	prepare func(*Server)
	server  *Server
	stop    func()
}

const version5 = "5"

func list(kind, version string, items ...any) map[string]any {
	if items == nil {
		items = []any{}
	}
	return map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": version5},
		"items": items}
}

// issue writes a client certificate, with its key.
func (f *fixture) issue(authority *tlstest.Authority, name, group string) string {
	f.Helper()
	return f.issueUntil(authority, pkix.Name{CommonName: name, Organization: []string{group}},
		time.Now().Add(time.Hour))
}

// issueUntil is issue with the time at which it ends.
func (f *fixture) issueUntil(authority *tlstest.Authority, name pkix.Name, until time.Time) string {
	f.Helper()
	path := filepath.Join(f.TempDir(), "client.pem")
	f.must(os.WriteFile(path, authority.IssueClient(f.T, name, until), 0o600))
	return path
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, authority: tlstest.NewAuthority(t)}
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "u1", ResourceVersion: "3"},
		Spec: corev1.PodSpec{NodeName: "node0", ServiceAccountName: "till", Volumes: []corev1.Volume{
			{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password"}}},
			{Name: "d", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}},
			{Name: "t", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}},
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}}}}}},
		}}}
	f.cloud = &cloud{who: map[string]bool{}, expiry: time.Now().Add(time.Hour), lists: map[string]any{
		"/api/v1/nodes": list("NodeList", "v1", corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0",
			ResourceVersion: "2"}}),
		"/api/v1/pods": list("PodList", "v1", pod),
		"/api/v1/services": list("ServiceList", "v1",
			corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till"},
				Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}},
			corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "headless"},
				Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}),
		"/api/v1/namespaces/shop/secrets": list("SecretList", "v1", corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "password"}, Data: map[string][]byte{"word": []byte("sesame")}}),
		"/api/v1/namespaces/shop/persistentvolumeclaims/disk": corev1.PersistentVolumeClaim{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "disk", ResourceVersion: "4"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "volume"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		"/api/v1/persistentvolumes/volume": corev1.PersistentVolume{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
			ObjectMeta: metav1.ObjectMeta{Name: "volume", ResourceVersion: "4"}},
		"/apis/storage.k8s.io/v1/csidrivers":  list("CSIDriverList", "storage.k8s.io/v1"),
		"/apis/node.k8s.io/v1/runtimeclasses": list("RuntimeClassList", "node.k8s.io/v1"),
		"/apis/storage.k8s.io/v1/csinodes/node0": map[string]any{"kind": "CSINode", "apiVersion": "storage.k8s.io/v1",
			"metadata": map[string]any{"name": "node0", "resourceVersion": "4"}},
	}}
	f.cloud.issuer, f.cloud.forbidden = newIssuer(t), map[string]bool{}
	f.cloud.Server = httptest.NewUnstartedServer(f.cloud)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.authority.PEM)
	f.cloud.TLS = &tls.Config{MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{f.authority.Issue(t, "kube-apiserver")}, ClientCAs: pool,
		ClientAuth: tls.VerifyClientCertIfGiven}
	f.cloud.EnableHTTP2 = true
	f.cloud.StartTLS()
	t.Cleanup(func() {
		f.cloud.end()
		f.cloud.Close()
	})

	port, err := freeport.Find(t.Context())
	f.must(err)
	f.config = Config{Kubeconfig: filepath.Join(t.TempDir(), "kubelet.conf"),
		Address: fmt.Sprintf("127.0.0.1:%d", port), Dir: inMemory(t)}
	f.writeKubeconfig(f.issue(f.authority, "system:node:node0", nodesGroup))
	return f
}

// writeKubeconfig writes the kubelet's, with the test's CA and others.
func (f *fixture) writeKubeconfig(certificate string, others ...*tlstest.Authority) {
	f.Helper()
	authorities := slices.Clone(f.authority.PEM)
	for _, other := range others {
		authorities = append(authorities, other.PEM...)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: f.cloud.URL, CertificateAuthorityData: authorities}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificate: certificate, ClientKey: certificate}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	f.must(clientcmd.WriteToFile(*config, f.config.Kubeconfig))
}

// start starts the server, as after a boot.
func (f *fixture) start() {
	f.Helper()
	server, err := New(f.config, klog.Background())
	f.must(err)
	if f.prepare != nil {
		f.prepare(server)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	f.server = server
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	f.Cleanup(f.stop)
	patience.Until(f.T, "it listens", func() error {
		connection, err := (&net.Dialer{}).DialContext(f.Context(), "tcp", f.config.Address)
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// report and condition are what the server says now.
func (f *fixture) report() health.Report {
	f.server.updateExplanation()
	return f.server.report()
}

func (f *fixture) condition() corev1.NodeCondition {
	f.server.updateExplanation()
	return f.server.condition()
}

// kubelet is a client with the kubeconfig that the server writes.
func (f *fixture) kubelet() *rest.Config {
	f.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(f.config.Dir, KubeletFile))
	f.must(err)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config
}

// followed waits until all that the pod names is on the disk.
func (f *fixture) followed() {
	f.Helper()
	patience.Until(f.T, "all is followed", func() error {
		if report := f.report(); len(report.Reasons) > 0 {
			return fmt.Errorf("%q", report.Reasons)
		}
		for _, in := range []scope{
			objectScope(secrets, "shop", "password"), objectScope(claims, "shop", "disk"),
			objectScope(volumes, "", "volume"),
		} {
			if _, objects, ok := f.server.store.readScope(in); !ok || len(objects) != 1 {
				return fmt.Errorf("%s is not known", in.kind.Resource)
			}
		}
		for _, audience := range []string{"", "vault"} {
			if _, ok := f.server.store.token(tokenRequest{"shop", "till", "till", "u1", audience, 3600}); !ok {
				return fmt.Errorf("there is no token for %q", audience)
			}
		}
		return nil
	})
	f.server.commit(klog.Background(), hourlyBytes)
}

// running is a fixture whose server has all that the pod names.
func running(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.start()
	f.followed()
	return f
}

// away ends the cloud, and lets the server know.
func (f *fixture) away() {
	f.cloud.end()
	f.server.link.NoteAway()
}

// rebootWithoutTheCloud commits, and starts the server again.
func (f *fixture) rebootWithoutTheCloud() {
	f.Helper()
	f.stop()
	f.cloud.end()
	f.start()
}

func (f *fixture) clientFor(config *rest.Config) kubernetes.Interface {
	f.Helper()
	client, err := kubernetes.NewForConfig(config)
	f.must(err)
	return client
}

// podsOfNode0 lists the node's pods as the kubelet does.
func (f *fixture) podsOfNode0(client kubernetes.Interface) ([]corev1.Pod, error) {
	list, err := client.CoreV1().Pods("").List(f.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=node0"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// tokenFor asks for the token of the pod shop/till as the kubelet does.
func (f *fixture) tokenFor(
	client kubernetes.Interface, uid types.UID, audiences ...string,
) (*authenticationv1.TokenRequest, error) {
	return client.CoreV1().ServiceAccounts("shop").CreateToken(f.Context(), "till", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600), Audiences: audiences,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "till",
				UID: uid}},
	}, metav1.CreateOptions{})
}

// get sends a GET, and returns the code and the answer. The headers are names and values in turn.
func (f *fixture) get(config *rest.Config, path string, headers ...string) (code int, body string, err error) {
	f.Helper()
	transport, err := rest.TransportFor(config)
	f.must(err)
	r, err := http.NewRequestWithContext(f.Context(), http.MethodGet, config.Host+path, nil)
	f.must(err)
	for header := range slices.Chunk(headers, 2) {
		r.Header.Set(header[0], header[1])
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	return response.StatusCode, string(read), err
}

// informed is an informer that has had its first list.
func (f *fixture) informed(from cache.ListerWatcher, example runtime.Object) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(from, example, 0, nil)
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		f.Error("the informer is not synced")
	}
	return informer
}

// says lets the cloud answer a list or an object.
func (c *cloud) says(path string, object any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists[path] = object
}

// setLastContact sets when the server last heard of kube-apiserver.
func (f *fixture) setLastContact(at time.Time) {
	f.server.store.mu.Lock()
	defer f.server.store.mu.Unlock()
	f.server.store.noteContact(at)
}

// TestRebootWithoutTheCloud: what client-go's reflectors and a kubelet ask, before and after.
func TestRebootWithoutTheCloud(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.rebootWithoutTheCloud()
	client := f.clientFor(f.kubelet())
	core := client.CoreV1()
	for range 2 {
		informer := f.informed(cache.NewFilteredListWatchFromClient(core.RESTClient(), "pods", "",
			func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=node0" }), &corev1.Pod{})
		if all := informer.GetStore().List(); len(all) != 1 {
			t.Errorf("the informer has %v", all)
		}
	}
	services, err := core.Services("").List(t.Context(), metav1.ListOptions{
		FieldSelector: "spec.clusterIP!=None", ResourceVersion: "0"})
	if err != nil || len(services.Items) != 1 || services.ResourceVersion != version5 {
		t.Errorf("got %v, %v", services, err)
	}
	secret, err := core.Secrets("shop").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=password"})
	if err != nil || len(secret.Items) != 1 || string(secret.Items[0].Data["word"]) != "sesame" {
		t.Errorf("got %v, %v", secret, err)
	}
	volume, err := core.PersistentVolumes().Get(t.Context(), "volume", metav1.GetOptions{})
	if err != nil || volume.Name != "volume" {
		t.Errorf("got %v, %v", volume, err)
	}
	node, err := client.StorageV1().CSINodes().Get(t.Context(), "node0", metav1.GetOptions{})
	if err != nil || node.Name != "node0" {
		t.Errorf("got %v, %v", node, err)
	}
	granted, err := f.tokenFor(client, "u1")
	if err != nil || !strings.HasPrefix(granted.Status.Token, "eyJ") {
		t.Errorf("got %v, %v", granted, err)
	}

	// A client may have a newer version than the set: it is answered the set.
	newer, err := core.Services("").List(t.Context(), metav1.ListOptions{ResourceVersion: "6"})
	if err != nil || newer.ResourceVersion != version5 || len(newer.Items) != 2 {
		t.Errorf("a newer version: %v, %v", newer, err)
	}

	// What was not said is 503.
	_, audience := f.tokenFor(client, "u1", "elsewhere")
	_, all := core.Pods("").List(t.Context(), metav1.ListOptions{})
	_, other := core.Secrets("shop").Get(t.Context(), "other", metav1.GetOptions{})
	_, labels := core.Services("").List(t.Context(), metav1.ListOptions{LabelSelector: "a=b"})
	_, write := core.Nodes().Create(t.Context(), &corev1.Node{}, metav1.CreateOptions{})
	for what, err := range map[string]error{"another audience": audience, "all pods": all,
		"another Secret": other, "a label selector": labels, "a write": write} {
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestGoneStaysGone: the kubelet's last DELETE is on the disk before it is passed on, also without the cloud.
func TestGoneStaysGone(t *testing.T) {
	for _, away := range []bool{false, true} {
		f := running(t)
		if away {
			f.cloud.end()
		}
		err := f.clientFor(f.kubelet()).CoreV1().Pods("shop").Delete(t.Context(), "till", metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions("u1")})
		if away != (err != nil) {
			t.Errorf("away %v: %v", away, err)
		}
		if !away && len(f.cloud.deleted) != 1 {
			t.Errorf("kube-apiserver was told %v", f.cloud.deleted)
		}
		f.rebootWithoutTheCloud()
		client := f.clientFor(f.kubelet())
		if pods, err := f.podsOfNode0(client); err != nil || len(pods) != 0 {
			t.Errorf("away %v: there are %v, %v", away, pods, err)
		}
		if pod, err := client.CoreV1().Pods("shop").Get(t.Context(), "till", metav1.GetOptions{}); err == nil {
			t.Errorf("away %v: got %v", away, pod)
		}
	}
}

// TestStrangers get nothing, with and without the cloud; a token goes to kube-apiserver without the node's certificate.
func TestStrangers(t *testing.T) {
	t.Parallel()
	f := running(t)
	as := func(certificate string, header ...string) (int, error) {
		config := rest.AnonymousClientConfig(f.kubelet())
		config.CertFile, config.KeyFile = certificate, certificate
		const secret = "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Dpassword"
		code, _, err := f.get(config, secret, header...)
		return code, err
	}
	for _, away := range []bool{false, true} {
		want := http.StatusOK
		if away {
			f.away()
			want = http.StatusServiceUnavailable
		}
		for what, certificate := range map[string]string{
			"nobody":          "",
			"another node":    f.issue(f.authority, "system:node:node1", nodesGroup),
			"an admin":        f.issue(f.authority, "kubernetes-admin", "system:masters"),
			"without a group": f.issue(f.authority, "system:node:node0", "x"),
		} {
			code, err := as(certificate, "X-Remote-User", "system:node:node0")
			if err != nil || code != http.StatusUnauthorized {
				t.Errorf("away %v, %s: %d, %v", away, what, code, err)
			}
		}
		forged := f.issue(tlstest.NewAuthority(t), "system:node:node0", nodesGroup)
		if code, err := as(forged); err == nil && code != http.StatusUnauthorized {
			t.Errorf("away %v, a forged certificate: %d", away, code)
		}
		f.cloud.mu.Lock()
		clear(f.cloud.who)
		f.cloud.mu.Unlock()
		if code, err := as("", "Authorization", "Bearer x"); err != nil || code != want {
			t.Errorf("away %v, a token: %d, %v", away, code, err)
		}
		f.cloud.mu.Lock()
		if !away && !f.cloud.who[""] {
			t.Errorf("a request with a token came as %v", f.cloud.who)
		}
		f.cloud.mu.Unlock()
	}
}

// TestAnotherObjectIsNotKept: an answer has to be the object that was asked for.
func TestAnotherObjectIsNotKept(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	server, err := New(f.config, klog.Background())
	f.must(err)
	defer server.disk.Close()
	defer server.listener.Close()
	in := objectScope(volumes, "", "volume")
	from, err := server.follower.groups[byName].Add(follow.Options{Resource: volumes.GroupVersionResource})
	f.must(err)
	f.must(server.follower.fetchObject(t.Context(), in, from.Request("test")))
	for _, other := range []string{"PersistentVolume other", "Secret volume"} {
		kind, name, _ := strings.Cut(other, " ")
		f.cloud.says("/api/v1/persistentvolumes/volume", metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: kind},
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "9"}})
		err := server.follower.fetchObject(t.Context(), in, from.Request("test"))
		if version, _, _ := server.store.readScope(in); err == nil || version != 4 {
			t.Errorf("%s: %v, and the version is %d", other, err, version)
		}
	}
}

// TestTheWatchEndsWithTheReturn of the cloud, so that the kubelet goes on there.
func TestTheWatchEndsWithTheReturn(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.cloud.gateway.Store(true)
	f.server.link.NoteAway()
	config, said := f.kubelet(), &warnings{}
	config.WarningHandler = said
	watch, err := f.clientFor(config).CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{
		ResourceVersion: version5})
	f.must(err)
	if !slices.Equal(*said, warnings{apiclient.Disconnected}) {
		t.Errorf("the warnings are %v", *said)
	}
	select {
	case event, ok := <-watch.ResultChan():
		t.Fatalf("got %v %v", event, ok)
	case <-time.After(50 * time.Millisecond): // it is held
	}
	f.cloud.gateway.Store(false)
	if event, ok := <-watch.ResultChan(); ok {
		t.Errorf("got %v", event)
	}
}

// warnings are the codes of the warnings that a client gets.
type warnings []int

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _, _ string) { *w = append(*w, code) }

// TestMistakes are named.
func TestMistakes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	admin := f.issue(f.authority, "kubernetes-admin", "system:masters")
	f.writeKubeconfig(admin)
	if _, err := New(f.config, klog.Background()); err == nil || !strings.Contains(err.Error(), "not of a kubelet") {
		t.Errorf("an admin's kubeconfig: %v", err)
	}
	f.writeKubeconfig(f.issue(f.authority, "system:node:node0", nodesGroup))
	f.start()
	again := f.config
	again.Kubeconfig = filepath.Join(f.config.Dir, KubeletFile)
	before, err := os.ReadFile(again.Kubeconfig)
	f.must(err)
	if _, err := New(again, klog.Background()); err == nil || !strings.Contains(err.Error(), "names this server") {
		t.Errorf("its own kubeconfig: %v", err)
	}
	for address, want := range map[string]string{
		f.config.Address: "--port: listen tcp " + f.config.Address, "127.0.0.1:0": "another process uses it",
	} {
		twice := f.config
		twice.Address = address
		if _, err := New(twice, klog.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("twice: %v, want %s", err, want)
		}
	}
	f.followed() // the first goes on, and the kubelet is still led to it
	if after, err := os.ReadFile(again.Kubeconfig); err != nil || !bytes.Equal(after, before) {
		t.Errorf("its kubeconfig is %s, %v", after, err)
	}
}

// TestHealthIsForThisNode: web pages cannot read /readyz by a name that resolves to the loopback, and those who open
// connections and say nothing leave some to others.
func TestHealthIsForThisNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	port, err := freeport.Find(t.Context())
	f.must(err)
	f.config.HealthAddress = fmt.Sprintf("127.0.0.1:%d", port)
	f.start()
	ask := func(host string) (code int, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.config.HealthAddress+"/healthz",
			nil)
		f.must(err)
		r.Host, r.Close = host, true
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	for host, want := range map[string]int{f.config.HealthAddress: http.StatusOK, "localhost": http.StatusOK,
		"[::1]:51009": http.StatusOK, "rebound.example.com": http.StatusForbidden, "192.0.2.1": http.StatusForbidden} {
		patience.Until(t, "host "+host, func() error {
			if code, err := ask(host); err != nil || code != want {
				return fmt.Errorf("got %d, %w", code, err)
			}
			return nil
		})
	}
	f.config.HealthAddress = "0.0.0.0:51009"
	if w := httptest.NewRecorder(); true {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://node0.example.com:51009/healthz", nil)
		(&Server{config: f.config, metrics: f.server.metrics}).healthHandler().ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Errorf("who may ask from elsewhere is answered %d", w.Code)
		}
	}
}

// TestConnectionsAreBounded at every listener: whoever opens any number of them without a certificate gets half of the
// places.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	port, err := freeport.Find(t.Context())
	f.must(err)
	f.config.HealthAddress = fmt.Sprintf("127.0.0.1:%d", port)
	f.start()
	for address, places := range map[string]int{
		f.config.Address: maxRequests, f.config.HealthAddress: healthConnections,
	} {
		var held []net.Conn
		dial := func() (net.Conn, error) { return (&net.Dialer{}).DialContext(t.Context(), "tcp", address) }
		patience.Until(t, "it listens at "+address, func() error {
			c, err := dial()
			if err == nil {
				err = c.Close()
			}
			return err
		})
		for range places/2 + 20 {
			c, err := dial()
			f.must(err)
			held = append(held, c)
			defer c.Close()
		}
		soon := await.Patience{Within: 15 * time.Second, Between: patience.Between} // later all are closed
		soon.Until(t, "the last ones are closed at "+address, func() error {
			open := 0
			for _, c := range held {
				f.must(c.SetReadDeadline(time.Now().Add(time.Millisecond)))
				if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
					open++
				}
			}
			if open > places/2+1 || open < places/4 {
				return fmt.Errorf("%d of %d are open", open, len(held))
			}
			return nil
		})
	}
}

// TestPlacesForTheKubelet: connections without a certificate, of the kubelet's own user, as many as they get, do not
// keep the kubelet's out, and none of the kubelet's is closed for them.
func TestPlacesForTheKubelet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	client := func() kubernetes.Interface {
		config := f.kubelet()
		config.Dial = (&net.Dialer{}).DialContext // client-go would share the connection of clients without one
		return f.clientFor(config)
	}
	watch, err := client().CoreV1().Pods("").Watch(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=node0"})
	f.must(err)
	defer watch.Stop()
	fill := func() {
		for range maxRequests {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.config.Address)
			f.must(err)
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	fill()
	if pods, err := f.podsOfNode0(client()); err != nil || len(pods) != 1 {
		t.Errorf("a kubelet that starts is answered %v, %v", pods, err)
	}
	fill()
	select {
	case <-watch.ResultChan():
		t.Error("the kubelet's watch has ended")
	default:
	}
}
