package dnshosts

import (
	"maps"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/wire"
)

// The types below have the fields of API objects on which records depend. There are at least as many Sets as units in
// the cluster, so a further field costs memory on every node.

// Node is this node.
type Node struct{ Labels map[string]string }

// Grid is a StatefulSetGrid.
type Grid struct {
	UID         types.UID
	Terminating bool
}

// Service is a Service with the label superedge.io/grid-uniq-key.
type Service struct {
	KeyLabel    string
	Terminating bool
}

// Set is a StatefulSet with the label superedge.io/grid-selector.
type Set struct {
	Namespace, Name string
	UID             types.UID
	// Owner and OwnerUID are the name and UID of the StatefulSetGrid that controls the set; "" if none does.
	Owner    string
	OwnerUID types.UID
	// GridLabel and KeyLabel are the values of the labels grid-selector and grid-uniq-key. Key is the whole key, if it
	// is not a valid label value.
	GridLabel, KeyLabel, Key string
	ServiceName              string
	// UnitLabel is the value of the label grid-unit. SuperEdge's controller does not set it.
	UnitLabel string
	// NodeSelector is the nodeSelector of the pods.
	NodeSelector map[string]string
	// Start is the first ordinal, Replicas the number of ordinals.
	Start, Replicas int32
	Terminating     bool
}

// Pod is a pod of one of the own unit's sets.
type Pod struct {
	Namespace, Name string
	// OwnerUID is the UID of the StatefulSet that controls the pod.
	OwnerUID  types.UID
	Addresses []netip.Addr
	// Ended is set for a pod that is being deleted, has succeeded or has failed.
	Ended bool
}

var statefulSets = schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}

// controller returns the owner of this kind that controls an object; nil if there is none.
func controller(object metav1.Object, kind schema.GroupKind) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(object)
	if owner == nil || owner.Kind != kind.Kind ||
		schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).Group != kind.Group {
		return nil
	}
	return owner
}

// nodeOf keeps what is needed of a Node.
func nodeOf(o *wire.Object) (Node, error) { return Node{Labels: o.Labels}, nil }

// gridOf keeps what is needed of a StatefulSetGrid.
func gridOf(o *wire.Object) (Grid, error) {
	m, err := metaOf(o)
	if err != nil {
		return Grid{}, err
	}
	return Grid{UID: m.UID, Terminating: m.DeletionTimestamp != nil}, nil
}

// serviceOf keeps what is needed of a Service.
func serviceOf(o *wire.Object) (Service, error) {
	m, err := metaOf(o)
	if err != nil {
		return Service{}, err
	}
	return Service{KeyLabel: o.Labels[v1.LabelGridUniqKey], Terminating: m.DeletionTimestamp != nil}, nil
}

// setOf keeps what is needed of a StatefulSet.
func setOf(o *wire.Object) (*Set, error) {
	var object appsv1.StatefulSet
	if err := decode(o, &object); err != nil {
		return nil, err
	}
	set := &Set{
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
		GridLabel: object.Labels[v1.LabelGridSelector], KeyLabel: object.Labels[v1.LabelGridUniqKey],
		UnitLabel:    object.Labels[v1.LabelGridUnit],
		Key:          object.Annotations[v1.AnnotationGridUniqKey],
		ServiceName:  object.Spec.ServiceName,
		NodeSelector: object.Spec.Template.Spec.NodeSelector,
		Replicas:     1, // the API server's default
		Terminating:  object.DeletionTimestamp != nil,
	}
	if object.Spec.Replicas != nil {
		set.Replicas = *object.Spec.Replicas
	}
	if object.Spec.Ordinals != nil {
		set.Start = object.Spec.Ordinals.Start
	}
	if owner := controller(&object, schema.GroupKind{Group: v1.GroupName, Kind: "StatefulSetGrid"}); owner != nil {
		set.Owner, set.OwnerUID = owner.Name, owner.UID
	}
	return set, nil
}

func (s *Set) equal(other *Set) bool {
	a, b := *s, *other
	a.NodeSelector, b.NodeSelector = nil, nil
	return a.comparable() == b.comparable() && maps.Equal(s.NodeSelector, other.NodeSelector)
}

// comparableSet is a Set without its map.
type comparableSet struct {
	namespace, name, owner, grid, keyLabel, key, service, unit string
	uid, ownerUID                                              types.UID
	start, replicas                                            int32
	terminating                                                bool
}

func (s *Set) comparable() comparableSet {
	return comparableSet{
		s.Namespace, s.Name, s.Owner, s.GridLabel, s.KeyLabel, s.Key, s.ServiceName, s.UnitLabel,
		s.UID, s.OwnerUID, s.Start, s.Replicas, s.Terminating,
	}
}

// podOf keeps what is needed of a Pod.
func podOf(o *wire.Object) (*Pod, error) {
	var object corev1.Pod
	if err := decode(o, &object); err != nil {
		return nil, err
	}
	pod := &Pod{
		Namespace: object.Namespace, Name: object.Name,
		Ended: object.DeletionTimestamp != nil || object.Status.Phase == corev1.PodFailed ||
			object.Status.Phase == corev1.PodSucceeded,
	}
	if owner := controller(&object, statefulSets); owner != nil {
		pod.OwnerUID = owner.UID
	}
	add := func(text string) {
		address, err := netip.ParseAddr(text)
		if err == nil && !slices.Contains(pod.Addresses, address) {
			pod.Addresses = append(pod.Addresses, address)
		}
	}
	for _, ip := range object.Status.PodIPs {
		add(ip.IP)
	}
	add(object.Status.PodIP) // the first of PodIPs, which old API servers do not have
	return pod, nil
}

func (p *Pod) equal(other *Pod) bool {
	return p.Namespace == other.Namespace && p.Name == other.Name && p.OwnerUID == other.OwnerUID &&
		p.Ended == other.Ended && slices.Equal(p.Addresses, other.Addresses)
}
