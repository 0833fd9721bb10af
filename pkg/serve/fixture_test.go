package serve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	restclientwatch "k8s.io/client-go/rest/watch"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// soon is what tests wait with for another goroutine.
var soon = await.Patience{Within: patience, Between: 5 * time.Millisecond}

const (
	// patience is how long a test waits for what must happen.
	patience = 10 * time.Second
	// thisNode is in site "a" of the label key "zone".
	thisNode = "node0"

	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	asProtobuf   = runtime.ContentTypeProtobuf
	asJSON       = runtime.ContentTypeJSON
)

// cluster is a Server on a Store that the test fills as an upstream would.
type cluster struct {
	t      testing.TB
	store  *storagetest.Node
	server *Server
	url    string
}

// Only returns a HistoryOf that answers every request from the same History.
func Only(h *history.History) func(*http.Request) (*history.History, func(), error) {
	return func(*http.Request) (*history.History, func(), error) { return h, func() {}, nil }
}

// newCluster starts a server with nothing synced. configure may be nil.
func newCluster(tb testing.TB, configure func(*storagetest.Options, *Server)) *cluster {
	tb.Helper()
	options := storagetest.Options{NodeName: thisNode, KeepKubernetesEndpoint: true}
	server := &Server{}
	if configure != nil {
		configure(&options, server)
	}
	store := storagetest.New(options)
	server.HistoryOf = Only(store.History)
	c := &cluster{t: tb, store: store, server: server}
	listener := httptest.NewServer(c)
	tb.Cleanup(func() {
		listener.CloseClientConnections()
		listener.Close()
	})
	c.url = listener.URL
	return c
}

// newSyncedCluster has two nodes in site "a", one in site "b", and the given objects.
func newSyncedCluster(t *testing.T, objects ...served.Typed) *cluster {
	t.Helper()
	c := newCluster(t, nil)
	c.sync(objects...)
	return c
}

// ServeHTTP routes as the filters do.
func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info := ParseRequest(r)
	for _, resource := range served.All() {
		if resource.Group != info.Group || resource.Resource != info.Resource {
			continue
		}
		if info.Verb == "get" {
			c.server.ServeGet(w, r, resource, info)
		} else {
			c.server.ServeListOrWatch(w, r, resource, info)
		}
		return
	}
	http.NotFound(w, r)
}

// sync makes the given objects, and the three nodes, the complete upstream state of all resources but Endpoints.
func (c *cluster) sync(objects ...served.Typed) {
	var services, slices []*wire.Object
	for _, o := range objects {
		switch o.(type) {
		case *corev1.Service:
			services = append(services, wiretest.Object(o))
		case *discoveryv1.EndpointSlice:
			slices = append(slices, wiretest.Object(o))
		default:
			c.t.Fatalf("sync does not take a %T", o)
		}
	}
	nodes := []*wire.Object{
		wiretest.Object(node(thisNode, "a")), wiretest.Object(node("node1", "a")), wiretest.Object(node("node2", "b")),
	}
	c.store.NodeLabels().Replace(nodes)
	c.store.OwnNode().Replace(nodes[:1])
	c.store.Services().Replace(services)
	c.store.EndpointSlices().Replace(slices)
}

func (c *cluster) input(o served.Typed) *facts.Input {
	switch o.(type) {
	case *corev1.Service:
		return c.store.Services()
	case *discoveryv1.EndpointSlice:
		return c.store.EndpointSlices()
	default:
		c.t.Fatalf("there is no input for a %T", o)
		return nil
	}
}

func (c *cluster) apply(o served.Typed) { c.input(o).Apply(wiretest.Object(o)) }

func (c *cluster) remove(o served.Typed) {
	encoded := wiretest.Object(o)
	c.input(o).Remove(encoded.Namespace, encoded.Name)
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), ResourceVersion: "7",
		CreationTimestamp: metav1.Unix(1700000000, 0),
	}
}

func node(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: objectMeta("", name)}
	n.Labels = map[string]string{"zone": zone}
	return n
}

// service is a plain Service in namespace default.
func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: objectMeta("default", name),
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.0.0.1", Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

// governed is a Service whose endpoints are seen within one zone only.
func governed(name string) *corev1.Service {
	s := service(name)
	s.Annotations = map[string]string{v1.AnnotationTopologyKeys: `["zone"]`}
	return s
}

func labelled(s *corev1.Service, labels map[string]string) *corev1.Service {
	s = s.DeepCopy()
	s.Labels = labels
	return s
}

// slice lists one endpoint on each of the nodes for the Service of the same name.
func slice(name string, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  objectMeta("default", name),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	for i, node := range nodes {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{"10.1.0." + strconv.Itoa(i+1)},
			NodeName:   ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return s
}

func nodesOf(s *discoveryv1.EndpointSlice) string {
	var names []string
	for _, e := range s.Endpoints {
		names = append(names, *e.NodeName)
	}
	return strings.Join(names, ",")
}

// response is a whole answer.
type response struct {
	code   int
	header http.Header
	body   []byte
}

func (c *cluster) get(path string, headers ...string) response {
	c.t.Helper()
	return c.getFrom("127.0.0.1:1234", path, headers...)
}

// getFrom is get for a client at an address.
func (c *cluster) getFrom(address, path string, headers ...string) response {
	c.t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = address
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return response{code: w.Code, header: w.Header(), body: w.Body.Bytes()}
}

// request sends a GET with headers given as name, value, … and leaves compression alone.
func (c *cluster) request(ctx context.Context, path string, headers ...string) *http.Response {
	c.t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableCompression: true, DisableKeepAlives: true}
	r, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		c.t.Fatalf("GET %s: %v", path, err)
	}
	return r
}

// decodeAs decodes a body with client-go's codecs.
func decodeAs[T runtime.Object](t *testing.T, r response) T {
	t.Helper()
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(r.body, nil, nil)
	if err != nil {
		t.Fatalf("code %d, body %q: %v", r.code, r.body, err)
	}
	typed, ok := decoded.(T)
	if !ok {
		t.Fatalf("code %d: got a %T: %v", r.code, decoded, decoded)
	}
	return typed
}

// status is the body as a Status, checked to agree with the response that carries it.
func (r response) status(t *testing.T) *metav1.Status {
	t.Helper()
	s := decodeAs[*metav1.Status](t, r)
	if int(s.Code) != r.code || s.Status != metav1.StatusFailure || s.Message == "" || s.Reason == "" {
		t.Errorf("HTTP code %d with the Status %+v", r.code, s)
	}
	return s
}

// stream is a WATCH response, decoded by client-go's own decoder.
type stream struct {
	t       testing.TB
	cancel  context.CancelFunc
	decoder watch.Decoder
	header  http.Header
}

// watch opens a WATCH; the query is appended to watch=true.
func (c *cluster) watch(path, query, accept string) *stream {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	if query != "" {
		query = "&" + query
	}
	//nolint:bodyclose // the end of its context closes it
	r := c.request(ctx, path+"?watch=true"+query, "Accept", accept)
	if r.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(r.Body)
		c.t.Fatalf("WATCH %s%s: %d %s", path, query, r.StatusCode, body)
	}
	mediaType, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	if !ok || info.StreamSerializer == nil {
		c.t.Fatalf("no client could decode the content type %q", r.Header.Get("Content-Type"))
	}
	frames := info.StreamSerializer.NewFrameReader(r.Body)
	return &stream{
		t: c.t, cancel: cancel, header: r.Header,
		decoder: restclientwatch.NewDecoder(streaming.NewDecoder(frames, info.StreamSerializer),
			scheme.Codecs.UniversalDeserializer()),
	}
}

// decode is the next event or the end of the stream, which must come before the test's patience ends.
func (s *stream) decode() (watch.EventType, runtime.Object, error) {
	s.t.Helper()
	late := time.AfterFunc(patience, func() {
		s.cancel()
	})
	defer late.Stop()
	return s.decoder.Decode()
}

func (s *stream) next() watch.Event {
	s.t.Helper()
	eventType, object, err := s.decode()
	if err != nil {
		s.t.Fatalf("waiting for an event: %v", err)
	}
	return watch.Event{Type: eventType, Object: object}
}

// expect takes the next events, written "TYPE name".
func (s *stream) expect(want ...string) []watch.Event {
	s.t.Helper()
	var events []watch.Event
	for i, w := range want {
		e := s.next()
		if got := describe(e); got != w {
			s.t.Fatalf("event %d: got %q, want %q", i, got, w)
		}
		events = append(events, e)
	}
	return events
}

func describe(e watch.Event) string {
	if o, ok := e.Object.(metav1.Object); ok {
		return strings.TrimSpace(string(e.Type) + " " + o.GetName())
	}
	return string(e.Type)
}

// expectEnd demands that the stream ends, cleanly.
func (s *stream) expectEnd() {
	s.t.Helper()
	eventType, object, err := s.decode()
	if !errors.Is(err, io.EOF) {
		s.t.Fatalf("got %s %v, error %v; want the end of the stream", eventType, object, err)
	}
}

// expectExpired demands, after any events, an ERROR event with 410, and then the end.
func (s *stream) expectExpired() {
	s.t.Helper()
	e := s.next()
	for e.Type != watch.Error {
		e = s.next()
	}
	status, ok := e.Object.(*metav1.Status)
	if !ok || status.Code != http.StatusGone || status.Reason != metav1.StatusReasonExpired {
		s.t.Fatalf("got %T %v", e.Object, e.Object)
	}
	s.expectEnd()
}

func revisionOf(t *testing.T, o runtime.Object) uint64 {
	t.Helper()
	var text string
	switch o := o.(type) {
	case metav1.Object:
		text = o.GetResourceVersion()
	case metav1.ListInterface:
		text = o.GetResourceVersion()
	default:
		t.Fatalf("a %T has no resourceVersion", o)
	}
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil || revision == 0 {
		t.Fatalf("resourceVersion %q of %T is not a positive decimal", text, o)
	}
	return revision
}

func isProtobuf(body []byte) bool { return bytes.HasPrefix(body, []byte("k8s\x00")) }
