package hub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
)

// shared are the resources that a share has, with what kubectl knows them by.
var shared = []sharedResource{
	{history.Services, "service", []string{"svc"}},
	{history.Nodes, "node", []string{"no"}},
	{history.EndpointSlices, "endpointslice", nil},
}

type sharedResource struct {
	*history.Resource

	singular   string
	shortNames []string
}

// sharedAs is the resource of that name; nil if a share has no such resource.
func sharedAs(name schema.GroupResource) *history.Resource {
	for _, r := range shared {
		if r.GroupResource() == name {
			return r.Resource
		}
	}
	return nil
}

// discover is what the API's discovery says at a path below a share; nil where there is none. Clients that would rather
// have the aggregated form take this one.
func discover(path string) any {
	switch path = strings.Trim(path, "/"); path {
	case "api":
		return &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "apis":
		groups := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, version := range sharedVersions() {
			if version.Group != "" {
				groups.Groups = append(groups.Groups, groupOf(version))
			}
		}
		return groups
	}
	for _, version := range sharedVersions() {
		switch {
		case path == "api/v1" && version.Group == "", path == "apis/"+version.String():
			return resourcesOf(version)
		case path == "apis/"+version.Group:
			group := groupOf(version)
			group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &group
		}
	}
	return nil
}

// sharedVersions are the groups of the shared resources, each with its version.
func sharedVersions() []schema.GroupVersion {
	var versions []schema.GroupVersion
	for _, r := range shared {
		if !slices.Contains(versions, r.GroupVersion()) {
			versions = append(versions, r.GroupVersion())
		}
	}
	return versions
}

func groupOf(version schema.GroupVersion) metav1.APIGroup {
	served := metav1.GroupVersionForDiscovery{GroupVersion: version.String(), Version: version.Version}
	return metav1.APIGroup{
		Name:             version.Group,
		Versions:         []metav1.GroupVersionForDiscovery{served},
		PreferredVersion: served,
	}
}

func resourcesOf(version schema.GroupVersion) *metav1.APIResourceList {
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: version.String(),
	}
	for _, r := range shared {
		if r.GroupVersion() == version {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name:         r.GroupVersionResource.Resource,
				SingularName: r.singular,
				ShortNames:   r.shortNames,
				Namespaced:   r.Namespaced,
				Kind:         r.Kind, Verbs: metav1.Verbs{"get", "list"},
			})
		}
	}
	return list
}

// writeDiscovery answers a request for discovery.
func writeDiscovery(w http.ResponseWriter, r *http.Request, answer any) {
	body, err := json.Marshal(answer)
	if err != nil {
		serve.WriteError(w, r, fmt.Errorf("encoding the answer: %w", err))
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.Header().Set("Cache-Control", "no-cache, private")
	_, _ = w.Write(body) // a client that is gone needs no error
}
