package gridcontroller

import (
	"encoding/json"
	"sync"

	"github.com/application-grid/application-grid/pkg/gridchild"
)

// desired is a child as it should be.
type desired struct {
	*gridchild.Child
	// shape is shared with the children of the same template.
	shape *shape
	// selectsUnit: the selector names the unit.
	selectsUnit bool
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
