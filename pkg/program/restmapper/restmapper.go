// Package restmapper maps kinds to resources without a request to the API server: a program that knows its kinds need
// not read everything that the API server serves, and can start while that is away.
package restmapper

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// New maps the kinds of a scheme, and further ones that it lacks. Those of root have no namespace, all others have one.
func New(scheme *runtime.Scheme, root []schema.GroupVersionKind, further ...schema.GroupVersionKind) meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	for _, kind := range further {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	for _, kind := range root {
		mapper.Add(kind, meta.RESTScopeRoot)
		kind.Kind += "List" // a cache also asks whether lists have a namespace
		mapper.Add(kind, meta.RESTScopeRoot)
	}
	return mapper
}
