package compat

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	namespace = "default"
	echo      = "echo"
	// tries is how many requests make out whom a Service reaches. Of the eight endpoints or so of a site all are
	// seen with a probability of 99.7 %; if not, they are asked again.
	tries = 60
	// supportedSkew is how many minor releases a kube-proxy may be older than kube-apiserver:
	// https://kubernetes.io/releases/version-skew-policy/#kube-proxy
	supportedSkew = 3
)

// restartedCodes are the codes that clients in good health get of a wrapper that was restarted: 503 tells them to
// wait while it starts, 410 those that resume from a revision of the process before to list again.
var restartedCodes = []int{http.StatusOK, http.StatusCreated, http.StatusServiceUnavailable, http.StatusGone}

// fixture is a cluster with every kube-proxy in every protocol and mode on a node of its own, spread over two
// sites.
type fixture struct {
	suite.Test
	ctx     context.Context
	client  kubernetes.Interface
	service *corev1.Service
	proxies []*proxyNode
	// unready are the nodes whose pod is not ready.
	unready map[string]bool
	// keys are the topology keys of the Service.
	keys []string
}

// subject is something that is tried, and becomes a row of the table.
type subject struct {
	row row
	// problem is the first step that failed; the others are not tried any more.
	problem error
}

// proxyNode is a node with the kube-proxy that is tried on it.
type proxyNode struct {
	subject

	spec cluster.NodeSpec
	site string
	node *cluster.Node // nil if it did not start
}

// TestKubeProxies takes all kube-proxies through what happens in a cluster. What fails somewhere is told for all in the
// end.
func TestKubeProxies(t *testing.T) {
	f := start(t, nil)
	f.setKeys(siteLabel)
	f.addNodes(everyCombination())

	f.expectReach("site-local")
	f.move(cluster.ListThenWatch)
	f.expectReach("half of the nodes relabelled")
	f.move(cluster.WatchList, cluster.Unasked)
	f.expectReach("the other half relabelled")

	f.setKeys(corev1.LabelHostname)
	f.expectReach("topologyKeys changed")
	f.setKeys()
	f.expectReach("topologyKeys removed")
	f.setKeys(siteLabel)
	f.expectReach("topologyKeys set again")

	one, other := f.oneOf(siteA), f.oneOf(siteB)
	f.setReady(one, corev1.ConditionFalse)
	f.expectReach("an endpoint not ready")
	f.setReady(one, corev1.ConditionTrue)
	f.expectReach("ready again")
	f.checkCodes("before the restart", http.StatusOK, http.StatusCreated)

	f.eachNode("stopping the wrapper", func(n *proxyNode) error { return n.node.Wrapper.Stop() })
	f.expectReach("rules kept while there is no wrapper")
	f.setReady(other, corev1.ConditionFalse)
	f.eachNode("starting the wrapper", func(n *proxyNode) error { return n.node.Wrapper.Start(f.ctx) })
	f.expectReach("wrapper restarted: followed what happened meanwhile")
	f.setReady(other, corev1.ConditionTrue)
	f.expectReach("wrapper restarted: followed a change afterwards")

	f.eachNode("restarting kube-proxy", func(n *proxyNode) error { return n.node.KubeProxy.Restart(f.ctx) })
	f.setReady(one, corev1.ConditionFalse)
	f.expectReach("kube-proxy restarted")
	f.setReady(one, corev1.ConditionTrue)
	f.expectReach("at last as in the beginning")

	f.checkCodes("after the restart", restartedCodes...)
	f.noteRequests()
	f.conclude()
}

// start starts the control plane, an echo pod for every node that comes, and a Service that is not governed yet.
func start(t *testing.T, change func(*cluster.Options)) *fixture {
	t.Helper()
	options := cluster.Options{
		Components:  under.components,
		Wrapper:     under.wrapper,
		WrapperArgs: []string{"--v=4"},
	}
	if dir := os.Getenv("COMPAT_DIR"); dir != "" { // to keep the logs
		options.Dir = filepath.Join(dir, t.Name())
	}
	if change != nil {
		change(&options)
	}
	c := suite.Start(t, options)
	f := &fixture{Test: suite.Test{T: t, Cluster: c}, ctx: t.Context(), client: c.Client(), unready: map[string]bool{}}
	f.Must(workload.In(f.client, namespace).CreateDaemonSet(f.ctx, echo))
	service, err := workload.In(f.client, namespace).CreateService(f.ctx, echo, workload.ServiceOptions{})
	f.Must(err)
	f.service = service
	return f
}

// everyCombination is a node for every kube-proxy, protocol and mode. In each site there is, of each release, one
// of either protocol and one of either mode.
func everyCombination() []*proxyNode {
	modes := map[cluster.ProxyMode]string{cluster.NFTables: "nft", cluster.IPTables: "ipt"}
	var nodes []*proxyNode
	for i, proxy := range under.kubeProxies {
		for j, protocol := range proxy.protocols() {
			for k, mode := range proxy.modes() {
				name := fmt.Sprintf("p%d-%s-%s", proxy.minor(), strings.Split(string(protocol), "-")[0], modes[mode])
				nodes = append(nodes, newProxyNode(proxy, i+j+k, string(mode),
					cluster.NodeSpec{Name: name, ProxyMode: mode, Protocol: protocol}))
			}
		}
	}
	return nodes
}

// newProxyNode describes a node with this kube-proxy; even ones come into the first site, odd ones into the other.
// mode is what the table says about how it is run.
func newProxyNode(proxy kubeProxy, number int, mode string, spec cluster.NodeSpec) *proxyNode {
	site := []string{siteA, siteB}[number%2]
	spec.Labels = map[string]string{siteLabel: site}
	spec.KubeProxyBinary = proxy.path
	version := proxy.version
	if newest := under.kubeProxies[len(under.kubeProxies)-1]; newest.minor()-proxy.minor() > supportedSkew {
		version += " (older than supported)"
	}
	return &proxyNode{
		subject: subject{row: row{component: "kube-proxy", version: version, protocol: string(spec.Protocol),
			mode: mode}},
		site: site,
		spec: spec,
	}
}

// addNodes starts the nodes.
func (f *fixture) addNodes(nodes []*proxyNode) {
	f.Helper()
	f.proxies = nodes
	// Two at a time: there are more nodes than processors, and a kube-proxy that starts is busy.
	turns := make(chan struct{}, 2)
	f.eachProxy("first sync", func(n *proxyNode) error {
		turns <- struct{}{}
		defer func() { <-turns }()
		node, err := f.Cluster.AddNode(f.ctx, n.spec)
		if err != nil {
			// Without its echo server the node's pod would be an endpoint that does not answer the others.
			if deletion := f.client.CoreV1().Nodes().Delete(f.ctx, n.spec.Name,
				metav1.DeleteOptions{}); deletion != nil {
				return errors.Join(err, deletion)
			}
			return err
		}
		n.node = node
		return nil
	})
}

// eachProxy does something for every kube-proxy that has not failed yet, at the same time.
func (f *fixture) eachProxy(what string, act func(*proxyNode) error) {
	f.Helper()
	var group sync.WaitGroup
	for _, n := range f.proxies {
		if n.problem != nil {
			continue
		}
		group.Go(func() {
			if err := act(n); err != nil {
				n.problem = fmt.Errorf("%s: %w", what, err)
				f.Errorf("%s: %v", n.spec.Name, n.problem)
			}
		})
	}
	group.Wait()
}

// try does something for a subject that has not failed yet.
func (f *fixture) try(s *subject, step string, act func() error) {
	f.Helper()
	if s.problem != nil {
		return
	}
	if err := act(); err != nil {
		s.problem = fmt.Errorf("%s: %w", step, err)
		f.Errorf("%s %s (%s, %s): %v", s.row.component, s.row.version, s.row.protocol, s.row.mode, s.problem)
	}
}

// eachNode does something on every node that runs, also if its kube-proxy has failed.
func (f *fixture) eachNode(what string, act func(*proxyNode) error) {
	f.Helper()
	var group sync.WaitGroup
	for _, n := range f.proxies {
		if n.node == nil {
			continue
		}
		group.Go(func() {
			if err := act(n); err != nil {
				f.Errorf("%s: %s: %v", n.spec.Name, what, err)
				if n.problem == nil {
					n.problem = fmt.Errorf("%s: %w", what, err)
				}
			}
		})
	}
	group.Wait()
}

// expected is whom a node should reach, written down independently of the wrapper.
func (f *fixture) expected(from *proxyNode) string {
	var reached []string
	for _, n := range f.proxies {
		same := len(f.keys) == 0 || f.keys[0] == siteLabel && n.site == from.site ||
			f.keys[0] == corev1.LabelHostname && n == from
		if n.node != nil && same && !f.unready[n.spec.Name] {
			reached = append(reached, n.spec.Name)
		}
	}
	slices.Sort(reached)
	return strings.Join(reached, " ")
}

// expectReach waits until the data plane of every node is as it should be.
func (f *fixture) expectReach(step string) {
	f.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(f.ctx, deadline)
	defer cancel()
	f.eachProxy(step, func(n *proxyNode) error {
		return workload.AwaitReach(ctx, n.node, f.service, f.expected(n), tries)
	})
	f.Logf("%-52s %s", step, time.Since(begin).Round(time.Millisecond))
}

// move moves the nodes with one of these protocols to the other site.
func (f *fixture) move(protocols ...cluster.Protocol) {
	f.Helper()
	for _, n := range f.proxies {
		if n.node == nil || !slices.Contains(protocols, n.spec.Protocol) {
			continue
		}
		if n.site == siteA {
			n.site = siteB
		} else {
			n.site = siteA
		}
		f.Must(f.Cluster.RelabelNode(f.ctx, n.spec.Name, siteLabel, n.site))
	}
}

// setKeys sets or removes the Service's annotation.
func (f *fixture) setKeys(keys ...string) {
	f.Helper()
	f.keys = keys
	f.Must(workload.In(f.client, namespace).SetTopologyKeys(f.ctx, echo, keys...))
}

// oneOf is a node of the site.
func (f *fixture) oneOf(site string) *proxyNode {
	f.Helper()
	for _, n := range f.proxies {
		if n.site == site && n.node != nil {
			return n
		}
	}
	f.Fatalf("no node of %s runs", site)
	return nil
}

// setReady makes the pod on a node ready or not.
func (f *fixture) setReady(n *proxyNode, status corev1.ConditionStatus) {
	f.Helper()
	f.unready[n.spec.Name] = status != corev1.ConditionTrue
	f.Must(workload.In(f.client, namespace).SetReadyOn(f.ctx, echo, n.spec.Name, status))
}

// checkCodes checks that no wrapper has answered with another code than these.
func (f *fixture) checkCodes(when string, codes ...int) {
	f.Helper()
	f.eachProxy("codes of answers "+when, func(n *proxyNode) error {
		counted, err := answers(f.ctx, n.node)
		if err != nil {
			return err
		}
		if found := unexpected(counted, codes...); len(found) > 0 {
			return errors.New(strings.Join(found, ", "))
		}
		return nil
	})
}

// noteRequests stops everything, notes what each client asked, and checks that it used the protocol that it should
// and got no other codes than expected.
func (f *fixture) noteRequests() {
	f.Helper()
	f.eachNode("stopping kube-proxy", func(n *proxyNode) error { return n.node.KubeProxy.Stop() })
	// A watch is logged when it ends, and all have ended when the wrapper has.
	f.eachNode("stopping the wrapper", func(n *proxyNode) error { return n.node.Wrapper.Stop() })
	for _, n := range f.proxies {
		if n.node == nil {
			continue
		}
		f.try(&n.subject, "protocol", func() error {
			requests, err := logged(n.node, "kube-proxy") // a binary kube-proxy-1.34 calls itself so
			if err != nil {
				return err
			}
			results.addAsk(fmt.Sprintf("kube-proxy %s, %s", n.row.version, n.row.protocol), requests)
			return speaks(n.spec.Protocol, requests)
		})
	}
}

// conclude makes the rows of the table.
func (f *fixture) conclude() {
	for _, n := range f.proxies {
		results.add(n.verdict())
	}
}

// verdict is the subject's row with its result.
func (s *subject) verdict() row {
	s.row.result = "works"
	if s.problem != nil {
		first, _, _ := strings.Cut(s.problem.Error(), "\n")
		s.row.result = "**fails**: " + first
	}
	return s.row
}
