package gridcontroller

import (
	"encoding/json"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/pkg/gridchild"
)

// desired is a child as it should be. What it contains is rendered only when it is needed: rendering ten thousand
// children takes seconds, and their digests say that most of them are as they should be.
type desired struct {
	identity

	namespace string
	// shape is shared with the children of the same template.
	shape *shape
	// render renders the child. It gives the same each time. One goroutine at a time calls it.
	render func() (*gridchild.Child, error)
	// child is what it gave; nil before it was called.
	child *gridchild.Child
}

// identity is what a desired child is known by.
type identity struct {
	name string
	// selectsUnit: the selector names the unit.
	selectsUnit bool
	// variant is what it is made of; see target.variant.
	variant string
	// digest is of all that the child contains.
	digest string
}

// object is the child. It is not to be changed.
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

// shape is what the children of one template have in common: they differ in the unit alone, so our field manager owns
// the same fields of each.
type shape struct {
	mu sync.Mutex // guards fields
	// fields is the hash of the fields that were found to be what is desired, of one of them; see child.is.
	fields string
}

func (s *shape) learn(live *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fields = live.fields
}

func (s *shape) fits(live *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fields == live.fields
}

// convert reads JSON that was decoded into a type.
func convert(from map[string]any, into any) error {
	data, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}
