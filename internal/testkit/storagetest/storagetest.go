// Package storagetest connects the facts and the view of one node, as package proxy does, for tests that fill the facts
// as an upstream would. Only tests import it.
package storagetest

import (
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Options configure a Node.
type Options struct {
	NodeName               string
	LocalEndpoint          *view.LocalEndpoint
	KeepKubernetesEndpoint bool
	// LogEvents and LogBytes are those of history.Options.
	LogEvents, LogBytes int
	// After is the last revision of an earlier process.
	After uint64
	Clock func() time.Time
	// Broken is that of facts.Options. Panics, if set, is called in the middle of steps, which panic if it returns
	// true.
	Broken func(error)
	Panics func() bool
}

// Node is one node's facts, view and sites.
type Node struct {
	*facts.Facts

	Name    string
	View    *view.View
	History *history.History
	Sites   *view.Sites
}

// New makes a Node without any facts.
func New(options Options) *Node {
	panics := func() {
		if options.Panics != nil && options.Panics() {
			panic("a step panics")
		}
	}
	viewer := view.Node(options.NodeName)
	f := facts.New(facts.Options{
		NodeName: options.NodeName, Clock: options.Clock, OnPanic: options.Broken,
		NeedsKubernetesEndpoints: !options.KeepKubernetesEndpoint && options.LocalEndpoint == nil,
		// The facts log objects that they cannot read in the middle of a step.
		Logger: funcr.New(func(string, string) { panics() }, funcr.Options{}),
	})
	viewOptions := view.Options{
		Facts: f,
		Viewer: func(in facts.Reader) (topology.Labels, bool) {
			panics()
			return viewer(in)
		},
		LocalEndpoint: options.LocalEndpoint, KeepKubernetesEndpoint: options.KeepKubernetesEndpoint,
		History: history.Options{
			Revisions: history.NewRevisions(max(options.After, 1000)),
			JSON:      history.NewJSONCache(history.DefaultJSONBytes),
			LogEvents: options.LogEvents, LogBytes: options.LogBytes,
		},
	}
	v := view.New(viewOptions)
	return &Node{Facts: f, Name: options.NodeName, View: v, History: v.History(), Sites: view.NewSites(viewOptions)}
}

// NodeLabels is the input of all nodes' metadata.
func (n *Node) NodeLabels() *facts.Input { return n.Input(facts.InputNodes) }

// OwnNode is the input of this node's Node object.
func (n *Node) OwnNode() *facts.Input { return n.Input(facts.InputNode) }

// Services is the input of all Services.
func (n *Node) Services() *facts.Input { return n.Input(facts.InputServices) }

// EndpointSlices is the input of all EndpointSlices.
func (n *Node) EndpointSlices() *facts.Input { return n.Input(facts.InputEndpointSlices) }

// Endpoints is the input of all Endpoints.
func (n *Node) Endpoints() *facts.Input { return n.Input(facts.InputEndpoints) }

// KubernetesEndpoints is the input of the Endpoints object default/kubernetes.
func (n *Node) KubernetesEndpoints() *facts.Input { return n.Input(facts.InputKubernetesEndpoints) }

// Explain is View.Explain for this node.
func (n *Node) Explain(service types.NamespacedName, asNode string) (*view.Explanation, error) {
	return n.View.Explain(service, n.Name, asNode)
}
