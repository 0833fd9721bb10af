package hub

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/history"
)

// shared are the resources that a share has.
var shared = map[schema.GroupResource]*history.Resource{
	history.Services.GroupResource():       history.Services,
	history.Nodes.GroupResource():          history.Nodes,
	history.EndpointSlices.GroupResource(): history.EndpointSlices,
}

// discover is what the API's discovery says at a path below a share; nil where there is none. Clients that would rather
// have the aggregated form take this one.
func discover(path string) any {
	slices := history.EndpointSlices
	version := metav1.GroupVersionForDiscovery{GroupVersion: slices.GroupVersion().String(), Version: slices.Version}
	group := metav1.APIGroup{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: slices.Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
	}
	switch strings.Trim(path, "/") {
	case "api":
		return &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case "api/v1":
		return resourcesOf("v1", resourceFor(history.Services, "service", "svc"),
			resourceFor(history.Nodes, "node", "no"))
	case "apis":
		return &metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group},
		}
	case "apis/" + group.Name:
		return &group
	case "apis/" + version.GroupVersion:
		return resourcesOf(version.GroupVersion, resourceFor(slices, "endpointslice"))
	default:
		return nil
	}
}

func resourcesOf(groupVersion string, resources ...metav1.APIResource) *metav1.APIResourceList {
	return &metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion,
		APIResources: resources,
	}
}

func resourceFor(r *history.Resource, singular string, shortNames ...string) metav1.APIResource {
	return metav1.APIResource{
		Name: r.Resource, SingularName: singular, ShortNames: shortNames,
		Namespaced: r.Namespaced, Kind: r.Kind, Verbs: metav1.Verbs{"get", "list"},
	}
}
