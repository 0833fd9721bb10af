package prove

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
)

// askedAtOnce is how many nodes are asked from at the same time, which limits what a command asks of the cluster.
const askedAtOnce = 10

// Options configure a proof.
type Options struct {
	// Requests is how many connections are opened from each node. ConnectTimeout limits one of them, and Timeout all
	// from one node, with the start of the pod.
	Requests                int
	ConnectTimeout, Timeout time.Duration
	// Port is the Service's port, by name or number; empty for its first TCP port.
	Port string
	// AllNodes connects from all ready nodes, and not from one of each site, whose nodes should have the same rules.
	AllNodes bool
	// Image is the image of application-grid-wrapper for the pods; empty for that of the wrapper on the node.
	Image string
	// PodNamespace is the namespace of the pods. It must allow pods in the node's network with the capability
	// NET_ADMIN.
	PodNamespace string
}

// Run connects to a Service from its sites.
func Run(
	ctx context.Context, c cluster.Cluster, namespace string, name cluster.ServiceName, o Options,
) (*Proof, error) {
	var s surroundings
	if err := s.read(ctx, c.API, namespace, name); err != nil {
		return nil, err
	}
	s.diagnosis = c.Diagnose(ctx, check.WithoutServices)
	p, err := prepare(s, o)
	if err != nil {
		return nil, err
	}
	pods, err := newPods(ctx, c, o)
	if err != nil {
		return nil, err
	}
	p.ask(ctx, pods.run)
	if ctx.Err() != nil {
		return nil, errors.New("interrupted; its pods are removed")
	}
	name = cluster.ServiceName{Kind: "Service", Name: s.service.Name}
	if err := s.read(ctx, c.API, namespace, name); err != nil {
		return nil, fmt.Errorf("asking again: %w", err)
	}
	return p.conclude(s)
}

// plan has the nodes from which to connect, and the endpoints that each may reach.
type plan struct {
	options Options
	view    *gridview.View
	// targets are the Service's addresses, one of each family.
	targets  []netip.AddrPort
	portName string
	samples  []sample
}

// sample is a node from which to connect, and then the result. Without a node of the site, err says why.
type sample struct {
	site, node string
	target     netip.AddrPort
	result     probe.Result
	err        error
}

func prepare(s surroundings, o Options) (*plan, error) {
	p := &plan{options: o}
	var err error
	if p.targets, p.portName, err = targets(s.service, o.Port); err != nil {
		return nil, err
	}
	if p.view, err = s.view(); err != nil {
		return nil, err
	}
	for _, site := range p.view.Sites {
		// From nodes outside of sites, and from sites without an edge node, a Service is meant to reach every endpoint.
		if site.Name == "" || !slices.ContainsFunc(site.Nodes, p.view.IsEdge) {
			continue
		}
		chosen := p.choose(site.Nodes, s.nodes)
		if len(chosen) == 0 {
			err := errors.New("none of its nodes is ready")
			if slices.ContainsFunc(site.Nodes, func(name string) bool { return s.nodes[name].ready }) {
				err = errors.New("none of its nodes that are ready has an address of the Service's family")
			}
			p.samples = append(p.samples, sample{site: site.Name, err: err})
		}
		for _, node := range chosen {
			for _, target := range p.targetsFrom(s.nodes[node]) {
				p.samples = append(p.samples, sample{site: site.Name, node: node, target: target})
			}
		}
	}
	if len(p.samples) == 0 {
		return nil, fmt.Errorf("no node is in a site by the label %s, so there are no sites to ask from",
			strings.Join(p.view.TopologyKeys, " or "))
	}
	return p, nil
}

// targetsFrom returns the targets of the families that a node has an address of; the first one if these are not known.
func (p *plan) targetsFrom(n node) []netip.AddrPort {
	if len(n.families) == 0 {
		return p.targets[:1]
	}
	return slices.DeleteFunc(slices.Clone(p.targets), func(target netip.AddrPort) bool {
		return !slices.Contains(n.families, familyOf(target.Addr()))
	})
}

// choose picks nodes of a site that are ready and have a target, those with a wrapper first.
func (p *plan) choose(names []string, nodes map[string]node) []string {
	var ready []string
	for _, edge := range []bool{true, false} {
		for _, name := range names {
			if n := nodes[name]; n.ready && p.view.IsEdge(name) == edge && len(p.targetsFrom(n)) > 0 {
				ready = append(ready, name)
			}
		}
	}
	if !p.options.AllNodes && len(ready) > 1 {
		ready = ready[:1]
	}
	return ready
}

// ask runs a probe on every node of the plan. run is pods.run.
func (p *plan) ask(
	ctx context.Context, run func(ctx context.Context, node string, target netip.AddrPort) (probe.Result, error),
) {
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i := range p.samples {
		s := &p.samples[i]
		if s.err != nil {
			continue
		}
		group.Go(func() error {
			limited, cancel := context.WithTimeout(ctx, p.options.Timeout)
			defer cancel()
			if s.err = limited.Err(); s.err == nil {
				s.result, s.err = run(limited, s.node, s.target)
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in the samples
}
