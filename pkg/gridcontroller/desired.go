package gridcontroller

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/pkg/gridchild"
)

// desired is the desired state of a child. The object is rendered only when it is needed: rendering ten thousand
// children takes seconds, and for most of them the digest shows that nothing is to be done.
type desired struct {
	identity

	namespace string
	// shape is shared with the children of the same template.
	shape *shape
	// render renders the child, always with the same result. It must not be called concurrently.
	render func() (*gridchild.Child, error)
	// child is the result of render; nil before it was called.
	child *gridchild.Child
}

// identity identifies the content of a desired child.
type identity struct {
	name string
	// selectsUnit is set if the workload's selector names the unit.
	selectsUnit bool
	// variant names what the child is made of; see target.variant.
	variant string
	// digest is the child's Digest.
	digest string
}

// object returns the child, which must not be changed.
func (d *desired) object() (*unstructured.Unstructured, error) {
	if d.child == nil {
		child, err := d.render()
		if err != nil {
			return nil, err
		}
		d.child = child
	}
	return d.child.Object, nil
}

// shape is what the children of one template have in common. They differ only in the unit, so our field manager owns
// the same fields of each: fields is the hash of those of a child that was applied.
type shape struct{ fields atomic.Value }

func (s *shape) learn(live *child) { s.fields.Store(live.fields) }

func (s *shape) fits(live *child) bool { return s.fields.Load() == live.fields }
