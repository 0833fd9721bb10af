package filters

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage"
)

// WithServed answers GET, LIST and WATCH of the served resources from the cache. Of nodes only this one is
// served; requests for others go on.
//
// Another version of a served resource is answered 404, as by a server that does not have it: passed on, it
// would come back unpruned. Requests for a subresource, and those that write, go on.
func WithServed(server *serve.Server, nodeName string) Filter {
	served := make(map[schema.GroupResource]*storage.Resource)
	for _, r := range storage.Resources() {
		served[r.GroupResource()] = r
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := requestInfo(r)
			resource := served[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
			if !info.IsResource || resource == nil || info.Subresource != "" || !reads(info.Verb) {
				next.ServeHTTP(w, r)
				return
			}
			if resource == storage.Nodes && !isThisNode(r, info, nodeName) {
				next.ServeHTTP(w, r)
				return
			}
			switch {
			case info.Version != resource.Version || (info.Namespace != "" && !resource.Namespaced) || (info.Name != "" && resource.Namespaced && info.Namespace == ""):
				serve.WriteError(w, r, serve.NotServed(schema.GroupResource{Group: info.Group, Resource: info.Resource}))
			case info.Verb == "get":
				server.Object(w, r, resource, info)
			default:
				server.Collection(w, r, resource, info)
			}
		})
	}
}

func reads(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// isThisNode tells whether a request for nodes is for this one only: by name, or by a field selector that
// picks it.
func isThisNode(r *http.Request, info serve.RequestInfo, nodeName string) bool {
	if nodeName == "" {
		return false
	}
	if info.Name != "" {
		return info.Name == nodeName
	}
	options, err := serve.ParseOptions(r.URL.Query(), storage.Nodes, info)
	if err != nil || options.Selector.Fields == nil {
		return false
	}
	name, exact := options.Selector.Fields.RequiresExactMatch("metadata.name")
	return exact && name == nodeName
}
