package upstream

import (
	"context"
	"errors"

	"k8s.io/client-go/rest"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// hub follows this node's share, which replaces Services, slices and nodes of the API server.
type hub struct {
	facts *facts.Facts
	node  string
	// share is the one source of group.
	share *follow.Source
	group *follow.Group
}

// newHub prepares to follow the share of a node.
func newHub(options Options) (*hub, error) {
	if options.NodeName == "" {
		return nil, errors.New("the share needs the name of this node")
	}
	h := &hub{facts: options.Facts, node: options.NodeName}
	var err error
	if h.group, err = follow.NewGroup(follow.GroupOptions{Config: options.Hub}); err != nil {
		return nil, err
	}
	h.share, err = h.group.Add(follow.Options{
		Name: SourceShare, Resource: hubv1alpha1.GroupVersion.WithResource(hubv1alpha1.Shares),
		Stream: h.followShare, Silence: shareSilence,
	})
	return h, err
}

// run follows the share until ctx is done.
func (h *hub) run(ctx context.Context) {
	h.share.Start()
	h.group.Run(ctx)
}

// nodes returns the source of nodes.
func (u *Upstream) nodes() *follow.Source { return u.shared[0] }

// nodesRequest makes a request for nodes. agent distinguishes it from others.
func (u *Upstream) nodesRequest(agent string) *rest.Request {
	if u.hub != nil {
		return u.hub.share.Request("hub-"+agent).Name(u.hub.node).Param("kind", "Node")
	}
	return u.nodes().Request(agent)
}
