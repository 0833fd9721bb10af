package filters

import (
	"net/http"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// WithServedResources answers GET, LIST and WATCH of the served resources from the cache. Of nodes only this one is
// served; requests for others are passed on, and so are those for one namespace, and for all where the wrapper may not
// follow them.
//
// A request for another version of a served resource is answered 404, as by an API server without that version: passed
// on, it would return unpruned objects. Requests for subresources and writes are passed on. The server's HistoryOf
// decides which view a request gets.
func WithServedResources(server *serve.Server, nodeName string) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		info := serve.ParseRequest(r)
		resource := servedResources[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
		switch {
		case !info.IsResource || resource == nil || info.Subresource != "" || r.Method != http.MethodGet,
			resource == served.Nodes && !isThisNode(r, info, nodeName),
			resource == served.Namespaces && (info.Name != "" || server.Absent(r, resource)):
			next.ServeHTTP(w, r)
		case info.Version != resource.Version || (info.Namespace != "" && !resource.Namespaced) ||
			(info.Name != "" && resource.Namespaced && info.Namespace == ""):
			serve.WriteError(w, r, serve.NotServed(resource.GroupResource()))
		case info.Verb == "get":
			server.ServeGet(w, r, resource, info)
		default:
			server.ServeListOrWatch(w, r, resource, info)
		}
	})
}

// servedResources has the served resources by group and resource. All versions have the same objects.
var servedResources = func() map[schema.GroupResource]*served.Resource {
	byName := make(map[schema.GroupResource]*served.Resource)
	for _, r := range served.All() {
		byName[r.GroupResource()] = r
	}
	return byName
}()

// isThisNode reports whether a request for nodes is for this node only, by its name or by a field selector.
func isThisNode(r *http.Request, info serve.RequestInfo, nodeName string) bool {
	if nodeName == "" {
		return false
	}
	if info.Name != "" {
		return info.Name == nodeName
	}
	// If the query is not valid, the server that answers the request reports that.
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return false
	}
	name, exact := selector.RequiresExactMatch("metadata.name")
	return exact && name == nodeName
}
