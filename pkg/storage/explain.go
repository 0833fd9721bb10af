package storage

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// What Explain may be asked for in vain.
var (
	ErrNoService = errors.New("there is no such Service")
	ErrNoNode    = errors.New("there is no such node")
)

// Explanation is why a node sees of a Service what it sees.
type Explanation struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Node is whose view this is.
	Node string `json:"node"`
	// TopologyKeys are in order of preference; empty for a Service that is not governed.
	TopologyKeys []string `json:"topologyKeys,omitempty"`
	// Invalid is why the annotation topologyKeys does not parse.
	Invalid string `json:"invalid,omitempty"`
	// Unit are the node's values of the keys; a key that it lacks is missing.
	Unit map[string]string `json:"unit,omitempty"`
	// DecidingKey is the key by which endpoints are kept; "" if none are, or if the Service is not governed.
	DecidingKey string `json:"decidingKey,omitempty"`
	// Notes are what else should be known.
	Notes     []string            `json:"notes,omitempty"`
	Kept      int                 `json:"kept"`
	Hidden    int                 `json:"hidden"`
	Endpoints []ExplainedEndpoint `json:"endpoints"`
}

// ExplainedEndpoint is one endpoint of an EndpointSlice, and what becomes of it.
type ExplainedEndpoint struct {
	Slice     string   `json:"slice"`
	Addresses []string `json:"addresses"`
	// Target is the kind and name of what stands behind the endpoint, such as Pod/echo-0.
	Target string `json:"target,omitempty"`
	Node   string `json:"node,omitempty"`
	Ready  bool   `json:"ready"`
	Kept   bool   `json:"kept"`
	Reason string `json:"reason"`
}

// Explain says why a node sees of a Service what it sees: this node, or the one named. Errors: ErrNotReady,
// ErrAbsent, ErrNoService, ErrNoNode.
func (s *Store) Explain(service types.NamespacedName, asNode string) (*Explanation, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c := s.endpointslices
	if err := c.table.readable(); err != nil {
		return nil, err
	}
	svc := s.services[service]
	if svc == nil || !svc.known {
		return nil, ErrNoService
	}
	e := &Explanation{
		Namespace: service.Namespace, Service: service.Name, Node: s.options.NodeName,
		Invalid: s.invalid[service], Endpoints: []ExplainedEndpoint{},
	}
	view := nodeView{s: s, e: e, keys: svc.keys, here: s.here, self: s.options.NodeName}
	if asNode != "" && asNode != s.options.NodeName {
		n := s.nodes[asNode]
		if n == nil || !n.known {
			return nil, ErrNoNode
		}
		e.Node, view.here, view.self = asNode, n.labels, asNode
	}
	if svc.keys.Governed() && e.Invalid == "" {
		e.TopologyKeys, e.Unit = svc.keys, map[string]string{}
		for _, key := range svc.keys {
			if value, ok := view.here[key]; ok {
				e.Unit[key] = value
			}
		}
	}
	s.notes(e, view.self)
	var members []*backend
	if g := svc.groups[c]; g != nil {
		members = g.members
	}
	if err := view.explain(members); err != nil {
		return nil, err
	}
	return e, nil
}

// notes adds what concerns the whole view.
func (s *Store) notes(e *Explanation, self string) {
	if s.restored != nil {
		e.Notes = append(e.Notes, fmt.Sprintf("the upstream has not been followed since the start: this is a snapshot of %s, without what belongs to other units", s.restored.AsOf.UTC().Format("2006-01-02T15:04:05Z")))
	}
	if n := s.nodes[self]; n == nil || !n.known {
		e.Notes = append(e.Notes, fmt.Sprintf("there is no node %q in the cluster, so it belongs to no unit", self))
	}
}

// nodeView is what one node sees of one Service.
type nodeView struct {
	s        *Store
	e        *Explanation
	keys     topology.Keys
	here     topology.Labels
	self     string
	decision topology.Decision
}

// explain goes through the slices of the Service twice: what decides is a matter of all of them.
func (v *nodeView) explain(members []*backend) error {
	best := topology.NoRank
	for _, b := range members {
		v.s.scan(b, func(e wire.Endpoint) {
			if e.Ready && !v.dead(string(e.NodeName), b) {
				best = min(best, v.keys.Rank(v.here, v.s.labelsOf(e.NodeName)))
			}
		})
	}
	if v.keys.Governed() && v.e.Invalid == "" {
		v.decision = v.keys.Decide(v.here, best)
		v.e.DecidingKey = v.decision.Key()
	}
	for _, b := range sorted(members) {
		if local := v.s.localEndpointFor(b); local != nil {
			v.e.Notes = append(v.e.Notes, fmt.Sprintf("%s is shown with one endpoint instead, this node's own API server: %s port %d", b.upstream.Name, local.IP, local.Port))
		}
		var slice discoveryv1.EndpointSlice
		if err := slice.Unmarshal(wire.AppendObject(nil, b.upstream.Meta, b.upstream.Body, 0)); err != nil {
			return fmt.Errorf("decoding EndpointSlice %s/%s: %w", b.upstream.Namespace, b.upstream.Name, err)
		}
		for i := range slice.Endpoints {
			v.add(b, &slice.Endpoints[i])
		}
	}
	return nil
}

func (v *nodeView) add(b *backend, endpoint *discoveryv1.Endpoint) {
	x := ExplainedEndpoint{
		Slice: b.upstream.Name, Addresses: endpoint.Addresses, Target: target(endpoint.TargetRef),
		Node: ptr.Deref(endpoint.NodeName, ""), Ready: ptr.Deref(endpoint.Conditions.Ready, true),
	}
	x.Kept, x.Reason = v.judge(b, x.Node)
	if x.Kept {
		v.e.Kept++
	} else {
		v.e.Hidden++
	}
	v.e.Endpoints = append(v.e.Endpoints, x)
}

func target(ref *corev1.ObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Kind + "/" + ref.Name
}

// dead tells whether an endpoint on a node is hidden because the node is.
func (v *nodeView) dead(node string, b *backend) bool {
	_, dead := v.s.dead[node]
	return dead && node != v.self && v.s.hidesDead(b)
}

// judge says what becomes of an endpoint on a node, and why.
func (v *nodeView) judge(b *backend, node string) (kept bool, reason string) {
	key := v.decision.Key()
	switch {
	case v.s.localEndpointFor(b) != nil:
		return false, "replaced by this node's own API server"
	case v.dead(node, b):
		return false, fmt.Sprintf("the health service calls node %s dead", node)
	case v.e.Invalid != "":
		return false, "the annotation topologyKeys does not parse: " + v.e.Invalid
	case !v.keys.Governed():
		return true, "the Service has no topologyKeys"
	case key == "":
		return false, fmt.Sprintf("no ready endpoint shares a value of %s with node %s", strings.Join(v.keys, ", "), v.self)
	case key == topology.Any:
		return true, fmt.Sprintf("%q: no ready endpoint matches a key before it", topology.Any)
	}
	value, ok := v.here[key]
	if !ok {
		return false, fmt.Sprintf("node %s has no label %s", v.self, key)
	}
	n := v.s.nodes[node]
	switch {
	case node == "":
		return false, "it names no node"
	case n == nil || !n.known:
		return false, fmt.Sprintf("node %s is not known", node)
	}
	their, ok := n.labels[key]
	switch {
	case !ok:
		return false, fmt.Sprintf("node %s has no label %s", node, key)
	case their != value:
		return false, fmt.Sprintf("node %s has %s=%s, not %s", node, key, their, value)
	}
	return true, fmt.Sprintf("node %s has %s=%s too", node, key, value)
}
