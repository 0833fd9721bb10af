package view

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Snapshot returns the state from which this View, of the node with that name, is served. It includes the legacy
// Endpoints if they are followed. It fails while the upstream's state is not complete.
func (v *View) Snapshot(nodeName string, asOf time.Time) (*facts.Snapshot, error) {
	if !v.source.IsLive() {
		return nil, errors.New("the upstream's state is not complete yet")
	}
	b := stateBuilder{state: &facts.Snapshot{
		NodeName: nodeName, AsOf: asOf, Notes: v.source.Notes(),
	}, named: map[string]struct{}{nodeName: {}}}
	v.source.Read(func(in facts.Reader) {
		b.v = lockedView{v, in}
		b.build()
	})
	return b.state, b.err
}

// stateBuilder builds a Snapshot of one moment.
type stateBuilder struct {
	v     lockedView
	state *facts.Snapshot
	// named has the names of the nodes on which endpoints of the Snapshot are.
	named map[string]struct{}
	err   error
}

func (b *stateBuilder) build() {
	v := b.v
	b.state.Revision = v.history.Revision()
	b.state.ShareMark = v.facts.ShareMark()
	for _, r := range served.All() {
		if v.filled[r] {
			b.addResource(r)
		}
	}
	if annotations := v.facts.KubernetesAnnotations(); annotations != nil {
		b.addMetadata(facts.InputKubernetesEndpoints, []metav1.ObjectMeta{{
			Namespace: facts.KubernetesService.Namespace, Name: facts.KubernetesService.Name, Annotations: annotations,
		}})
	}
	if len(b.state.InternalIPs) > 0 {
		v.facts.SiteNodes(func(n *facts.Node) { b.named[n.Name] = struct{}{} })
	}
	var nodes []metav1.ObjectMeta
	for _, name := range slices.Sorted(maps.Keys(b.named)) {
		if n := v.facts.Node(name); n != nil {
			nodes = append(nodes, metav1.ObjectMeta{Name: name, Labels: n.Labels})
		}
	}
	b.addMetadata(facts.InputNodes, nodes)
	slices.SortFunc(b.state.Sections, func(x, y facts.Section) int { return cmp.Compare(x.Input, y.Input) })
}

// addResource adds a section of the objects of a resource, with how they are shown. Those that list endpoints are
// pruned to the viewer's share. All get the metadata that is shown. The upstream's may differ in fields whose changes
// do not cause an event, and one revision would then belong to two versions.
func (b *stateBuilder) addResource(r *served.Resource) {
	names := slices.SortedFunc(slices.Values(b.v.facts.Names(r)), wire.CompareKeys)
	shown := b.v.history.Objects(r)
	section := facts.Section{
		Input:   facts.InputOf(r),
		Objects: make([]*wire.Object, len(names)),
		Shown:   make([]facts.Shown, len(names)),
	}
	for i, name := range names {
		copied := *b.v.facts.Upstream(r, name)
		if listsEndpoints(r) {
			o := b.v.facts.Object(r, name)
			copied.Body = b.v.bodyInShare(o)
			err := o.Codec().Scan(copied.Body, func(e wire.Endpoint) { b.named[string(e.NodeName)] = struct{}{} })
			b.err = cmp.Or(b.err, err)
		}
		if version := shown[name]; version != nil {
			copied.Meta = version.Meta
			section.Shown[i] = facts.Shown{Revision: version.Revision, Digest: version.Digest()}
		}
		section.Objects[i] = &copied
	}
	b.state.Sections = append(b.state.Sections, section)
}

// addMetadata adds a section of objects that have only metadata.
func (b *stateBuilder) addMetadata(input string, metas []metav1.ObjectMeta) {
	section := facts.Section{Input: input}
	for i := range metas {
		o, err := wire.ObjectOf(&corev1.Node{ObjectMeta: metas[i]})
		if err != nil {
			b.err = cmp.Or(b.err, err)
			return
		}
		section.Objects = append(section.Objects, o)
	}
	b.state.Sections = append(b.state.Sections, section)
}

// bodyInShare returns the body of an object with only those endpoints that any of the Service's keys matches for this
// viewer. The others are never shown to it, whichever key decides.
func (v lockedView) bodyInShare(o *facts.EndpointSet) []byte {
	if local, _ := v.localEndpointFor(o); local != nil || o.Service == nil || !o.Service.Keys.Governed() {
		return o.Upstream.Body
	}
	// What cannot be read was reported when it was pruned for clients.
	body, _ := o.Codec().Rewrite(o.Upstream.Body, func(e wire.Endpoint) *wire.Correction {
		if o.Service.Keys.Rank(v.here, v.facts.LabelsOf(e.NodeName)) == topology.NoRank {
			return leftOut
		}
		return withoutHints
	})
	return slices.Clip(body)
}
