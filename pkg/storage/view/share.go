package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// share is what the nodes of one class are given of slices and of other nodes. Shares.mu guards it, and what it reads
// of the facts is guarded by their lock.
type share struct {
	name string
	// here are the values that the nodes of the class have of the keys in use.
	here    topology.Labels
	history *history.History
	members map[string]*classMember
	// governed has the slices of governed Services that are in the share, with the nodes that their endpoints are on.
	governed map[*facts.Object][]string
	// named counts who names a node: slices of governed, and the node itself if it is a member.
	named map[string]int
}

// className is the name of the class of nodes with these values of the keys in use.
func className(here topology.Labels) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(here)) {
		b.WriteString(key + "=" + here[key] + ",")
	}
	return b.String()
}

// valuesOf are the values of the keys in use that a node has.
func valuesOf(f *facts.Facts, node string) topology.Labels {
	here := topology.Labels{}
	if n := f.Node(node); n != nil {
		for _, key := range f.Keys() {
			if value, ok := n.Labels[key]; ok {
				here[key] = value
			}
		}
	}
	return here
}

// inEveryShare reports whether a slice is in every share with all of its endpoints: because no key governs it, because
// the key "*" matches every endpoint, or because it is that of default/kubernetes, whose endpoint the nodes replace by
// that of their own API server.
func inEveryShare(o *facts.Object) bool {
	return !o.Gone &&
		(o.Service == nil || !o.Service.Keys.Governed() || slices.Contains(o.Service.Keys, topology.Any) ||
			o.Service.Name == facts.KubernetesService)
}

// shareBody is the body of an object with the endpoints that one of the Service's keys matches for a node with labels
// here: those that the node may ever have to do with.
func shareBody(f *facts.Facts, o *facts.Object, here topology.Labels) []byte {
	body, err := o.Codec().Prune(o.Upstream.Body, func(e wire.Endpoint) bool {
		return o.Service.Keys.Rank(here, f.LabelsOf(e.NodeName)) != topology.NoRank
	})
	if err != nil {
		panic("view: an object that was readable is no longer: " + err.Error())
	}
	return slices.Clip(body)
}

// cut is a slice of a governed Service in pieces, with the nodes of its endpoints; nil for an endpoint that names none.
type cut struct {
	*wire.Parts

	nodes []*facts.Node
}

// split takes a body of a slice apart that the facts have read without error.
func split(f *facts.Facts, body []byte) *cut {
	parts, err := wire.SplitSlice(body)
	if err != nil {
		panic("view: a slice that was readable is no longer: " + err.Error())
	}
	c := &cut{parts, make([]*facts.Node, len(parts.Endpoints))}
	for i, e := range parts.Endpoints {
		c.nodes[i] = f.NodeNamed(e.NodeName)
	}
	return c
}

// labels are those of the node of an endpoint; nil if it is not known.
func (c *cut) labels(place int) topology.Labels {
	if n := c.nodes[place]; n != nil {
		return n.Labels
	}
	return nil
}

// slice is how the share has a slice; without a version it has it no more. It notes whose mention ended or began.
func (s *share) slice(in *Shares, o *facts.Object, mentioned map[string]struct{}) shown {
	one := shown{resource: history.EndpointSlices, key: o.Name()}
	governed := !o.Gone && o.Service != nil && o.Service.Keys.Governed() && o.Service.Name != facts.KubernetesService
	var body []byte
	var nodes []string
	endpoints := 0
	switch {
	case governed:
		body, nodes, endpoints = s.part(in, o)
	case !o.Gone:
		body = o.Upstream.Body
	}
	if before := s.governed[o]; !slices.Equal(before, nodes) {
		for _, name := range before {
			s.mention(in, name, -1, mentioned)
		}
		for _, name := range nodes {
			s.mention(in, name, 1, mentioned)
		}
	}
	if endpoints > 0 {
		s.governed[o] = nodes
	} else {
		delete(s.governed, o)
	}
	if body == nil || (governed && endpoints == 0) {
		return one
	}
	version, _ := history.NewVersion(history.EndpointSlices, o.Upstream, body) // slices have no fields
	one.version = &version
	return one
}

// part is the body of a governed slice with the endpoints that the share has, how many these are, and their nodes.
func (s *share) part(in *Shares, o *facts.Object) (body []byte, nodes []string, endpoints int) {
	c := in.cutOf(o)
	places := make([]int, 0, 8)
	for place, n := range c.nodes {
		if o.Service.Keys.Rank(s.here, c.labels(place)) == topology.NoRank {
			continue
		}
		places = append(places, place)
		if n != nil && !slices.Contains(nodes, n.Name) {
			nodes = append(nodes, n.Name)
		}
	}
	return c.Body(places), nodes, len(places)
}

// mention counts who names a node.
func (s *share) mention(in *Shares, node string, delta int, mentioned map[string]struct{}) {
	before := s.named[node]
	if s.named[node] += delta; s.named[node] == 0 {
		delete(s.named, node)
	}
	if (before == 0) != (before+delta == 0) {
		index(in.naming, node, s, before == 0)
	}
	if mentioned != nil {
		mentioned[node] = struct{}{}
	}
}

// publish brings slices and nodes of the share up to date, in one step of its History.
func (s *share) publish(in *Shares, received time.Time, changed map[*facts.Object]struct{}, nodes map[string]struct{}) {
	mentioned := maps.Clone(nodes)
	if mentioned == nil {
		mentioned = make(map[string]struct{})
	}
	inOrder := slices.SortedFunc(maps.Keys(changed), func(a, b *facts.Object) int {
		return cmp.Or(cmp.Compare(a.Upstream.Namespace, b.Upstream.Namespace),
			cmp.Compare(a.Upstream.Name, b.Upstream.Name))
	})
	all := make([]shown, 0, len(changed)+len(mentioned))
	for _, o := range inOrder {
		_, had := s.governed[o]
		all = append(all, s.slice(in, o, mentioned))
		if _, has := s.governed[o]; has != had {
			index(in.holders, o, s, has)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(mentioned)) {
		node := shown{resource: history.Nodes, key: types.NamespacedName{Name: name}}
		if s.named[name] > 0 {
			node.version = in.node(name)
		}
		all = append(all, node)
	}
	s.history.Update(received, func(u *history.Update) { show(u, all) })
}

// show makes objects what is shown.
func show(u *history.Update, all []shown) {
	for _, one := range all {
		if one.version == nil {
			u.Remove(one.resource, one.key)
		} else {
			u.Put(one.resource, *one.version)
		}
	}
}

// nodeInShares is a node as shares have it: its labels, by which the rule goes, and its addresses, by which health
// services know it. All else changes with every report of a node's status.
func nodeInShares(n *facts.Node, whole *wire.Object) (*history.Version, error) {
	meta := metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}
	var body []byte
	var err error
	if whole != nil {
		meta.UID = types.UID(whole.UID)
		if body, err = wire.OnlyNodeAddresses(whole.Body); err != nil {
			return nil, err
		}
	}
	message, err := (&corev1.Node{ObjectMeta: meta}).Marshal()
	if err != nil {
		return nil, err
	}
	o, err := wire.ParseObject(message)
	if err != nil {
		return nil, err
	}
	version, err := history.NewVersion(history.Nodes, o, body)
	return &version, err
}
