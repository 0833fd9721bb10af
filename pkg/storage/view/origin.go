package view

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Origin says how the upstream's object relates to the object that is shown.
type Origin struct {
	// Revision is the revision of the object that is shown; 0 if it is not shown.
	Revision uint64
	// ResourceVersion is the upstream's resourceVersion; "" if it is not known, as for objects of a State from disk.
	ResourceVersion string
	// Altered is why the object that is shown differs from the upstream's; "" if at most its metadata differs. A client
	// that writes back an altered object destroys what it was not shown.
	Altered string
}

// Origin returns the Origin of an object. The error is served.ErrNotReady as long as it is not known whether the
// object is shown altered.
func (v *View) Origin(r *served.Resource, name types.NamespacedName) (Origin, error) {
	var origin Origin
	var err error
	v.source.Read(func(in facts.Reader) {
		// If the resource cannot be read, none of its objects are shown.
		if shown, readErr := v.history.Get(r, name, 0); readErr == nil && shown != nil {
			origin.Revision = shown.Revision
		}
		if upstream := in.Upstream(r, name); upstream != nil {
			origin.ResourceVersion = upstream.ResourceVersion
		}
		if !listsEndpoints(r) {
			return
		}
		if in.State(served.Services) != served.Ready {
			err = served.ErrNotReady
			return
		}
		o := in.Object(r, name)
		if o == nil && r == served.EndpointSlices && in.State(r) == served.NotReady {
			err = served.ErrNotReady
		}
		origin.Altered = reading{v, in}.altered(r, name, o)
	})
	return origin, err
}

// altered returns why an object that lists endpoints is shown altered; "" if it is not. o is nil if the object is not
// known. That does not matter for legacy Endpoints, which are followed on demand only: their name is that of their
// Service.
func (v reading) altered(r *served.Resource, name types.NamespacedName, o *facts.Object) string {
	var service *facts.Service
	switch {
	case o != nil:
		service = o.Service
	case r == served.Endpoints:
		service = v.facts.Service(name)
	}
	var local *LocalEndpoint
	if o != nil {
		local, _ = v.localEndpointFor(o) // without an endpoint, whatever the reason, it is not altered so
	}
	switch {
	case local != nil:
		return "its endpoint is that of the API server on this node"
	case service != nil && service.Upstream == nil:
		return fmt.Sprintf("its Service %s is not known, so none of its endpoints are shown", service.Name)
	case service != nil && service.Keys.Governed():
		return fmt.Sprintf("its Service %s has topologyKeys, so endpoints outside of this node's site are left out",
			service.Name)
	case o != nil && o.Corrected():
		return "endpoints on nodes that the API server cannot reach are shown as these nodes run their pods"
	case o != nil && (v.counts[o].Hidden > 0 || v.choice(o).Without != nil):
		return "endpoints on dead or silent nodes are left out"
	default:
		return ""
	}
}
