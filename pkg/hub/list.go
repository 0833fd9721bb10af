package hub

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// ServeShare answers a GET or LIST of a node's share, by the path below it.
func (s *shareServer) ServeShare(w http.ResponseWriter, r *http.Request, node, path string) {
	r = r.Clone(r.Context())
	r.URL.Path, r.URL.RawPath = path, ""
	info := serve.ParseRequest(r)
	if !info.IsResource {
		if answer := discover(path); answer != nil {
			responsewriters.WriteRawJSON(http.StatusOK, answer, w)
		} else {
			serve.WriteError(w, r, notFound(r))
		}
		return
	}
	resource, h, err := s.read(r, node, info)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	server := &serve.Server{HistoryOf: serve.Only(h), Admit: s.admit, NoYAMLLists: true}
	if info.Verb == "get" {
		server.Object(w, r, resource, info)
	} else {
		server.Collection(w, r, resource, info)
	}
}

// read returns what a request for a node's share is answered from.
func (s *shareServer) read(
	r *http.Request, node string, info serve.RequestInfo,
) (resource *history.Resource, h *history.History, err error) {
	name := schema.GroupResource{Group: info.Group, Resource: info.Resource}
	resource = shared[name]
	if resource == nil || info.Subresource != "" || info.Version != resource.Version ||
		info.Namespace != "" && !resource.Namespaced ||
		info.Name != "" && resource.Namespaced && info.Namespace == "" {
		return nil, nil, serve.NotServed(name)
	}
	if watch, _ := strconv.ParseBool(r.URL.Query().Get("watch")); watch || info.Verb == "watch" {
		return nil, nil, apierrors.NewMethodNotSupported(name, "watch")
	}
	if err := s.current(); err != nil {
		return nil, nil, errNotCurrent(err)
	}
	h, err = s.shares.history(node, resource)
	return resource, h, err
}

// history is a node's share of a resource as it is now, for one GET or LIST. Nodes have their addresses besides their
// labels, by which health services know them; the node itself is whole. Error: errNotSynced.
func (s *shares) history(node string, resource *history.Resource) (*history.History, error) {
	versions := make(map[types.NamespacedName]history.Version)
	err := errNotSynced
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
	o, err := decodeOwn(n.ownContent.member)
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
