package filters

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	kjson "sigs.k8s.io/json"

	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	// maxDelegatedEvent is the most bytes of an event, or of a patch of one, that is sent with the wrapper's identity.
	// kube-proxy's events have about 500, and a note may have 1,024.
	maxDelegatedEvent = 16 << 10
	// At most delegatedEventsPerSecond events are delegated, and at most delegatedEventsBurst at once. A lost event
	// does no harm, but a flood of events fills the cluster's etcd.
	delegatedEventsPerSecond = 5
	delegatedEventsBurst     = 25
	// rememberedEvents is how many events can be patched later: those that were created last.
	rememberedEvents = 512

	// kubeProxy is the component name in kube-proxy's events (k8s.io/kubernetes/cmd/kube-proxy/app/server.go).
	kubeProxy = "kube-proxy"
)

// patchableFields are the fields that an event recorder changes when an event happens again. client-go's tools/events
// changes the series; its tools/record changes count, times and message.
var patchableFields = []string{"series", "count", "firstTimestamp", "lastTimestamp", "message"}

// delegatedParameters are the query parameters that a delegated event may have. Others, such as dryRun, change what the
// request does.
var delegatedParameters = []string{"fieldManager", "fieldValidation", "pretty", "timeout"}

// eventDelegate creates and patches events with the wrapper's identity: events about this Node, and kube-proxy's events
// about Services. kube-proxy 1.37 records events with events.k8s.io/v1 and the reporting controller kube-proxy: about
// its Node in namespace default (Starting, and failures at the start), and about a Service in the Service's namespace
// (FailedToStartServiceHealthcheck). Older ones use a few more reasons, so the reason is not checked.
//
// The event is decoded and encoded again before it goes upstream. So the upstream cannot read the same bytes in another
// way (a key that occurs twice, or in another case) as an event about something else.
type eventDelegate struct {
	asWrapper http.Handler
	nodeName  string
	limiter   *rate.Limiter
	// created has the types.NamespacedName of events that were created in this way, and may be patched.
	created *lru.Cache
}

func newEventDelegate(asWrapper http.Handler, nodeName string) *eventDelegate {
	return &eventDelegate{
		asWrapper: asWrapper, nodeName: nodeName,
		limiter: rate.NewLimiter(delegatedEventsPerSecond, delegatedEventsBurst), created: lru.New(rememberedEvents),
	}
}

// serve answers the creation or the patch of an event. An error is returned if nothing was written.
func (l *eventDelegate) serve(w http.ResponseWriter, r *http.Request, info serve.RequestInfo) error {
	if named := info.Name != ""; r.URL.Path != canonicalEventPath(info) || named != (info.Verb == "patch") {
		return noEvent(info)
	}
	for name := range r.URL.Query() {
		if !slices.Contains(delegatedParameters, name) {
			return forbidden("the wrapper does not delegate its identity to an event with the parameter %q; bring "+
				"your own credentials", short(name))
		}
	}
	body, err := readBody(r, maxDelegatedEvent+1)
	if len(body) > maxDelegatedEvent {
		err = apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the wrapper delegates its identity for events of up to %d bytes", maxDelegatedEvent))
	}
	if err != nil {
		return err
	}
	if info.Verb == "patch" {
		return l.patch(w, r, info, body)
	}
	return l.create(w, r, info, body)
}

// canonicalEventPath returns the only path that a request for a delegated event may have.
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

func (l *eventDelegate) create(w http.ResponseWriter, r *http.Request, info serve.RequestInfo, body []byte) error {
	event, err := decodeEvent(info, mediaTypeOf(r), body)
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
	recorder := &statusRecorder{ResponseWriter: w}
	if err := l.send(recorder, r, runtime.ContentTypeJSON, encoded); err != nil {
		return err
	}
	// Whether an event that is there already is about the same object is not known.
	if recorder.status() == http.StatusCreated || recorder.status() == http.StatusOK {
		l.created.Add(types.NamespacedName{Namespace: info.Namespace, Name: event.meta.Name}, nil)
	}
	return nil
}

// send sends a request with another body as the wrapper.
func (l *eventDelegate) send(w http.ResponseWriter, r *http.Request, mediaType string, body []byte) error {
	if !l.limiter.Allow() {
		return apierrors.NewTooManyRequests("the wrapper delegates its identity for few events a second; a report "+
			"that comes later says the same", 1)
	}
	delegated := delegatedRequest(r, body)
	delegated.Header.Set("Content-Type", mediaType)
	l.asWrapper.ServeHTTP(w, delegated)
	return nil
}

// check refuses an event that is neither about this node nor kube-proxy's about a Service.
func (l *eventDelegate) check(event decodedEvent, namespace string) error {
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
	return forbidden("the wrapper delegates its identity for events that regard Node %q, in namespace default, and "+
		"for kube-proxy's events about Services, in their namespaces; not for one in namespace %q that regards %s %q "+
		"and is reported by %q. Bring your own credentials",
		l.nodeName, namespace, short(regarding.Kind), short(regarding.Namespace+"/"+regarding.Name),
		short(event.reportedBy))
}

// patch patches an event that was created in this way. For other events the answer is 404: event recorders then create
// the event again, with its count, and that is checked as a creation.
func (l *eventDelegate) patch(w http.ResponseWriter, r *http.Request, info serve.RequestInfo, body []byte) error {
	mediaType := mediaTypeOf(r)
	if mediaType != string(types.StrategicMergePatchType) && mediaType != string(types.MergePatchType) {
		return unsupportedMediaType(string(types.StrategicMergePatchType), string(types.MergePatchType))
	}
	var fields map[string]json.RawMessage
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &fields); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the patch of an event is not a JSON object: %v", err))
	}
	for name := range fields {
		if !slices.Contains(patchableFields, name) {
			return forbidden("the wrapper delegates its identity for patches of an event's %s, not of %q; bring "+
				"credentials of your own", strings.Join(patchableFields, ", "), short(name))
		}
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("encoding the patch of an event: %w", err)
	}
	if _, delegated := l.created.Get(types.NamespacedName{Namespace: info.Namespace, Name: info.Name}); !delegated {
		return noEvent(info)
	}
	return l.send(w, r, mediaType, encoded)
}

// decodedEvent is an event of either group, with the parts of it that are checked.
type decodedEvent struct {
	object     any
	meta       *metav1.ObjectMeta
	regarding  corev1.ObjectReference
	reportedBy string
}

// eventCodecs decode the events of both groups, and nothing else.
var eventCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Event{})
	scheme.AddKnownTypes(eventsv1.SchemeGroupVersion, &eventsv1.Event{})
	return serializer.NewCodecFactory(scheme)
}()

// decodeEvent reads the event that a request creates, from JSON or protobuf.
func decodeEvent(info serve.RequestInfo, mediaType string, body []byte) (decodedEvent, error) {
	codec, known := runtime.SerializerInfoForMediaType(eventCodecs.SupportedMediaTypes(), mediaType)
	if !known || (mediaType != runtime.ContentTypeJSON && mediaType != runtime.ContentTypeProtobuf) {
		return decodedEvent{}, unsupportedMediaType(runtime.ContentTypeJSON, runtime.ContentTypeProtobuf)
	}
	want := schema.GroupVersionKind{Group: info.Group, Version: "v1", Kind: "Event"}
	object, got, err := codec.Serializer.Decode(body, &want, nil)
	if err != nil {
		return decodedEvent{}, apierrors.NewBadRequest(fmt.Sprintf("the body is not an event: %v", err))
	}
	if *got != want {
		return decodedEvent{}, apierrors.NewBadRequest(fmt.Sprintf("the body is %s where %s is expected", got, want))
	}
	object.GetObjectKind().SetGroupVersionKind(want)
	if event, ok := object.(*corev1.Event); ok {
		reportedBy := cmp.Or(event.Source.Component, event.ReportingController)
		return decodedEvent{event, &event.ObjectMeta, event.InvolvedObject, reportedBy}, nil
	}
	event := object.(*eventsv1.Event) //nolint:forcetypeassert // eventCodecs have no third type
	return decodedEvent{event, &event.ObjectMeta, event.Regarding, event.ReportingController}, nil
}

func noEvent(info serve.RequestInfo) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: info.Group, Resource: info.Resource}, info.Name)
}

func unsupportedMediaType(supported ...string) error {
	return serve.Failure(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the wrapper delegates its identity for events in "+strings.Join(supported, " or "))
}
