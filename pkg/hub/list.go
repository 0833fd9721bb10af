package hub

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/klauspost/compress/gzip"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// history is a node's share of a resource as it is now, for one GET or LIST. Nodes have their addresses besides their
// labels, by which health services know them; the node itself is whole. Error: history.ErrNotReady.
func (s *shares) history(node string, resource *history.Resource) (*history.History, error) {
	versions := make(map[types.NamespacedName]history.Version)
	err := history.ErrNotReady
	s.read(func() {
		if !s.open {
			return
		}
		err = nil
		s.objectsOf(node, func(o *object) {
			if o.kind == &kindLabels && resource == history.Nodes {
				whole, body := o.upstream, []byte(nil)
				if own := s.ownOf(o.name.Name); own != nil && o.name.Name == node {
					whole, body = own, own.Body
				} else if own != nil {
					body, _ = wire.OnlyNodeAddresses(own.Body) // without addresses if they cannot be read
				}
				versions[o.name], _ = history.NewVersion(resource, whole, body)
			} else if o.kind.resource == resource.Resource {
				// An object whose fields cannot be read is selected by none.
				versions[o.name], _ = history.NewVersion(resource, o.upstream, o.body)
			}
		})
	})
	if err != nil {
		return nil, err
	}
	h := history.New(history.Options{
		Revisions: history.NewRevisions(uint64(max(time.Now().UnixMicro(), 1))), JSON: s.json,
	})
	h.Update(time.Time{}, func(u *history.Update) {
		for _, name := range slices.SortedFunc(maps.Keys(versions), func(a, b types.NamespacedName) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		}) {
			u.Put(resource, versions[name])
		}
		u.SetState(resource, history.Ready)
	})
	return h, nil
}

// objectsOf calls visit for every object of a node's share but its own Node, some more than once. It is called with
// both locks held.
func (s *shares) objectsOf(node string, visit func(*object)) {
	visitor := &stream{node: node}
	s.joinAll(visitor)
	for _, c := range visitor.classes {
		s.visit(c, visit)
	}
	s.leave(visitor)
}

// ownOf decodes a node's own object; nil if it is not known.
func (s *shares) ownOf(name string) *wire.Object {
	n := s.nodes[name]
	if n == nil || n.own == nil {
		return nil
	}
	o, err := decodeOwn(n.own.member)
	if err != nil {
		s.logger.Error(err, "Cannot read a node", "node", name)
		return nil
	}
	return o
}

// decodeOwn reads the one frame of an encoded chunk.
func decodeOwn(member []byte) (*wire.Object, error) {
	zip, err := gzip.NewReader(bytes.NewReader(member))
	if err != nil {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	frame, err := io.ReadAll(zip)
	if err != nil || len(frame) < 4 {
		return nil, fmt.Errorf("decompressing: %w", err)
	}
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame[4:]); err != nil {
		return nil, fmt.Errorf("decoding an event: %w", err)
	}
	_, message, err := wire.Unwrap(event.Object.Raw)
	if err != nil {
		return nil, err
	}
	return wire.ParseObject(message)
}
