// Package storagetest wires the facts and the view of one node, as package proxy does, for tests that fill the facts as
// an upstream would. Only tests import it.
package storagetest

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// Options configure a Node.
type Options struct {
	NodeName               string
	LocalEndpoint          *view.LocalEndpoint
	KeepKubernetesEndpoint bool
	// LogEvents, LogBytes and RetiredBytes are those of history.Options.
	LogEvents, LogBytes, RetiredBytes int
	// After is the last revision of an earlier process.
	After uint64
	Clock func() time.Time
}

// Node is one node's facts, view and units.
type Node struct {
	*facts.Facts

	Name    string
	View    *view.View
	History *history.History
	Units   *view.Units
}

// New makes a Node without any facts.
func New(options Options) *Node {
	f := facts.New(facts.Options{
		NodeName: options.NodeName, Clock: options.Clock,
		NeedsKubernetesEndpoints: !options.KeepKubernetesEndpoint && options.LocalEndpoint == nil,
	})
	viewOptions := view.Options{
		Facts: f, Viewer: view.Node(options.NodeName),
		LocalEndpoint: options.LocalEndpoint, KeepKubernetesEndpoint: options.KeepKubernetesEndpoint,
		History: history.Options{
			Revisions: history.NewRevisions(max(options.After, 1000)), JSON: history.NewJSONCache(0),
			LogEvents: options.LogEvents, LogBytes: options.LogBytes, RetiredBytes: options.RetiredBytes,
		},
	}
	v := view.New(viewOptions)
	return &Node{Facts: f, Name: options.NodeName, View: v, History: v.History(), Units: view.NewUnits(viewOptions)}
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
