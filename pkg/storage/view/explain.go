package view

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

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
//
// The facts do not change meanwhile: some milliseconds for a Service of 1,000 endpoints, when a person asks.
func (v *View) Explain(service types.NamespacedName, nodeName, asNode string) (e *Explanation, err error) {
	if _, err := v.history.Readable(served.EndpointSlices); err != nil {
		return nil, err
	}
	e = &Explanation{
		Namespace: service.Namespace,
		Service:   service.Name,
		Node:      cmp.Or(asNode, nodeName),
		Endpoints: []ExplainedEndpoint{},
	}
	v.source.Read(func(in facts.Reader) {
		err = (&question{lockedView: lockedView{v, in}, e: e, own: nodeName}).answer(service)
	})
	return e, err
}

// question is what an Explanation is made from.
type question struct {
	lockedView

	e *Explanation
	// own is the name of the node of the View.
	own string
	// service is the Service, and here are the labels of the node that the Explanation is for.
	service *facts.Service
	here    topology.Labels
	members []member
}

// member is an EndpointSlice of the Service.
type member struct {
	*facts.EndpointSet

	local *LocalEndpoint
	// list has the slice's ports and endpoints, with corrections; corrected are these endpoints, in the same order.
	// choice is how the slice is shown.
	list      topology.List
	corrected []correctedEndpoint
	choice    topology.Choice
}

// correctedEndpoint is an endpoint with its correction, and its tier.
type correctedEndpoint struct {
	wire.Endpoint

	tier topology.Tier
}

// answer completes the Explanation.
func (q *question) answer(service types.NamespacedName) error {
	q.service = q.facts.Service(service)
	if q.service == nil || q.service.Upstream == nil {
		return ErrNoService
	}
	n := q.facts.Node(q.e.Node)
	switch {
	case n != nil:
		q.here = n.Labels
	case q.e.Node != q.own:
		return ErrNoNode
	default:
		q.addNote("there is no node %q in the cluster, so it belongs to no site", q.own)
	}
	if restored := q.facts.Restored(); restored != nil {
		q.addNote("the upstream has not been followed since the start: this is a snapshot of %s, without what belongs "+
			"to other sites", timeOf(restored.AsOf))
	}
	q.e.Invalid = q.facts.InvalidReason(service)
	_, q.e.Annotation, _ = topology.KeysOf(q.service.Upstream.Annotations()) // Invalid has the error
	if err := q.choose(); err != nil {
		return err
	}
	if keys := q.service.Keys; keys.Governed() && q.e.Invalid == "" {
		q.e.TopologyKeys, q.e.Site = keys, map[string]string{}
		for _, key := range keys {
			if value, ok := q.here[key]; ok {
				q.e.Site[key] = value
			}
		}
		q.nameKeys()
	}
	for _, m := range q.members {
		if err := q.addAll(m); err != nil {
			return err
		}
	}
	return nil
}

func (q *question) addNote(format string, args ...any) {
	q.e.Notes = append(q.e.Notes, fmt.Sprintf(format, args...))
}

// choose chooses how each slice is shown.
func (q *question) choose() error {
	var lists []topology.List
	for _, o := range slices.SortedFunc(slices.Values(q.service.Objects(served.EndpointSlices)), compareObjects) {
		m := member{EndpointSet: o, list: topology.List{Ports: q.service.Ports(o), Counts: &topology.Counts{}}}
		var notReplaced error
		if m.local, notReplaced = q.localEndpointFor(o); notReplaced != nil {
			q.addNote("%s keeps its endpoints: %v", o.Upstream.Name, notReplaced)
		}
		err := o.Codec().Scan(o.Body(), func(e wire.Endpoint) {
			tier := o.TierFrom(q.e.Node, e)
			m.corrected = append(m.corrected, correctedEndpoint{e, tier})
			m.list.Add(tier, q.service.Keys, q.facts.LabelsOf(e.NodeName), 1)
		})
		if err != nil {
			return err
		}
		q.members, lists = append(q.members, m), append(lists, m.list)
	}
	for i, choice := range q.service.Keys.Choices(q.here, lists) {
		q.members[i].choice = choice
	}
	return nil
}

// nameKeys sets the deciding key, or that of each port if they differ.
func (q *question) nameKeys() {
	keys := make(map[topology.Port]string)
	q.e.DecidingKey = q.service.Keys.Decide(q.here, topology.NoRank).Key() // for a Service without slices
	differ := false
	for i, m := range q.members {
		key := q.key(m)
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
	for _, port := range slices.SortedFunc(maps.Keys(keys), topology.Port.Compare) {
		q.e.Ports = append(q.e.Ports, ExplainedPort{port.AddressType, port.Name, port.Protocol, keys[port]})
	}
}

// key returns the key that decides for a slice; "" if nothing is kept.
func (q *question) key(m member) string { return q.service.Keys.Decide(q.here, m.choice.Rank()).Key() }

func (q *question) addAll(m member) error {
	name := m.Upstream.Name
	if m.local != nil {
		q.addNote("%s is shown with one endpoint instead, this node's own API server: %s port %d", name, m.local.IP,
			m.local.Port)
	}
	for _, port := range m.choice.Without {
		q.addNote("%s is shown without port %s, for which other slices have better endpoints", name,
			cmp.Or(port.Name, port.Protocol))
	}
	return m.Codec().Scan(m.Upstream.Body, func(e wire.Endpoint) {
		shown := correctedEndpoint{e, topology.Unusable}
		if !m.Correction(e).LeavesOut(e) {
			shown, m.corrected = m.corrected[0], m.corrected[1:]
		}
		q.add(m, e, shown)
	})
}

// add adds an endpoint of the upstream, as it is shown.
func (q *question) add(m member, e wire.Endpoint, shown correctedEndpoint) {
	x := ExplainedEndpoint{
		Slice: m.Upstream.Name, Addresses: []string{string(shown.Address)},
		Node: string(e.NodeName), Ready: shown.Ready,
	}
	if kind, _, name, _, ok := shown.Target(); ok {
		x.Target = fmt.Sprintf("%s/%s", kind, name)
	}
	x.Kept, x.Reason = q.judge(m, x.Node)
	who := "its container runtime"
	if x.Node != q.own {
		who = "that node itself"
	}
	report, pod, _ := m.Report(e)
	why := pod.Why
	switch c := m.Correction(e); {
	case c != nil && c.Unusable:
		x.Kept, x.Reason = false, fmt.Sprintf("node %s does not run its pod (as of %s, %s says so)", x.Node,
			timeOf(report.AsOf), who)
		why = ""
	case c != nil && !e.Matches(c):
		x.Reason += fmt.Sprintf("; its address and readiness are those with which node %s runs its pod (as of "+
			"%s, %s says so)", x.Node, timeOf(report.AsOf), who)
	}
	if why != "" {
		x.Reason += "; " + why
	}
	if x.Kept && (shown.tier == topology.Suspected || shown.tier == topology.Silent) {
		suspicion, detail := q.suspicion(e, why)
		if x.Kept = !m.choice.Hides(shown.tier); x.Kept {
			x.Reason += fmt.Sprintf("; %s, but no other endpoint is ready", suspicion)
		} else {
			x.Reason = suspicion + detail
		}
	}
	if x.Kept {
		q.e.Kept++
	} else {
		q.e.Hidden++
	}
	q.e.Endpoints = append(q.e.Endpoints, x)
}

// suspicion returns why an endpoint may not answer, and a detail. why is the reason of the endpoint's own node.
func (q *question) suspicion(e wire.Endpoint, why string) (suspicion, detail string) {
	doubt := q.facts.DoubtOf(q.service, e.NodeName)
	switch {
	case string(e.NodeName) == q.e.Node: // a node does not suspect itself
	case doubt == facts.Dead:
		return fmt.Sprintf("the health service calls node %s dead", e.NodeName), ""
	case doubt == facts.Silent:
		return fmt.Sprintf("node %s does not answer its neighbours", e.NodeName), " (site exchange)"
	case doubt == facts.Unanswering:
		return fmt.Sprintf("node %s is reached, and its wrapper does not answer its neighbours", e.NodeName), ""
	}
	if why != "" {
		detail = ": " + why
	}
	return "its own node suspects that it does not answer", detail
}

func timeOf(at time.Time) string { return at.UTC().Format(time.RFC3339) }

// judge reports whether an endpoint on a node is kept, and why.
func (q *question) judge(m member, node string) (kept bool, reason string) {
	keys, key, self := q.service.Keys, q.key(m), q.e.Node
	forPort := "" // the beginning of a reason that applies to one port of several
	if len(q.e.Ports) > 0 {
		forPort = "for a port of this slice, "
	}
	switch {
	case m.local != nil:
		return false, "replaced by this node's own API server"
	case q.e.Invalid != "":
		return false, "the " + q.e.Invalid
	case !keys.Governed():
		return true, "the Service has no topologyKeys"
	case key == "":
		return false, fmt.Sprintf("%sno ready endpoint shares a value of %s with node %s", forPort,
			strings.Join(keys, ", "), self)
	case key == topology.Any:
		return true, fmt.Sprintf("%q: %sno ready endpoint matches a key before it", topology.Any, forPort)
	}
	value, ok := q.here[key]
	if !ok {
		return false, fmt.Sprintf("node %s has no label %s", self, key)
	}
	their, ok := q.facts.LabelsOf([]byte(node))[key]
	switch {
	case node == "":
		return false, "it names no node"
	case q.facts.Node(node) == nil:
		return false, fmt.Sprintf("node %s is not known", node)
	case !ok:
		return false, fmt.Sprintf("node %s has no label %s", node, key)
	case their != value:
		return false, fmt.Sprintf("node %s has %s=%s, not %s", node, key, their, value)
	}
	return true, fmt.Sprintf("node %s has %s=%s too", node, key, value)
}
