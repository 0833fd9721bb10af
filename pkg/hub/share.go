package hub

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// shareServer answers requests for shares.
type shareServer struct {
	shares *view.Shares
	// current says why what is shared may not be what the cluster has; nil if it is.
	current func() error
	shedder *shedder
	server  *serve.Server
}

// heldKey is where the held of a request is kept.
type heldKey struct{}

// held is what a request holds until it is over, and the History that answers it.
type held struct {
	history *history.History
	release func()
	// taken is set if the serve.Server calls release.
	taken bool
}

// historyOf is a serve.Server's HistoryOf.
func historyOf(r *http.Request) (h *history.History, release func(), err error) {
	holds, ok := r.Context().Value(heldKey{}).(*held)
	if !ok {
		return nil, nil, errors.New("a request for no share")
	}
	holds.taken = true
	return holds.history, holds.release, nil
}

// ServeShare answers a request for a node's share.
func (s *shareServer) ServeShare(w http.ResponseWriter, r *http.Request, node, path string) {
	ctx, cancel := context.WithCancel(r.Context())
	holds := &held{release: cancel}
	defer func() {
		if !holds.taken {
			holds.release()
		}
	}()
	r = r.Clone(ctx)
	r.URL.Path, r.URL.RawPath = path, ""
	info := serve.ParseRequest(r)
	resource := sharedAs(schema.GroupResource{Group: info.Group, Resource: info.Resource})
	switch {
	case !info.IsResource:
		if answer := discover(path); answer != nil {
			writeDiscovery(w, r, answer)
			return
		}
		serve.WriteError(w, r, notFound(r))
		return
	case resource == nil, info.Subresource != "", info.Version != resource.Version,
		info.Namespace != "" && !resource.Namespaced, info.Name != "" && resource.Namespaced && info.Namespace == "":
		serve.WriteError(w, r, serve.NotServed(schema.GroupResource{Group: info.Group, Resource: info.Resource}))
		return
	}
	if err := s.current(); err != nil {
		serve.WriteError(w, r, serve.NotReady("the hub does not know what the API server has: "+err.Error()))
		return
	}
	h, release, err := s.history(resource, info, r.URL.Query(), node, cancel)
	if err != nil {
		if errors.Is(err, history.ErrNotReady) {
			err = serve.NotReady("the hub is not synced with the API server yet; an answer now would be incomplete")
		}
		serve.WriteError(w, r, err)
		return
	}
	done, full := s.shedder.begin(cancel)
	holds.history = h
	holds.release = func() {
		done()
		release()
		cancel()
	}
	if full {
		// Over HTTP/2 what is under way on the connection goes on.
		w.Header().Set("Connection", "close")
	}
	r = r.WithContext(context.WithValue(ctx, heldKey{}, holds))
	if info.Verb == "get" {
		s.server.Object(w, r, resource, info)
	} else {
		s.server.Collection(w, r, resource, info)
	}
}

// history is what answers a request. The node's own object is served whole where the request can be for no other node;
// among the nodes of the share it is as they are.
func (s *shareServer) history(
	resource *history.Resource, info serve.RequestInfo, query url.Values, node string, left func(),
) (h *history.History, release func(), err error) {
	switch {
	case resource == history.Services:
		return s.shares.Services(), func() {}, nil
	case resource == history.Nodes && (info.Name == node || (info.Name == "" && selectsOnly(query, node))):
		return s.shares.Own(node)
	default:
		return s.shares.Class(node, left)
	}
}

// selectsOnly reports whether a query's field selector picks this node only. Whatever else is wrong with the query is
// said by who answers it.
func selectsOnly(query url.Values, node string) bool {
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return false
	}
	name, exact := selector.RequiresExactMatch("metadata.name")
	return exact && name == node
}

// caller is who asks, as a quota tells callers apart: everybody comes from the aggregator's few addresses.
func caller(r *http.Request) string {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		return ""
	}
	return strings.Join(append([]string{user.GetName()}, nodesOf(user)...), " ")
}
