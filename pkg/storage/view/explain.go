package view

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Errors of Explain.
var (
	ErrNoService = errors.New("there is no such Service")
	ErrNoNode    = errors.New("there is no such node")
)

// Explanation has the endpoints of a Service that a node sees or does not see, and why.
type Explanation struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Node is the name of the node.
	Node string `json:"node"`
	// Annotation is the name of the Service's annotation that has the keys; "" if it has none.
	Annotation string `json:"annotation,omitempty"`
	// TopologyKeys are in order of preference; empty for a Service that is not governed.
	TopologyKeys []string `json:"topologyKeys,omitempty"`
	// Invalid is why the annotation does not parse.
	Invalid string `json:"invalid,omitempty"`
	// Site has the node's values of the keys, without keys that the node lacks.
	Site map[string]string `json:"site,omitempty"`
	// DecidingKey is the key by which endpoints are kept; "" if none are, if the Service is not governed, or if its
	// ports have different ones.
	DecidingKey string `json:"decidingKey,omitempty"`
	// Ports have the deciding keys if they differ between the ports.
	Ports []ExplainedPort `json:"ports,omitempty"`
	// Notes are other facts worth knowing.
	Notes     []string            `json:"notes,omitempty"`
	Kept      int                 `json:"kept"`
	Hidden    int                 `json:"hidden"`
	Endpoints []ExplainedEndpoint `json:"endpoints"`
}

// ExplainedPort is one port of the Service's EndpointSlices.
type ExplainedPort struct {
	// AddressType is IPv4 or IPv6.
	AddressType string `json:"addressType"`
	Name        string `json:"name,omitempty"`
	Protocol    string `json:"protocol"`
	// DecidingKey is the key by which endpoints are kept for this port; "" if none are.
	DecidingKey string `json:"decidingKey,omitempty"`
}

// ExplainedEndpoint is one endpoint of an EndpointSlice, and whether it is kept.
type ExplainedEndpoint struct {
	Slice     string   `json:"slice"`
	Addresses []string `json:"addresses"`
	// Target is the kind and name of the endpoint's target, such as Pod/echo-0.
	Target string `json:"target,omitempty"`
	Node   string `json:"node,omitempty"`
	Ready  bool   `json:"ready"`
	Kept   bool   `json:"kept"`
	Reason string `json:"reason"`
}

// Explain explains which endpoints of a Service the node of the View sees, and why; with a name in asNode, for another
// node. Errors: served.ErrNotReady, served.ErrAbsent, ErrNoService, ErrNoNode.
func (v *View) Explain(service types.NamespacedName, nodeName, asNode string) (*Explanation, error) {
	if _, err := v.history.Readable(served.EndpointSlices); err != nil {
		return nil, err
	}
	q := question{own: nodeName, e: &Explanation{
		Namespace: service.Namespace,
		Service:   service.Name,
		Node:      cmp.Or(asNode, nodeName),
		Endpoints: []ExplainedEndpoint{},
	}}
	var err error
	v.source.Read(func(in facts.Reader) { err = reading{v, in}.gather(service, nodeName, &q) })
	if err != nil {
		return nil, err
	}
	// Decoding objects and writing reasons takes long, so the facts may change meanwhile.
	return q.e, q.answer()
}

// question has the facts of one moment on which an Explanation depends.
type question struct {
	e       *Explanation
	keys    topology.Keys
	here    topology.Labels
	members []member
	// nodes has the labels of the known nodes that the members name.
	nodes map[string]topology.Labels
	// own is the name of the node of the View.
	own string
}

type member struct {
	upstream *wire.Object
	// body is the slice's body with corrected endpoints. corrections has one for each endpoint of the upstream's body.
	body        []byte
	corrections []correction
	local       *LocalEndpoint
	// dead has the nodes that a health service calls dead. silent has these, and those that no longer answer their
	// neighbours.
	dead, silent map[string]bool
	// suspected has the nodes whose machines answer the neighbours, but whose wrappers do not.
	suspected map[string]bool
	// list has the slice's ports, and the endpoints of body; tiers are the tiers of these, in the same order. choice is
	// how the slice is shown.
	list   topology.List
	tiers  []topology.Tier
	choice topology.Choice
}

// correction is how an endpoint differs from the upstream's. made is set if its node reports its pod differently, and
// gone as well if the node does not run the pod; asOf and why are the time and reason of that report. tier is the tier
// of the endpoint as it is shown.
type correction struct {
	made, gone bool
	tier       topology.Tier
	asOf       time.Time
	why        string
}

// gather copies what the answer needs from the facts.
func (v reading) gather(service types.NamespacedName, nodeName string, q *question) error {
	s := v.facts.Service(service)
	if s == nil || s.Upstream == nil {
		return ErrNoService
	}
	n := v.facts.Node(q.e.Node)
	switch {
	case n != nil:
		q.here = n.Labels
	case q.e.Node != nodeName:
		return ErrNoNode
	default:
		q.e.Notes = append(q.e.Notes, fmt.Sprintf(
			"there is no node %q in the cluster, so it belongs to no site", nodeName))
	}
	if restored := v.facts.RestoredState(); restored != nil {
		q.e.Notes = append(q.e.Notes, fmt.Sprintf(
			"the upstream has not been followed since the start: this is a snapshot of %s, without what belongs to "+
				"other sites",
			timeOf(restored.AsOf)))
	}
	q.keys, q.e.Invalid = s.Keys, v.facts.InvalidReason(service)
	_, q.e.Annotation, _ = topology.KeysOf(s.Upstream.Annotations()) // Invalid has the error
	q.nodes = make(map[string]topology.Labels)
	for _, o := range s.Objects(served.EndpointSlices) {
		local, notReplaced := v.localEndpointFor(o)
		if notReplaced != nil {
			q.e.Notes = append(q.e.Notes, fmt.Sprintf("%s keeps its endpoints: %v", o.Upstream.Name, notReplaced))
		}
		m := member{
			upstream: o.Upstream, body: o.Body(), local: local,
			dead: make(map[string]bool), silent: make(map[string]bool), suspected: make(map[string]bool),
		}
		err := o.Codec().Scan(o.Upstream.Body, func(e wire.Endpoint) {
			name := string(e.NodeName)
			if n := v.facts.Node(name); n != nil {
				q.nodes[name] = n.Labels
			}
			m.dead[name] = name != q.e.Node && v.facts.Dead(s, e.NodeName)
			m.silent[name] = name != q.e.Node && v.facts.Silent(s, e.NodeName)
			m.suspected[name] = name != q.e.Node && v.facts.SuspectedNode(s, e.NodeName)
			c, asOf := o.Correction(e)
			said := correction{made: c != nil && !e.Is(c), asOf: asOf, why: v.facts.Why(o.Upstream.Namespace, e)}
			said.gone = c != nil && c.Gone
			m.corrections = append(m.corrections, said)
		})
		if err == nil {
			m.list, m.tiers, err = v.list(s, o, q)
		}
		if err != nil {
			return err
		}
		q.members = append(q.members, m)
	}
	return nil
}

// list returns the slice in the form that package topology decides on, as the node of the question sees it.
func (v reading) list(
	s *facts.Service, o *facts.Object, q *question,
) (list topology.List, tiers []topology.Tier, err error) {
	if !s.DecidesAsOne() {
		var addressType []byte
		addressType, err = wire.ScanPorts(o.Upstream.Body, func(p wire.Port) {
			if p.Numbered {
				list.Ports = append(list.Ports, topology.Port{Name: string(p.Name), Protocol: string(p.Protocol)})
			}
		})
		for i := range list.Ports {
			list.Ports[i].AddressType = string(addressType)
		}
	}
	list.Counts = &topology.Counts{}
	err = cmp.Or(err, o.Codec().Scan(o.Body(), func(e wire.Endpoint) {
		tier := v.facts.TierFrom(q.e.Node, s, o.Upstream.Namespace, e)
		tiers = append(tiers, tier)
		list.Add(tier, s.Keys, v.facts.LabelsOf(e.NodeName), 1)
	}))
	return list, tiers, err
}

// decide chooses how each slice is shown.
func (q *question) decide() {
	all := make([]topology.List, len(q.members))
	for i := range q.members {
		all[i] = q.members[i].list
	}
	for i, choice := range q.keys.Choices(q.here, all) {
		q.members[i].choice = choice
	}
}

// nameKeys sets the deciding key, or that of each port if they differ.
func (q *question) nameKeys() {
	keys := make(map[topology.Port]string)
	q.e.DecidingKey = q.keys.Decide(q.here, topology.NoRank).Key() // for a Service without slices
	differ := false
	for i, m := range q.members {
		key := q.decision(m).Key()
		differ = differ || i > 0 && key != q.e.DecidingKey
		q.e.DecidingKey = key
		for _, port := range m.list.Ports {
			if !slices.Contains(m.choice.Without, port) {
				keys[port] = key
			}
		}
	}
	if !differ {
		return
	}
	q.e.DecidingKey = ""
	for port, key := range keys {
		q.e.Ports = append(q.e.Ports, ExplainedPort{port.AddressType, port.Name, port.Protocol, key})
	}
	slices.SortFunc(q.e.Ports, func(a, b ExplainedPort) int {
		return cmp.Or(cmp.Compare(a.AddressType, b.AddressType), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Protocol, b.Protocol))
	})
}

func (q *question) decision(m member) topology.Decision {
	return q.keys.Decide(q.here, m.choice.Rank())
}

// answer completes the Explanation.
func (q *question) answer() error {
	slices.SortFunc(q.members, func(a, b member) int { return cmp.Compare(a.upstream.Name, b.upstream.Name) })
	q.decide()
	if q.keys.Governed() && q.e.Invalid == "" {
		q.e.TopologyKeys, q.e.Site = q.keys, map[string]string{}
		for _, key := range q.keys {
			if value, ok := q.here[key]; ok {
				q.e.Site[key] = value
			}
		}
		q.nameKeys()
	}
	for _, m := range q.members {
		if m.local != nil {
			q.e.Notes = append(q.e.Notes,
				fmt.Sprintf("%s is shown with one endpoint instead, this node's own API server: %s port %d",
					m.upstream.Name, m.local.IP, m.local.Port))
		}
		for _, port := range m.choice.Without {
			q.e.Notes = append(q.e.Notes, fmt.Sprintf("%s is shown without port %s, for which other slices have "+
				"better endpoints", m.upstream.Name, cmp.Or(port.Name, port.Protocol)))
		}
		if err := q.addAll(m); err != nil {
			return err
		}
	}
	return nil
}

func (q *question) addAll(m member) error {
	upstream, err := decodeSlice(m.upstream, m.upstream.Body)
	if err != nil {
		return err
	}
	corrected, err := decodeSlice(m.upstream, m.body)
	if err != nil {
		return err
	}
	rest, tiers := corrected.Endpoints, m.tiers // without those that are gone, in the same order
	for i := range upstream.Endpoints {
		endpoint, c := &upstream.Endpoints[i], m.corrections[i]
		if !c.gone {
			endpoint, rest = &rest[0], rest[1:]
			c.tier, tiers = tiers[0], tiers[1:]
		}
		q.add(m, endpoint, c)
	}
	return nil
}

// add adds an endpoint, as it is shown.
func (q *question) add(m member, endpoint *discoveryv1.Endpoint, c correction) {
	x := ExplainedEndpoint{
		Slice: m.upstream.Name, Addresses: endpoint.Addresses, Target: target(endpoint.TargetRef),
		Node: ptr.Deref(endpoint.NodeName, ""), Ready: ptr.Deref(endpoint.Conditions.Ready, true),
	}
	x.Kept, x.Reason = q.judge(m, x.Node)
	who := "its container runtime"
	if x.Node != q.own {
		who = "that node itself"
	}
	switch {
	case c.gone:
		x.Kept, x.Reason = false, fmt.Sprintf("node %s does not run its pod (as of %s, %s says so)", x.Node,
			timeOf(c.asOf), who)
	case c.made:
		x.Reason += fmt.Sprintf("; its address and readiness are those with which node %s runs its pod (as of "+
			"%s, %s says so)", x.Node, timeOf(c.asOf), who)
	}
	if c.why != "" && !c.gone {
		x.Reason += "; " + c.why
	}
	suspicion := "its own node suspects that it does not answer"
	switch {
	case m.dead[x.Node]:
		suspicion = fmt.Sprintf("the health service calls node %s dead", x.Node)
	case m.silent[x.Node]:
		suspicion = fmt.Sprintf("the neighbours do not hear node %s any more", x.Node)
	case m.suspected[x.Node]:
		suspicion = fmt.Sprintf("node %s is reached, and its wrapper does not answer its neighbours", x.Node)
	}
	switch {
	case !x.Kept || c.tier != topology.Suspected && c.tier != topology.Silent:
	case !m.choice.Hides(c.tier):
		x.Reason += fmt.Sprintf("; %s, but no other endpoint is ready", suspicion)
	default:
		x.Kept, x.Reason = false, suspicion
		if m.silent[x.Node] && !m.dead[x.Node] {
			x.Reason += " (site exchange)"
		} else if !m.silent[x.Node] && !m.suspected[x.Node] && c.why != "" {
			x.Reason += ": " + c.why
		}
	}
	if x.Kept {
		q.e.Kept++
	} else {
		q.e.Hidden++
	}
	q.e.Endpoints = append(q.e.Endpoints, x)
}

func timeOf(at time.Time) string { return at.UTC().Format(time.RFC3339) }

func target(ref *corev1.ObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Kind + "/" + ref.Name
}

// forPort returns the beginning of a reason that applies to one port of several.
func (q *question) forPort() string {
	if len(q.e.Ports) == 0 {
		return ""
	}
	return "for a port of this slice, "
}

// judge reports whether an endpoint on a node is kept, and why.
func (q *question) judge(m member, node string) (kept bool, reason string) {
	key, self := q.decision(m).Key(), q.e.Node
	switch {
	case m.local != nil:
		return false, "replaced by this node's own API server"
	case q.e.Invalid != "":
		return false, "the " + q.e.Invalid
	case !q.keys.Governed():
		return true, "the Service has no topologyKeys"
	case key == "":
		return false, fmt.Sprintf("%sno ready endpoint shares a value of %s with node %s", q.forPort(),
			strings.Join(q.keys, ", "), self)
	case key == topology.Any:
		return true, fmt.Sprintf("%q: %sno ready endpoint matches a key before it", topology.Any, q.forPort())
	}
	value, ok := q.here[key]
	if !ok {
		return false, fmt.Sprintf("node %s has no label %s", self, key)
	}
	labels, known := q.nodes[node]
	switch {
	case node == "":
		return false, "it names no node"
	case !known:
		return false, fmt.Sprintf("node %s is not known", node)
	}
	their, ok := labels[key]
	switch {
	case !ok:
		return false, fmt.Sprintf("node %s has no label %s", node, key)
	case their != value:
		return false, fmt.Sprintf("node %s has %s=%s, not %s", node, key, their, value)
	}
	return true, fmt.Sprintf("node %s has %s=%s too", node, key, value)
}

// decodeSlice decodes a slice with another body than its own.
func decodeSlice(o *wire.Object, body []byte) (*discoveryv1.EndpointSlice, error) {
	slice := &discoveryv1.EndpointSlice{}
	if err := slice.Unmarshal(wire.AppendObject(nil, o.Meta, body, 0)); err != nil {
		return nil, fmt.Errorf("decoding EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
	}
	return slice, nil
}
