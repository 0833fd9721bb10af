package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// GroupName is the API group of the hub.
const GroupName = "hub.superedge.io"

// GroupVersion is that of this package.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

// APIServiceName is the name of the APIService.
const APIServiceName = "v1alpha1." + GroupName

// GroupVersionPath is where the API server has the group's resources.
const GroupVersionPath = "/apis/" + GroupName + "/v1alpha1"
