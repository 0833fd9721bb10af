package filters

import (
	"net/http"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
)

// WithServed answers GET, LIST and WATCH of the served resources from the cache. Of nodes only this one is
// served; requests for others go on.
//
// Another version of a served resource is answered 404, as by a server that does not have it: passed on, it
// would come back unpruned. Requests for a subresource, and those that write, go on. The server's HistoryOf says whose
// view a request gets.
func WithServed(server *serve.Server, nodeName string) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := requestInfo(r)
			resource := servedResources[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
			if !info.IsResource || resource == nil || info.Subresource != "" || r.Method != http.MethodGet {
				next.ServeHTTP(w, r)
				return
			}
			if resource == history.Nodes && !isThisNode(r, info, nodeName) {
				next.ServeHTTP(w, r)
				return
			}
			switch {
			case info.Version != resource.Version || (info.Namespace != "" && !resource.Namespaced) ||
				(info.Name != "" && resource.Namespaced && info.Namespace == ""):
				serve.WriteError(w, r,
					serve.NotServed(schema.GroupResource{Group: info.Group, Resource: info.Resource}))
			case info.Verb == "get":
				server.Object(w, r, resource, info)
			default:
				server.Collection(w, r, resource, info)
			}
		})
	}
}

// servedResources are by what a request names. The version does not matter: in all versions they are the same objects.
var servedResources = func() map[schema.GroupResource]*history.Resource {
	served := make(map[schema.GroupResource]*history.Resource)
	for _, r := range history.Resources() {
		served[r.GroupResource()] = r
	}
	return served
}()

// isThisNode reports whether a request for nodes is for this one only: by name, or by a field selector that
// picks it.
func isThisNode(r *http.Request, info serve.RequestInfo, nodeName string) bool {
	if nodeName == "" {
		return false
	}
	if info.Name != "" {
		return info.Name == nodeName
	}
	// Whatever else is wrong with the query is told by whoever answers it.
	selector, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	if err != nil {
		return false
	}
	name, exact := selector.RequiresExactMatch("metadata.name")
	return exact && name == nodeName
}
