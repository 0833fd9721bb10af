package view

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// Altered returns why an object that lists endpoints is shown differently from the upstream's; "" if at most its
// metadata differs. A client that writes back an altered object destroys the endpoints that it was not shown. The error
// is served.ErrNotReady as long as this is not known.
func (v *View) Altered(r *served.Resource, name types.NamespacedName) (why string, err error) {
	v.source.Read(func(in facts.Reader) {
		o := in.Object(r, name)
		if in.Readable(served.Services) != nil ||
			o == nil && r == served.EndpointSlices && errors.Is(in.Readable(r), served.ErrNotReady) {
			err = served.ErrNotReady
			return
		}
		why = lockedView{v, in}.altered(r, name, o)
	})
	return why, err
}

// altered returns why an object that lists endpoints is shown altered; "" if it is not. o is nil if the object is not
// known. Legacy Endpoints, which are followed only on demand, are then judged by their name, which is that of their
// Service.
func (v lockedView) altered(r *served.Resource, name types.NamespacedName, o *facts.EndpointSet) string {
	var service *facts.Service
	var local *LocalEndpoint
	switch {
	case o != nil:
		service = o.Service
		local, _ = v.localEndpointFor(o) // without a local endpoint it is not altered for this reason
	case r == served.Endpoints:
		service = v.facts.Service(name)
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
	case o != nil && (v.counts[o].Hidden > 0 || v.choiceFor(o).Without != nil):
		return "endpoints on dead or silent nodes are hidden"
	default:
		return ""
	}
}
