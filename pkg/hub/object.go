package hub

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// kind is a kind of object of a share.
type kind struct {
	// resource is the name with which objects are assigned to buckets.
	resource string
	wire.TypeMeta

	// listed is the resource in lists for people.
	listed *served.Resource
}

// The kinds. kindNode is the node's own object, kindLabels the labels of a node.
var (
	kindService = kind{served.Services.Resource, served.Services.Type(), served.Services}
	kindSlice   = kind{served.EndpointSlices.Resource, served.EndpointSlices.Type(), served.EndpointSlices}
	kindNode    = kind{served.Nodes.Resource, served.Nodes.Type(), served.Nodes}
	kindLabels  = kind{
		"labels", wire.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, served.Nodes,
	}
)

// objectName identifies an object of a share.
type objectName struct {
	kind *kind
	name types.NamespacedName
}

func (n objectName) bucket() uint8 { return hubv1alpha1.BucketOf(n.kind.resource, n.name) }

func labelsName(node string) objectName {
	return objectName{&kindLabels, types.NamespacedName{Name: node}}
}

// object is an object of a share. It is immutable.
type object struct {
	objectName

	upstream *wire.Object
	body     []byte
	digest   uint64
	// nodeNames has the nodes whose labels are needed with the object.
	nodeNames []string
	// encoded is the event with the whole object, if body is not kept.
	encoded *chunk
}

func newObject(k *kind, upstream *wire.Object, body []byte) *object {
	return &object{
		objectName: objectName{k, types.NamespacedName{Namespace: upstream.Namespace, Name: upstream.Name}},
		upstream:   upstream, body: body, digest: wire.Digest(k.resource, upstream.Meta, body),
	}
}

// labelsObject returns a node with only its labels. Its upstream has the addresses as well.
func labelsObject(node *wire.Object) *object {
	var whole corev1.Node
	_ = whole.Unmarshal(node.Body)           // without addresses if it cannot be read
	labels, _ := wire.ObjectOf(&corev1.Node{ // it never fails
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels},
		Status:     corev1.NodeStatus{Addresses: whole.Status.Addresses},
	})
	labels.Labels = node.Labels // which the facts hold anyway
	return newObject(&kindLabels, labels, nil)
}

// ownObject returns a node's own object. Only its event is kept, with the upstream's object.
func ownObject(upstream *wire.Object) *object {
	o := newObject(&kindNode, upstream, upstream.Body)
	o.nodeNames = []string{o.name.Name}
	o.encoded = newChunk(appendFrame(nil, o))
	o.upstream, o.body = nil, nil
	return o
}

// digestOf returns the object's digest, 0 for nil.
func (o *object) digestOf() uint64 {
	if o == nil {
		return 0
	}
	return o.digest
}

func (o *object) message(body []byte) []byte {
	version, _ := strconv.ParseUint(o.upstream.ResourceVersion, 10, 64) // 0 if it has none
	return wire.AppendObject(nil, o.upstream.Meta, body, version)
}
