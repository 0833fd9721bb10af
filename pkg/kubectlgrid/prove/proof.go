package prove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
)

// Verdict is what asking from one node has shown.
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

// Proof is what asking a Service from every site has shown.
type Proof struct {
	APIVersion   string   `json:"apiVersion"`
	Kind         string   `json:"kind"`
	Namespace    string   `json:"namespace"`
	Service      string   `json:"service"`
	TopologyKeys []string `json:"topologyKeys"`
	// Address is where the Service was asked.
	Address string `json:"address"`
	// Requests is how many connections were meant from each node.
	Requests int      `json:"requests"`
	Verdict  Verdict  `json:"verdict"`
	Sites    []string `json:"sites"`
	Rows     []Row    `json:"rows"`
	// Findings are what kubectl grid check finds that concerns the Service, also on nodes that were not asked from.
	Findings []gridview.Finding `json:"findings,omitempty"`
}

// Row is what was reached from one node.
type Row struct {
	Site string `json:"site"`
	Node string `json:"node,omitempty"`
	// Asked is how many connections were tried, Reached how many went to each site; endpoints that are in no site are
	// under their node's name in parentheses. Nobody is how many nobody answered.
	Asked   int            `json:"asked"`
	Reached map[string]int `json:"reached"`
	Nobody  int            `json:"nobody"`
	Verdict Verdict        `json:"verdict"`
	// Message says what was seen, where that is not plain.
	Message string `json:"message,omitempty"`
}

// Runner runs a probe of the target on a node.
type Runner interface {
	Run(ctx context.Context, node string, plan *Plan) (probe.Result, error)
}

// Limits say how a Service is asked.
type Limits struct {
	// AtOnce is how many nodes are asked from at the same time.
	AtOnce int
	// Timeout is how long one of them may take.
	Timeout time.Duration
}

// Ask asks from every node of the plan.
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
			answers[i].result, answers[i].err = runner.Run(limited, s.node, p)
			return nil
		})
	}
	_ = group.Wait() // the errors are in the answers
	return answers
}

// Answer is what the probe on one node has said.
type Answer struct {
	sample sample
	result probe.Result
	err    error
}

// Conclude says what the answers show. slicesOf and nodes are those after asking: what may be reached is what might be
// before or after, as endpoints come and go meanwhile.
func (p *Plan) Conclude(answers []Answer, requests int, service *corev1.Service, slicesOf []discoveryv1.EndpointSlice,
	nodes map[string]Node) (*Proof, error) {
	after, err := viewOf(service, slicesOf, nodes)
	if err != nil {
		return nil, fmt.Errorf("while asking it was changed: %w", err)
	}
	port, err := targetOf(service, strconv.Itoa(int(p.Target.Port())))
	if err != nil {
		return nil, fmt.Errorf("while asking it was changed: %w", err)
	}
	endpoints := endpointsOf(slicesOf, port.port, nodes, after)
	maps.Copy(endpoints, p.endpoints)
	proof := &Proof{
		APIVersion: output.APIVersion, Kind: Kind, Namespace: p.Service.Namespace, Service: p.Service.Name,
		TopologyKeys: p.Keys, Address: p.Target.String(), Requests: requests, Verdict: Closed, Sites: p.siteNames(),
		Rows: []Row{},
	}
	for _, a := range answers {
		row := conclude(a, endpoints, p.view, after)
		if row.Verdict == Leak || (row.Verdict == Unproved && proof.Verdict == Closed) {
			proof.Verdict = row.Verdict
		}
		proof.Rows = append(proof.Rows, row)
	}
	return proof, nil
}

// conclude says what one answer shows.
func conclude(a Answer, endpoints map[string]endpoint, before, after *gridview.View) Row {
	row := Row{Site: a.sample.site, Node: a.sample.node, Asked: a.result.Asked, Reached: map[string]int{},
		Nobody: a.result.Nobody, Verdict: Closed}
	may, ready := allowed(before, a.sample.site)
	mayNow, readyNow := allowed(after, a.sample.site)
	maps.Copy(may, mayNow)
	reached, unknown, silent := a.result.Reached, 0, 0
	var leaks, strangers []string
	if a.result.Answers != nil {
		reached, unknown = recognise(a.result.Answers, endpoints)
	}
	judge := func(address string, times int) endpoint {
		e, known := endpoints[address]
		host, _, err := net.SplitHostPort(address)
		switch {
		case err != nil || !known:
			strangers = append(strangers, address)
		case !may[host]:
			leaks = append(leaks, fmt.Sprintf("%s on node %s, of %s, %s", e.name(host), cmp.Or(e.node, "<none>"),
				e.where(), output.Count(times, "time")))
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
		unproved("connections went to %s, which is no endpoint of the Service: the node's rules are older than that",
			strings.Join(strangers, ", "))
	case a.result.Untranslated > 0:
		unproved("%s went to no endpoint: kube-proxy has no rules for the Service there, or something else than "+
			"kube-proxy handles Services; --exec asks who answers", output.Count(a.result.Untranslated, "connection"))
	case unknown > 0:
		unproved("%s did not tell who gave them: an answer has to name its pod, its node or its address, each of them "+
			"once among the endpoints", output.Count(unknown, "answer"))
	case a.result.Others > 0:
		unproved("%s went to more addresses than there is room to report", output.Count(a.result.Others, "connection"))
	case total == 0 && silent > 0:
		unproved("nobody answered; all connections went to endpoints that may be reached")
	case total == 0 && (ready || readyNow):
		unproved("nobody answered, though the site has a ready endpoint")
	case total == 0:
		row.Message = "the site has no ready endpoint, and nobody answers"
	case row.Nobody > 0:
		row.Message = fmt.Sprintf("%d of %d were not answered", row.Nobody, row.Asked)
	}
	return row
}

// where is the site of an endpoint, or its node if that is in none.
func (e endpoint) where() string {
	switch {
	case e.site != "":
		return e.site
	case e.node != "":
		return "(" + e.node + ")"
	}
	return "(unknown)"
}

// name is the pod of an endpoint, or its address if that is of none.
func (e endpoint) name(address string) string {
	if e.pod == "" {
		return address
	}
	return "pod " + e.pod
}

// inNames is what names of pods and nodes, and addresses, are made of.
const inNames = "-.:0123456789abcdefghijklmnopqrstuvwxyz"

// recognise finds out which endpoints gave answers, by what is in them: the name of a pod, its node's name or its
// address, as a word, if it is that of one endpoint only.
func recognise(answers map[string]int, endpoints map[string]endpoint) (reached map[string]int, unknown int) {
	reached = map[string]int{}
	for text, times := range answers {
		words := map[string]bool{}
		for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !strings.ContainsRune(inNames, r) }) {
			words[strings.Trim(word, ".:-")] = true
		}
		var found []string
		for _, by := range []func(endpoint) string{
			func(e endpoint) string { return e.pod }, func(e endpoint) string { return e.address },
			func(e endpoint) string { return e.node },
		} {
			found = nil
			for address, e := range endpoints {
				if name := by(e); name != "" && words[name] {
					found = append(found, address)
				}
			}
			if len(found) == 1 {
				break
			}
		}
		if len(found) != 1 {
			unknown += times
			continue
		}
		reached[found[0]] += times
	}
	return reached, unknown
}
