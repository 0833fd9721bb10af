package serve_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

// oracleClient lists and watches one resource until its context ends, in the way that its random numbers say. It checks
// that every stream is consistent, and holds what it has received.
type oracleClient struct {
	t        *testing.T
	r        *rand.Rand
	url      string
	resource *served.Resource
	selector selector
	protobuf bool
	// watchList starts watches with sendInitialEvents instead of listing.
	watchList bool
	// everyEvent is set where the log has every event, so that each must differ from the one before.
	everyEvent bool

	mu   sync.Mutex
	held map[types.NamespacedName]runtime.Object
	rv   string
}

func newOracleClient(t *testing.T, r *rand.Rand, base string) *oracleClient {
	t.Helper()
	c := &oracleClient{t: t, r: r, protobuf: r.IntN(2) == 0, watchList: r.IntN(2) == 0}
	parse := func(l, f string) selector {
		parsed, err := labels.Parse(l)
		if err != nil {
			panic(err)
		}
		return selector{labels: parsed, fields: fields.ParseSelectorOrDie(f)}
	}
	switch r.IntN(8) {
	case 0:
		c.resource, c.selector = served.Nodes, parse("", "metadata.name="+viewer)
	case 1:
		c.resource, c.selector = served.Services, parse("!service.kubernetes.io/service-proxy-name",
			"spec.clusterIP!=None")
	case 2:
		c.resource, c.selector = served.Services, parse("", "")
	case 3:
		c.resource, c.selector = served.Endpoints, parse("", "")
	case 4:
		c.resource, c.selector = served.EndpointSlices, parse("", "")
		c.selector.namespace = "a"
	case 5:
		c.resource, c.selector = served.EndpointSlices, parse("kubernetes.io/service-name=svc-1", "")
	default:
		c.resource, c.selector = served.EndpointSlices, parse("!service.kubernetes.io/headless", "")
	}
	prefix := "/apis/" + c.resource.GroupVersion().String()
	if c.resource.Group == "" {
		prefix = "/api/v1"
	}
	if c.selector.namespace != "" {
		prefix += "/namespaces/" + c.selector.namespace
	}
	c.url = base + prefix + "/" + c.resource.Resource
	return c
}

func (c *oracleClient) String() string {
	return fmt.Sprintf("%s labels=%q fields=%q namespace=%q protobuf=%v watchList=%v",
		c.resource.Resource, c.selector.labels, c.selector.fields, c.selector.namespace, c.protobuf, c.watchList)
}

// errRelist is what a client is told by 410 and 504.
var errRelist = errors.New("list again")

func (c *oracleClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.follow(ctx)
		if errors.Is(err, errRelist) {
			c.mu.Lock()
			c.rv = ""
			c.mu.Unlock()
		} else if err != nil && ctx.Err() == nil {
			c.t.Errorf("client %s: %v", c, err)
			return
		}
		if c.r.IntN(4) == 0 {
			// Away for a while: more happens than the log may hold.
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(c.r.IntN(30)) * time.Millisecond):
			}
		}
	}
}

// follow lists if it must, then watches until the stream ends or the client feels like ending it.
func (c *oracleClient) follow(ctx context.Context) error {
	query := url.Values{"watch": {"true"}, "timeoutSeconds": {"1"}}
	if c.r.IntN(2) == 0 {
		query.Set("allowWatchBookmarks", "true")
	}
	c.mu.Lock()
	rv := c.rv
	c.mu.Unlock()
	initial := false
	switch {
	case rv != "":
		query.Set("resourceVersion", rv)
	case c.watchList:
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
		query.Set("allowWatchBookmarks", "true")
		initial = true
	default:
		listed, err := c.list(ctx)
		if err != nil {
			return err
		}
		query.Set("resourceVersion", listed)
	}
	patience := time.Duration(1+c.r.IntN(200)) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := c.get(ctx, query)
	if err != nil || response == nil {
		return c.unlessDone(ctx, err)
	}
	defer response.Body.Close()
	return c.unlessDone(ctx, c.read(response.Body, initial))
}

func (c *oracleClient) unlessDone(ctx context.Context, err error) error {
	if errors.Is(err, errRelist) || ctx.Err() == nil {
		return err
	}
	return nil
}

// get returns nil for a server that is not ready yet.
func (c *oracleClient) get(ctx context.Context, query url.Values) (*http.Response, error) {
	query.Set("labelSelector", c.selector.labels.String())
	query.Set("fieldSelector", c.selector.fields.String())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if c.protobuf {
		request.Header.Set("Accept", "application/vnd.kubernetes.protobuf, */*")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response, nil
	case http.StatusServiceUnavailable:
		err = nil
	case http.StatusGone, http.StatusGatewayTimeout:
		err = errRelist
	default:
		body, _ := io.ReadAll(response.Body)
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, body)
	}
	response.Body.Close()
	return nil, err
}

// list takes the state, and returns its revision.
func (c *oracleClient) list(ctx context.Context) (string, error) {
	query := url.Values{}
	if c.r.IntN(2) == 0 {
		query.Set("resourceVersion", "0")
	}
	if c.r.IntN(2) == 0 {
		query.Set("limit", strconv.Itoa(1+c.r.IntN(4)))
	}
	listed := map[types.NamespacedName]runtime.Object{}
	var response *http.Response
	for response == nil {
		var err error
		if response, err = c.get(ctx, query); err != nil {
			return "", err
		}
		if response == nil {
			time.Sleep(time.Millisecond)
		}
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		return "", err
	}
	decoded := decode(body)
	list, err := meta.ListAccessor(decoded)
	if err != nil {
		return "", err
	}
	at := list.GetResourceVersion()
	if err := meta.EachListItem(decoded, func(o runtime.Object) error {
		name, version, stripped := strip(o)
		if listed[name] != nil {
			return fmt.Errorf("%s is in the list twice", name)
		}
		if len(version) > len(at) || (len(version) == len(at) && version > at) {
			return fmt.Errorf("%s has resourceVersion %s, and its list %s", name, version, at)
		}
		listed[name] = stripped
		return nil
	}); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.rv = listed, at
	return at, nil
}

// read takes events until the stream ends.
func (c *oracleClient) read(body io.Reader, initial bool) error {
	s := &oracleStream{
		client: c, reader: bufio.NewReader(body), initial: initial, fresh: map[types.NamespacedName]runtime.Object{},
	}
	for {
		event, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		decoded := decode(event.Object.Raw)
		if event.Type == string(watch.Error) {
			if status := decoded.(*metav1.Status); status.Code != http.StatusGone {
				return fmt.Errorf("error event %+v", status)
			}
			return errRelist
		}
		if err := s.take(watch.EventType(event.Type), decoded); err != nil {
			return err
		}
	}
}

// oracleStream is one watch of a client.
type oracleStream struct {
	client *oracleClient
	reader *bufio.Reader
	// last is the revision of the last event.
	last uint64
	// initial is set while the initial events are being sent; fresh is what they have brought.
	initial bool
	fresh   map[types.NamespacedName]runtime.Object
}

// next reads one frame.
func (s *oracleStream) next() (event metav1.WatchEvent, err error) {
	if !s.client.protobuf {
		line, err := s.reader.ReadBytes('\n')
		if err != nil {
			return event, err
		}
		return event, json.Unmarshal(line, &event)
	}
	var length [4]byte
	if _, err := io.ReadFull(s.reader, length[:]); err != nil {
		return event, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(s.reader, frame); err != nil {
		return event, fmt.Errorf("a frame of %d bytes: %w", len(frame), noEOF(err))
	}
	return event, event.Unmarshal(frame)
}

// noEOF keeps a stream that ends within a frame from being taken for one that ends in good order.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// take checks one event against what came before, and applies it.
func (s *oracleStream) take(eventType watch.EventType, decoded runtime.Object) error {
	name, version, o := strip(decoded)
	revision, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return err
	}
	c := s.client
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case eventType == watch.Bookmark:
		err = s.takeBookmark(o, revision)
	case s.initial:
		err = s.takeInitial(eventType, name, o)
	default:
		err = s.takeChange(eventType, name, o, revision)
	}
	if err == nil && !s.initial {
		c.rv = version
	}
	return err
}

// takeBookmark takes a bookmark, which may end the initial events.
func (s *oracleStream) takeBookmark(o runtime.Object, revision uint64) error {
	if got, want := fmt.Sprintf("%T", o), fmt.Sprintf("%T", s.client.resource.New()); got != want {
		return fmt.Errorf("a bookmark of type %s, want %s", got, want)
	}
	accessor, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	if ends := accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"; ends != s.initial {
		return fmt.Errorf("a bookmark that ends the initial events: %v, while they are being sent: %v", ends, s.initial)
	}
	if revision < s.last {
		return fmt.Errorf("a bookmark has revision %d after %d", revision, s.last)
	}
	s.last = revision
	if s.initial {
		s.client.held, s.initial = s.fresh, false
	}
	return nil
}

// takeInitial takes one of the events that bring the state.
func (s *oracleStream) takeInitial(eventType watch.EventType, name types.NamespacedName, o runtime.Object) error {
	if eventType != watch.Added || s.fresh[name] != nil {
		return fmt.Errorf("%s of %s among the initial events", eventType, name)
	}
	s.fresh[name] = o
	return nil
}

// takeChange takes an event of something that has changed.
func (s *oracleStream) takeChange(
	eventType watch.EventType, name types.NamespacedName, o runtime.Object, revision uint64,
) error {
	if revision <= s.last {
		return fmt.Errorf("%s of %s has revision %d after %d", eventType, name, revision, s.last)
	}
	s.last = revision
	c := s.client
	before, there := c.held[name]
	if there != (eventType != watch.Added) {
		return fmt.Errorf("%s %s (revision %d), and it is there: %v", eventType, name, revision, there)
	}
	switch eventType {
	case watch.Modified:
		if c.everyEvent && apiequality.Semantic.DeepEqual(before, o) {
			return fmt.Errorf("MODIFIED %s, and nothing that this viewer has a use for is different (revision %d)",
				name, revision)
		}
		c.held[name] = o
	case watch.Added:
		c.held[name] = o
	case watch.Deleted:
		if c.everyEvent && !apiequality.Semantic.DeepEqual(before, o) {
			return fmt.Errorf("DELETED %s with what the client has not: %v, not %v", name, o, before)
		}
		delete(c.held, name)
	default:
		return fmt.Errorf("event type %q", eventType)
	}
	return nil
}

// waitFor waits until the client holds what it should, and returns the difference if it never does.
func (c *oracleClient) waitFor(want map[types.NamespacedName]runtime.Object, patience time.Duration) string {
	deadline := time.Now().Add(patience)
	for {
		c.mu.Lock()
		got := maps.Clone(c.held)
		c.mu.Unlock()
		if got != nil && apiequality.Semantic.DeepEqual(want, got) {
			return ""
		}
		if time.Now().After(deadline) {
			return cmp.Diff(want, got)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

var oracleDecoder = func() runtime.Decoder {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(s).UniversalDeserializer()
}()

func decode(body []byte) runtime.Object {
	o, _, err := oracleDecoder.Decode(body, nil, nil)
	if err != nil {
		panic(fmt.Sprintf("%v: %q", err, body))
	}
	return o
}

// strip takes off what differs between the wrapper and the upstream, and what alone is no event.
func strip(o runtime.Object) (types.NamespacedName, string, runtime.Object) {
	accessor, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	rv := accessor.GetResourceVersion()
	accessor.SetResourceVersion("")
	accessor.SetGeneration(0)
	if annotations := accessor.GetAnnotations(); annotations != nil {
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		if len(annotations) == 0 {
			accessor.SetAnnotations(nil)
		}
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}, rv, o
}
