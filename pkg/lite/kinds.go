package lite

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// resource is the descriptor of a kind, under a name that does not hide one of its own fields.
type resource = served.Resource

// kind is a kind of object that is kept.
type kind struct {
	*resource

	// account is the ServiceAccount for which it is kept, as NAMESPACE/NAME; "" for the kubelet.
	account string
	// getOnly is set for kinds that the Node authorizer lets a node get, but not list or watch
	// (plugin/pkg/auth/authorizer/node/node_authorizer.go of Kubernetes), and for objects that an account gets by name.
	getOnly bool
}

// key names the kind on the disk.
func (k *kind) key() string {
	switch {
	case k.account == "":
		return k.String()
	case k.getOnly:
		return k.String() + ", get by " + k.account
	default:
		return k.String() + ", list by " + k.account
	}
}

func newKind[T any, P served.TypedPointer[T]](version schema.GroupVersion, name string) *kind {
	return &kind{resource: served.Of[T, P](version, name, resource{})}
}

func (k *kind) gets() *kind {
	k.getOnly = true
	return k
}

// The kinds that the kubelet needs to start pods.
var (
	nodes          = newKind[corev1.Node](corev1.SchemeGroupVersion, "nodes")
	pods           = newKind[corev1.Pod](corev1.SchemeGroupVersion, "pods")
	services       = &kind{resource: served.Services}
	secrets        = newKind[corev1.Secret](corev1.SchemeGroupVersion, "secrets")
	configMaps     = newKind[corev1.ConfigMap](corev1.SchemeGroupVersion, "configmaps")
	claims         = newKind[corev1.PersistentVolumeClaim](corev1.SchemeGroupVersion, "persistentvolumeclaims").gets()
	volumes        = newKind[corev1.PersistentVolume](corev1.SchemeGroupVersion, "persistentvolumes").gets()
	resourceClaims = newKind[resourcev1.ResourceClaim](resourcev1.SchemeGroupVersion, "resourceclaims").gets()
	csiNodes       = newKind[storagev1.CSINode](storagev1.SchemeGroupVersion, "csinodes").gets()
	csiDrivers     = newKind[storagev1.CSIDriver](storagev1.SchemeGroupVersion, "csidrivers")
	runtimeClasses = newKind[nodev1.RuntimeClass](nodev1.SchemeGroupVersion, "runtimeclasses")

	kinds = []*kind{nodes, pods, services, secrets, configMaps, claims, volumes, resourceClaims,
		csiNodes, csiDrivers, runtimeClasses}
	// namedByPods are those whose sets have one object each, which a pod names.
	namedByPods = map[*kind]bool{secrets: true, configMaps: true, claims: true, volumes: true, resourceClaims: true}
	// naming are those whose objects say what else pods need.
	naming = map[*kind]bool{pods: true, claims: true, volumes: true, csiDrivers: true}
)

// scope identifies a set of objects: those in a list of a kind with this namespace and field selector.
type scope struct {
	kind              *kind
	namespace, fields string
}

// objectScope is the scope of one object.
func objectScope(k *kind, namespace, name string) scope {
	return scope{k, namespace, fields.OneTermEqualSelector("metadata.name", name).String()}
}

// objectName returns the name of the one object that the scope may have; "" if it may have others.
func (s scope) objectName() string {
	selector, err := fields.ParseSelector(s.fields)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch("metadata.name")
	return name
}

// selects reports whether an object of the kind is in the scope.
func (s scope) selects(o *wire.Object) (bool, error) {
	selector, err := fields.ParseSelector(s.fields)
	if err != nil {
		return false, err
	}
	found, err := s.kind.Fields(o.Body) // the kubelet asks for the Services that have a cluster IP
	if err != nil {
		return false, err
	}
	values := fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace}
	for i, label := range s.kind.FieldLabels {
		values[label] = found[i]
	}
	for _, requirement := range selector.Requirements() {
		if _, ok := values[requirement.Field]; !ok {
			return false, fmt.Errorf("the field %s of %s is not known", requirement.Field, s.kind.Resource)
		}
	}
	return selector.Matches(values) && (s.namespace == "" || s.namespace == o.Namespace), nil
}

// nodeScopes returns the scopes that a node always needs.
func nodeScopes(node string) []scope {
	return []scope{
		objectScope(nodes, "", node),
		podScope(node),
		{kind: services},
		objectScope(csiNodes, "", node),
		{kind: csiDrivers},
		{kind: runtimeClasses},
	}
}

func podScope(node string) scope {
	return scope{pods, "", fields.OneTermEqualSelector("spec.nodeName", node).String()}
}
