package serve

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// RequestInfo is the meaning of a request's method and path by the conventions of the Kubernetes API.
type RequestInfo struct {
	// IsResource is false for paths outside /api and /apis and for discovery; then only Verb is set.
	IsResource bool
	// Verb is get, list, watch, create, update, patch, delete or deletecollection; for requests that are not
	// for a resource, the method in lower case.
	Verb string
	// Group is "" for the core group.
	Group, Version string
	// Namespace is "" for resources without namespaces, and for requests across all namespaces.
	Namespace   string
	Resource    string
	Subresource string
	// Name is "" for collections.
	Name string
}

// ParseRequest reads a request's method and path. A watch by query parameter is a list here; ParseOptions distinguishes
// the two. (kube-apiserver's own parser is k8s.io/apiserver/pkg/endpoints/request; the rules are the API's.)
func ParseRequest(r *http.Request) RequestInfo {
	info := RequestInfo{Verb: strings.ToLower(r.Method)}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		info.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		info.Group, info.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return info
	}
	// The deprecated /watch/ prefix, still served by kube-apiserver.
	watch := false
	if parts[0] == "watch" {
		watch, parts = true, parts[1:]
	}
	if len(parts) == 0 {
		return info
	}
	info.IsResource = true
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		info.Namespace, parts = parts[1], parts[2:]
	}
	info.Resource = parts[0]
	if len(parts) > 1 {
		info.Name = parts[1]
	}
	if len(parts) > 2 {
		info.Subresource = strings.Join(parts[2:], "/")
	}
	info.Verb = verb(r.Method, info.Name != "", watch)
	return info
}

func verb(method string, named, watch bool) string {
	switch {
	case method == http.MethodGet && watch:
		return "watch"
	case method == http.MethodGet && named:
		return "get"
	case method == http.MethodGet:
		return "list"
	case method == http.MethodPost:
		return "create"
	case method == http.MethodPut:
		return "update"
	case method == http.MethodDelete && !named:
		return "deletecollection"
	default: // also patch and delete
		return strings.ToLower(method)
	}
}

// HeaderHas reports whether the values of a request's header, which are lists, contain a token.
func HeaderHas(r *http.Request, header, token string) bool {
	return slices.ContainsFunc(elements(r, header), func(found string) bool { return strings.EqualFold(found, token) })
}

// elements returns the elements of a header that is a list, of all its values.
func elements(r *http.Request, header string) []string {
	all := strings.Split(strings.Join(r.Header.Values(header), ","), ",")
	for i, element := range all {
		all[i] = strings.TrimSpace(element)
	}
	return all
}

// IsTrue reports whether a parameter is given and is not 0 or false. kube-apiserver reads it in the same way.
func IsTrue(query url.Values, name string) bool {
	value := query.Get(name)
	return query.Has(name) && value != "0" && !strings.EqualFold(value, "false")
}
