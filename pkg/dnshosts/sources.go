package dnshosts

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// followed returns the sources that the daemon follows: the metadata of this node and of the Services of ServiceGrids,
// and the EndpointSlices of these Services, to which the EndpointSlice controller copies their labels. Except for the
// node, an empty list is used only if it comes from an API server that knows this node.
func (d *Daemon) followed() []follow.Options {
	return []follow.Options{{
		Name: "node", Resource: corev1.SchemeGroupVersion.WithResource("nodes"), MetadataOnly: true,
		FieldSelector: "metadata.name=" + d.config.NodeName, Sink: d.node,
	}, {
		Name: "services", Resource: corev1.SchemeGroupVersion.WithResource("services"), MetadataOnly: true,
		LabelSelector: v1.LabelGridUniqKey, Witness: d.witness, Sink: d.services,
	}, {
		Name: "endpointslices", Resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		LabelSelector: v1.LabelGridUniqKey, Witness: d.witness, Sink: d.slices,
	}}
}

// table is the follow.Sink of one source. It stores what keep returns for each object. Its goroutine is the only one
// that changes it.
type table[T any] struct {
	keep func(*wire.Object) (T, error)
	// change changes the table under the Daemon's lock, and causes a sync.
	change func(func())
	logger klog.Logger

	// objects has the objects of the last complete list, with all changes since. restored is set while they are those
	// of a wrapper's snapshot, or corrected. Both are guarded by the Daemon's lock.
	objects  map[types.NamespacedName]T
	restored bool
}

// add stores an object among others. If it cannot be read, it stays as the table has it.
func (t *table[T]) add(o *wire.Object, objects map[types.NamespacedName]T) {
	kept, err := t.keep(o)
	if err != nil {
		t.logger.Error(err, "Cannot read an object that the API server sent; keeping what was known of it",
			"namespace", o.Namespace, "name", o.Name)
		var known bool
		if kept, known = t.objects[o.Key()]; !known {
			return
		}
	}
	objects[o.Key()] = kept
}

func (t *table[T]) Apply(o *wire.Object) { t.change(func() { t.add(o, t.objects) }) }

func (t *table[T]) Remove(namespace, name string) {
	t.change(func() { delete(t.objects, types.NamespacedName{Namespace: namespace, Name: name}) })
}

func (t *table[T]) Replace(listed []*wire.Object) {
	objects := make(map[types.NamespacedName]T, len(listed))
	for _, o := range listed {
		t.add(o, objects)
	}
	t.change(func() { t.objects = objects })
}

// SetAbsent implements follow.Sink. The table keeps its objects.
func (t *table[T]) SetAbsent() {}

// SetRestored implements follow.Restorable.
func (t *table[T]) SetRestored(restored bool) { t.change(func() { t.restored = restored }) }

// labelsOf keeps the labels of a Node.
func labelsOf(o *wire.Object) (map[string]string, error) { return o.Labels, nil }

// keyOf keeps the key by which a Service divides nodes into sites; "" for a Service that is being deleted. The label
// has it, unless it is not a valid label value.
func keyOf(o *wire.Object) (string, error) {
	var m metav1.ObjectMeta
	if err := m.Unmarshal(o.Meta); err != nil || m.DeletionTimestamp != nil {
		return "", err
	}
	return cmp.Or(m.Annotations[v1.AnnotationGridUniqKey], o.Labels[v1.LabelGridUniqKey]), nil
}

// Slice is an EndpointSlice of the Service of a ServiceGrid.
type Slice struct {
	Namespace, Service string
	Endpoints          []Endpoint
}

// Endpoint is a pod whose subdomain is the Service: a StatefulSet that names the Service as its serviceName makes such
// pods.
type Endpoint struct {
	// Pod is the pod's name, which is also its host name.
	Pod string
	// Addresses are empty if the pod is ending, or is known to have lost its address.
	Addresses []netip.Addr
}

// sliceOf keeps the endpoints of pods with a host name. The EndpointSlice controller gives only those a host name that
// have the Service as their subdomain. Readiness does not matter: the members of a set must find each other before they
// are ready.
func sliceOf(o *wire.Object) (*Slice, error) {
	var object discoveryv1.EndpointSlice
	if err := object.Unmarshal(o.Body); err != nil {
		return nil, fmt.Errorf("decoding an EndpointSlice: %w", err)
	}
	slice := &Slice{Namespace: o.Namespace, Service: o.Labels[discoveryv1.LabelServiceName]}
	for _, endpoint := range object.Endpoints {
		pod := endpoint.TargetRef
		if pod == nil || pod.Kind != "Pod" || pod.Namespace != o.Namespace ||
			ptr.Deref(endpoint.Hostname, "") != pod.Name {
			continue
		}
		kept := Endpoint{Pod: pod.Name}
		if !ptr.Deref(endpoint.Conditions.Terminating, false) {
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil && !slices.Contains(kept.Addresses, address) {
					kept.Addresses = append(kept.Addresses, address)
				}
			}
		}
		slice.Endpoints = append(slice.Endpoints, kept)
	}
	return slice, nil
}
