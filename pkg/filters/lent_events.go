package filters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	kjson "sigs.k8s.io/json"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

const (
	// maxLentEvent is the most bytes of an event, or of a patch of one, that is sent with the wrapper's identity.
	// kube-proxy's events have about 500, and a note may have 1,024.
	maxLentEvent = 16 << 10
	// At most lentEventsPerSecond events are lent, and at most lentEventsBurst at once. A lost event does no harm, but
	// a flood of events fills the cluster's etcd.
	lentEventsPerSecond = 5
	lentEventsBurst     = 25
	// rememberedEvents is how many events can be patched later: those that were created last.
	rememberedEvents = 512

	protobufMediaType = "application/vnd.kubernetes.protobuf"
	// kubeProxy is the component name in kube-proxy's events (k8s.io/kubernetes/cmd/kube-proxy/app/server.go).
	kubeProxy = "kube-proxy"
)

// patchableFields are the fields that an event recorder changes when an event happens again. client-go's tools/events
// changes the series; its tools/record changes count, times and message.
var patchableFields = []string{"series", "count", "firstTimestamp", "lastTimestamp", "message"}

// lentParameters are the query parameters that a lent event may have. Others, such as dryRun, change what the request
// does.
var lentParameters = []string{"fieldManager", "fieldValidation", "pretty", "timeout"}

// eventLender creates and patches events with the wrapper's identity: events about this Node, and kube-proxy's events
// about Services. kube-proxy 1.37 records events with events.k8s.io/v1 and the reporting controller kube-proxy: about
// its Node in namespace default (Starting, and failures at the start), and about a Service in the Service's namespace
// (FailedToStartServiceHealthcheck). Older ones use a few more reasons, so the reason is not checked.
//
// The event is decoded and encoded again before it goes upstream. So the upstream cannot read the same bytes in another
// way (a key that occurs twice, or in another case) as an event about something else.
type eventLender struct {
	asWrapper http.Handler
	nodeName  string
	limiter   *rate.Limiter
	now       func() time.Time
	// created has the types.NamespacedName of events that were created in this way, and may be patched.
	created *lru.Cache
}

func newEventLender(asWrapper http.Handler, nodeName string) *eventLender {
	return &eventLender{
		asWrapper: asWrapper, nodeName: nodeName, now: time.Now,
		limiter: rate.NewLimiter(lentEventsPerSecond, lentEventsBurst), created: lru.New(rememberedEvents),
	}
}

// serve answers the creation or the patch of an event. An error is returned if nothing was written.
func (l *eventLender) serve(w http.ResponseWriter, r *http.Request, info serve.RequestInfo) error {
	if named := info.Name != ""; r.URL.Path != canonicalEventPath(info) || named != (info.Verb == "patch") {
		return noEvent(info)
	}
	for name := range r.URL.Query() {
		if !slices.Contains(lentParameters, name) {
			return forbidden(fmt.Sprintf(
				"the wrapper does not lend its identity to an event with the parameter %q; bring your own credentials",
				short(name),
			))
		}
	}
	body, err := readLentBody(r)
	if err != nil {
		return err
	}
	if info.Verb == "patch" {
		return l.patch(w, r, info, body)
	}
	return l.create(w, r, info, body)
}

// canonicalEventPath returns the only path that a request for a lent event may have.
func canonicalEventPath(info serve.RequestInfo) string {
	prefix := "/api/v1"
	if info.Group != "" {
		prefix = "/apis/" + info.Group + "/v1"
	}
	collection := prefix + "/namespaces/" + info.Namespace + "/events"
	if info.Name == "" {
		return collection
	}
	return collection + "/" + info.Name
}

func (l *eventLender) create(w http.ResponseWriter, r *http.Request, info serve.RequestInfo, body []byte) error {
	event, err := decodeEvent(info, r.Header.Get("Content-Type"), body)
	if err != nil {
		return err
	}
	if err := l.check(event, info.Namespace); err != nil {
		return err
	}
	encoded, err := json.Marshal(event.object)
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	if !l.limiter.AllowN(l.now(), 1) {
		return tooManyEvents()
	}
	lent := lentRequest(r, encoded)
	lent.Header.Set("Content-Type", "application/json")
	recorder := recordStatus(w)
	l.asWrapper.ServeHTTP(recorder, lent)
	// Whether an event that is there already is about the same object is not known.
	if recorder.status() == http.StatusCreated || recorder.status() == http.StatusOK {
		l.created.Add(types.NamespacedName{Namespace: info.Namespace, Name: event.meta.Name}, nil)
	}
	return nil
}

// check refuses an event that is neither about this node nor kube-proxy's about a Service.
func (l *eventLender) check(event decodedEvent, namespace string) error {
	regarding := event.regarding
	core := regarding.APIVersion == "" || regarding.APIVersion == "v1"
	inNamespace := event.meta.Namespace == "" || event.meta.Namespace == namespace
	switch {
	case core && inNamespace && regarding.Kind == "Node" && regarding.Name == l.nodeName && l.nodeName != "" &&
		namespace == metav1.NamespaceDefault && (regarding.Namespace == "" || regarding.Namespace == namespace):
		return nil
	case core && inNamespace && regarding.Kind == "Service" && regarding.Namespace == namespace &&
		event.reportedBy == kubeProxy:
		return nil
	}
	return forbidden(fmt.Sprintf(
		"the wrapper lends its identity for events that regard Node %q, in namespace default, and for kube-proxy's "+
			"events about Services, in their namespaces; not for one in namespace %q that regards %s %q and is "+
			"reported by %q. Bring your own credentials",
		l.nodeName, namespace, short(regarding.Kind), short(regarding.Namespace+"/"+regarding.Name),
		short(event.reportedBy)))
}

// patch patches an event that was created in this way. For other events the answer is 404: event recorders then create
// the event again, with its count, and that is checked as a creation.
func (l *eventLender) patch(w http.ResponseWriter, r *http.Request, info serve.RequestInfo, body []byte) error {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || (mediaType != string(types.StrategicMergePatchType) && mediaType != string(types.MergePatchType)) {
		return unsupportedMediaType(string(types.StrategicMergePatchType), string(types.MergePatchType))
	}
	var fields map[string]json.RawMessage
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &fields); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the patch of an event is not a JSON object: %v", err))
	}
	for name := range fields {
		if !slices.Contains(patchableFields, name) {
			return forbidden(fmt.Sprintf(
				"the wrapper lends its identity for patches of an event's %s, not of %q; bring credentials of your own",
				strings.Join(patchableFields, ", "), short(name),
			))
		}
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("encoding the patch of an event: %w", err)
	}
	if _, lent := l.created.Get(types.NamespacedName{Namespace: info.Namespace, Name: info.Name}); !lent {
		return noEvent(info)
	}
	if !l.limiter.AllowN(l.now(), 1) {
		return tooManyEvents()
	}
	lent := lentRequest(r, encoded)
	lent.Header.Set("Content-Type", mediaType)
	l.asWrapper.ServeHTTP(w, lent)
	return nil
}

// decodedEvent is an event of either group, with the parts of it that are checked.
type decodedEvent struct {
	object     any
	meta       *metav1.ObjectMeta
	regarding  corev1.ObjectReference
	reportedBy string
}

// decodeEvent reads the event that a request creates, from JSON or protobuf.
func decodeEvent(info serve.RequestInfo, contentType string, body []byte) (decodedEvent, error) {
	want := wire.TypeMeta{APIVersion: "v1", Kind: "Event"}
	if info.Group != "" {
		want.APIVersion = info.Group + "/v1"
	}
	mediaType := "application/json"
	if contentType != "" {
		var err error
		if mediaType, _, err = mime.ParseMediaType(contentType); err != nil {
			return decodedEvent{}, unsupportedMediaType("application/json", protobufMediaType)
		}
	}
	typeMeta := metav1.TypeMeta{APIVersion: want.APIVersion, Kind: want.Kind}
	if info.Group == "" {
		event := &corev1.Event{}
		if err := decodeBody(mediaType, body, want, event, &event.TypeMeta); err != nil {
			return decodedEvent{}, err
		}
		event.TypeMeta = typeMeta
		reportedBy := event.Source.Component
		if reportedBy == "" {
			reportedBy = event.ReportingController
		}
		return decodedEvent{event, &event.ObjectMeta, event.InvolvedObject, reportedBy}, nil
	}
	event := &eventsv1.Event{}
	if err := decodeBody(mediaType, body, want, event, &event.TypeMeta); err != nil {
		return decodedEvent{}, err
	}
	event.TypeMeta = typeMeta
	return decodedEvent{event, &event.ObjectMeta, event.Regarding, event.ReportingController}, nil
}

// decodeBody decodes a body into an object, whose TypeMeta is typeMeta. It fails if the body is of another kind.
func decodeBody(
	mediaType string, body []byte, want wire.TypeMeta, into interface{ Unmarshal([]byte) error },
	typeMeta *metav1.TypeMeta,
) error {
	var err error
	var got wire.TypeMeta
	switch mediaType {
	case "application/json":
		err = kjson.UnmarshalCaseSensitivePreserveInts(body, into)
		got = wire.TypeMeta{APIVersion: typeMeta.APIVersion, Kind: typeMeta.Kind}
	case protobufMediaType:
		var raw []byte
		if got, raw, err = wire.Unwrap(body); err == nil {
			err = into.Unmarshal(raw)
		}
	default:
		return unsupportedMediaType("application/json", protobufMediaType)
	}
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the body is not an event: %v", err))
	}
	if (got.Kind != "" && got.Kind != want.Kind) || (got.APIVersion != "" && got.APIVersion != want.APIVersion) {
		return apierrors.NewBadRequest(fmt.Sprintf("the body is %s %s where %s %s is expected",
			short(got.APIVersion), short(got.Kind), want.APIVersion, want.Kind))
	}
	return nil
}

// readLentBody reads the whole body of a request, if it is not too large.
func readLentBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxLentEvent+1))
	switch {
	case err != nil && isSlow(r):
		return nil, bodyTooSlow()
	case err != nil:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the body cannot be read: %v", err))
	case len(body) > maxLentEvent:
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the wrapper lends its identity for events "+
			"of up to %d bytes", maxLentEvent))
	}
	return body, nil
}

// setBody gives a request a body with a known length.
func setBody(r *http.Request, body []byte) {
	r.ContentLength = int64(len(body))
	if len(body) == 0 {
		r.Body, r.GetBody = http.NoBody, nil
		return
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body = io.NopCloser(bytes.NewReader(body))
}

func noEvent(info serve.RequestInfo) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: info.Group, Resource: info.Resource}, info.Name)
}

func unsupportedMediaType(supported ...string) error {
	return serve.Failure(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the wrapper lends its identity for events in "+strings.Join(supported, " or "))
}
