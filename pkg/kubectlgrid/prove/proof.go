package prove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Verdict is the result of the connections from one node.
type Verdict string

// The verdicts.
const (
	// Closed: only endpoints were reached that the node may reach.
	Closed Verdict = "Closed"
	// Leak: an endpoint was reached that the node must not reach.
	Leak Verdict = "Leak"
	// Unproved: neither was shown.
	Unproved Verdict = "Unproved"
)

// Kind is that of a Proof as JSON and YAML.
const Kind = "Proof"

// Proof is the result of connecting to a Service from every site.
type Proof struct {
	metav1.TypeMeta `json:",inline"`

	Namespace    string        `json:"namespace"`
	Service      string        `json:"service"`
	TopologyKeys topology.Keys `json:"topologyKeys"`
	// Address is the Service's address and port, in its first family.
	Address string `json:"address"`
	// Requests is how many connections were planned from each node.
	Requests int      `json:"requests"`
	Verdict  Verdict  `json:"verdict"`
	Sites    []string `json:"sites"`
	Rows     []Row    `json:"rows"`
	// Nodes is the verdict of kubectl grid view. Findings are those of kubectl grid check that concern the Service,
	// including those on other nodes.
	Nodes    gridview.Verdict   `json:"nodes"`
	Findings []gridview.Finding `json:"findings,omitempty"`
}

// Row has the endpoints that were reached from one node.
type Row struct {
	Site string `json:"site"`
	Node string `json:"node,omitempty"`
	// Address is the Service's address and port for this node.
	Address string `json:"address,omitempty"`
	// Asked is how many connections were tried, and Reached how many went to each site; endpoints outside of sites are
	// counted under their node's name in parentheses. Nobody is how many got no answer.
	Asked   int            `json:"asked"`
	Reached map[string]int `json:"reached"`
	Nobody  int            `json:"nobody"`
	Verdict Verdict        `json:"verdict"`
	// Message explains the row, where that is needed.
	Message string `json:"message,omitempty"`
}

// Runner runs a probe of the target on a node.
type Runner interface {
	Run(ctx context.Context, node string, target netip.AddrPort) (probe.Result, error)
}

// Limits limit the probes.
type Limits struct {
	// AtOnce is how many nodes run a probe at the same time.
	AtOnce int
	// Timeout is how long one of them may take.
	Timeout time.Duration
}

// Ask runs a probe on every node of the plan.
func (p *Plan) Ask(ctx context.Context, runner Runner, limits Limits) []Answer {
	answers := make([]Answer, len(p.samples))
	var group errgroup.Group
	group.SetLimit(limits.AtOnce)
	for i, s := range p.samples {
		answers[i].sample = s
		if s.without != "" {
			answers[i].err = errors.New(s.without)
			continue
		}
		group.Go(func() error {
			if ctx.Err() != nil {
				answers[i].err = errors.New("it was interrupted")
				return nil
			}
			limited, cancel := context.WithTimeout(ctx, limits.Timeout)
			defer cancel()
			answers[i].result, answers[i].err = runner.Run(limited, s.node, s.target)
			return nil
		})
	}
	_ = group.Wait() // the errors are in the answers
	return answers
}

// Answer is the result of the probe on one node.
type Answer struct {
	sample sample
	result probe.Result
	err    error
}

// Conclude makes the Proof from the answers. slicesOf and nodes are those after the probes. A node may reach the
// endpoints that were allowed before or after, because endpoints change meanwhile.
func (p *Plan) Conclude(answers []Answer, requests int, service *corev1.Service, slicesOf []discoveryv1.EndpointSlice,
	nodes map[string]Node, d *gridview.Diagnosis) (*Proof, error) {
	after, err := viewOf(service, slicesOf, nodes, d)
	if err != nil {
		return nil, fmt.Errorf("while asking it was changed: %w", err)
	}
	if _, err := targetOf(service, strconv.Itoa(int(p.Targets[0].Port()))); err != nil {
		return nil, fmt.Errorf("while asking it was changed: %w", err)
	}
	endpoints := map[string]endpoint{}
	endpointsOf(after, endpoints)
	endpointsOf(p.view, endpoints)
	proof := &Proof{
		TypeMeta: output.TypeMeta(Kind), Namespace: p.Service.Namespace, Service: p.Service.Name,
		TopologyKeys: p.Keys, Address: p.Targets[0].String(), Requests: requests, Verdict: Closed,
		Sites: p.siteNames(), Rows: []Row{}, Nodes: after.Verdict, Findings: after.Findings,
	}
	for _, a := range answers {
		row := p.conclude(a, endpoints, after)
		if row.Verdict == Leak || (row.Verdict == Unproved && proof.Verdict == Closed) {
			proof.Verdict = row.Verdict
		}
		proof.Rows = append(proof.Rows, row)
	}
	return proof, nil
}

// conclude makes a row from one answer.
func (p *Plan) conclude(a Answer, endpoints map[string]endpoint, after *gridview.View) Row {
	row := Row{Site: a.sample.site, Node: a.sample.node, Asked: a.result.Asked, Reached: map[string]int{},
		Nobody: a.result.Nobody, Verdict: Closed}
	if a.sample.target.IsValid() {
		row.Address = a.sample.target.String()
	}
	may, ready := p.allowed(p.view, a.sample)
	mayNow, readyNow := p.allowed(after, a.sample)
	maps.Copy(may, mayNow)
	reached, silent := a.result.Reached, 0
	var leaks, strangers []string
	judge := func(address string, times int) endpoint {
		host, _, _ := net.SplitHostPort(address) // the kernel's
		e, known := endpoints[host]
		switch {
		case !known:
			strangers = append(strangers, address)
		case !may[host]:
			leaks = append(leaks, fmt.Sprintf("%s on node %s, of %s, %s", e.name(host), cmp.Or(e.node, "<none>"),
				e.where(), enumerate.Count(times, "time")))
		}
		return e
	}
	for _, address := range slices.Sorted(maps.Keys(reached)) {
		times := reached[address]
		row.Reached[judge(address, times).where()] += times
	}
	for _, address := range slices.Sorted(maps.Keys(a.result.Silent)) {
		times := a.result.Silent[address]
		judge(address, times)
		silent += times
		row.Nobody += times
	}
	total := 0
	for _, times := range row.Reached {
		total += times
	}
	unproved := func(format string, args ...any) {
		row.Verdict, row.Message = Unproved, fmt.Sprintf(format, args...)
	}
	switch {
	case len(leaks) > 0:
		row.Verdict, row.Message = Leak, "reached "+strings.Join(leaks, "; ")
	case a.err != nil:
		unproved("%v", a.err)
	case a.result.Error != "":
		unproved("%s", a.result.Error)
	case len(strangers) > 0:
		unproved("connections went to %s, which is not an endpoint of the Service: the node's rules are older",
			strings.Join(strangers, ", "))
	case a.result.Untranslated > 0:
		unproved("%s went to no endpoint: kube-proxy has no rules for the Service there, or another program than "+
			"kube-proxy handles Services", enumerate.Count(a.result.Untranslated, "connection"))
	case a.result.Others > 0:
		unproved("%s went to more addresses than there is room to report",
			enumerate.Count(a.result.Others, "connection"))
	case total == 0 && silent > 0:
		unproved("no connection was answered; all went to endpoints that may be reached")
	case total == 0 && (ready || readyNow):
		unproved("no connection was answered, though the site has a ready endpoint")
	case total == 0 && gridview.ServiceProxy(p.Service) != "":
		unproved("no connection was answered, and kube-proxy leaves the Service to service proxy %s",
			gridview.ServiceProxy(p.Service))
	case total == 0:
		row.Message = "the site has no ready endpoint, and connections are refused"
	case p.Service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && !allAllowed(endpoints, may):
		// kube-proxy sends every connection of one address to the endpoint of the first.
		unproved("sessionAffinity keeps one client at one endpoint")
	case row.Nobody > 0:
		row.Message = fmt.Sprintf("%d of %d were not answered", row.Nobody, row.Asked)
	}
	return row
}

// allAllowed reports whether a node may reach every endpoint of the Service.
func allAllowed(endpoints map[string]endpoint, may map[string]bool) bool {
	for address := range endpoints {
		if !may[address] {
			return false
		}
	}
	return true
}

// where returns the site of an endpoint, or its node if that is not in a site.
func (e endpoint) where() string {
	switch {
	case e.site != "":
		return e.site
	case e.node != "":
		return "(" + e.node + ")"
	}
	return "(unknown)"
}

// name returns the pod of an endpoint, or its address if it has none.
func (e endpoint) name(address string) string {
	if e.pod == "" {
		return address
	}
	return "pod " + e.pod
}
