package compat

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// headless is a workload with a headless Service.
const headless = "headless"

// TestClientsOverTLS is about clients that bring credentials of their own, which client-go sends over TLS only:
// CoreDNS, kubectl, and the kube-proxies once more, in the protocol that they use unasked.
func TestClientsOverTLS(t *testing.T) {
	f := start(t, func(o *cluster.Options) {
		o.WrapperTLS = true
		o.DNSDaemon = under.dnsDaemon
	})
	f.setKeys(siteLabel)
	f.Must(workload.In(f.client, namespace).CreateDaemonSet(f.ctx, headless))
	_, err := workload.In(f.client, namespace).CreateService(f.ctx, headless,
		workload.ServiceOptions{Headless: true, TopologyKeys: []string{siteLabel}})
	f.Must(err)
	var nodes []*proxyNode
	for i, proxy := range under.kubeProxies {
		mode := proxy.modes()[0]
		nodes = append(nodes, newProxyNode(proxy, i, string(mode)+", TLS", cluster.NodeSpec{
			Name: fmt.Sprintf("t%d", proxy.minor()), ProxyMode: mode, Protocol: cluster.Unasked,
		}))
	}
	f.addNodes(nodes)
	coreDNS := &subject{row: row{component: "CoreDNS", version: under.coreDNS, protocol: string(cluster.Unasked),
		mode: "plugin kubernetes, TLS"}}
	kubectl := &subject{row: row{component: "kubectl", version: under.kubeProxies[len(under.kubeProxies)-1].version,
		protocol: string(cluster.Unasked), mode: "TLS"}}

	f.expectReach("site-local")
	f.expectNames(coreDNS, "site-local")
	f.kubectl(kubectl)
	moved := f.oneOf(siteB)
	moved.site = siteA
	f.Must(f.Cluster.RelabelNode(f.ctx, moved.spec.Name, siteLabel, siteA))
	f.expectReach("node relabelled")
	f.expectNames(coreDNS, "node relabelled")
	f.checkCodes("before the restart", http.StatusOK, http.StatusCreated)

	f.eachNode("stopping the wrapper", func(n *proxyNode) error { return n.node.Wrapper.Stop() })
	moved.site = siteB
	f.Must(f.Cluster.RelabelNode(f.ctx, moved.spec.Name, siteLabel, siteB))
	f.eachNode("starting the wrapper", func(n *proxyNode) error { return n.node.Wrapper.Start(f.ctx) })
	f.expectReach("wrapper restarted")
	f.expectNames(coreDNS, "wrapper restarted")
	f.standIn(coreDNS)

	f.checkCodes("after the restart", restartedCodes...)
	f.noteRequests()
	for _, n := range f.proxies {
		if n.node == nil {
			continue
		}
		f.try(coreDNS, "protocol", func() error {
			requests, err := logged(n.node, "coredns/")
			if err != nil {
				return err
			}
			results.addAsk("CoreDNS "+under.coreDNS, requests)
			return speaks(cluster.Unasked, requests)
		})
	}
	f.conclude()
	results.add(coreDNS.verdict())
	results.add(kubectl.verdict())
}

// standIn leads the clients of every wrapper to kube-apiserver, to which the wrapper's revisions mean nothing, and
// back.
func (f *fixture) standIn(coreDNS *subject) {
	f.Helper()
	relays := make(chan *cluster.Relay, len(f.proxies))
	f.eachNode("kube-apiserver stands in for the wrapper", func(n *proxyNode) error {
		if err := n.node.Wrapper.Stop(); err != nil {
			return err
		}
		relay, err := n.node.StandIn(f.ctx, "")
		if err == nil {
			relays <- relay
		}
		return err
	})
	close(relays)
	f.keys = nil // kube-apiserver shows everything
	f.expectReach("moved to kube-apiserver")
	f.expectNames(coreDNS, "moved to kube-apiserver")
	one := f.oneOf(siteA)
	f.setReady(one, corev1.ConditionFalse)
	f.expectReach("moved to kube-apiserver: followed a change")
	for relay := range relays {
		relay.Close()
	}
	f.keys = []string{siteLabel}
	f.eachNode("starting the wrapper", func(n *proxyNode) error { return n.node.Wrapper.Start(f.ctx) })
	f.expectReach("moved back to the wrapper")
	f.setReady(one, corev1.ConditionTrue)
	f.expectReach("moved back to the wrapper: followed a change")
	f.expectNames(coreDNS, "moved back to the wrapper")
}

// expectNames waits until CoreDNS on every node answers the headless name with the pods that the node may see.
func (f *fixture) expectNames(coreDNS *subject, step string) {
	f.Helper()
	f.try(coreDNS, step, func() error {
		begin := time.Now()
		for {
			err := f.names()
			if err == nil {
				f.Logf("%-52s %s", "CoreDNS: "+step, time.Since(begin).Round(time.Millisecond))
				return nil
			}
			if time.Since(begin) > deadline {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// names checks once what CoreDNS answers on every node.
func (f *fixture) names() error {
	pods, err := f.client.CoreV1().Pods(namespace).List(f.ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: workload.Labels(headless)}),
	})
	if err != nil {
		return err
	}
	for _, n := range f.proxies {
		if n.node == nil {
			continue
		}
		var want []string
		for _, pod := range pods.Items {
			if slices.Contains(strings.Fields(f.expected(n)), pod.Spec.NodeName) {
				want = append(want, pod.Status.PodIP)
			}
		}
		slices.Sort(want)
		got, err := n.node.Lookup(f.ctx, headless+"."+namespace+".svc.cluster.local", "A")
		if err != nil {
			return err
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("on node %s: %s is %v, want %v", n.spec.Name, headless, got, want)
		}
	}
	return nil
}

// kubectl runs what operators do with kubectl, through the wrapper of a node, as an administrator.
func (f *fixture) kubectl(s *subject) {
	f.Helper()
	at := f.oneOf(siteA)
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(f.ctx, deadline)
		defer cancel()
		return at.node.Run(ctx, under.components, append([]string{
			"kubectl", "--kubeconfig=" + f.Cluster.Kubeconfig(), "--server=" + at.node.WrapperURL(),
			"--cache-dir=" + filepath.Join(f.Cluster.Dir(), "tmp", "kubectl"),
		}, args...)...)
	}
	endpoints := "{range .items[*].endpoints[*]}{.nodeName}{\"\\n\"}{end}"
	legacy := "{range .subsets[*].addresses[*]}{.nodeName}{\"\\n\"}{end}"
	for _, command := range []struct {
		args []string
		// says are parts of the output; sees tells that the output is the nodes that this node may see.
		says []string
		sees bool
	}{
		// Not `version`: the components' kubectl has no version that it could compare with the server's.
		{args: []string{"get", "--raw", "/version"}, says: []string{"gitVersion"}},
		{args: []string{"api-resources"}, says: []string{"endpointslices", "configmaps"}},
		{args: []string{"explain", "endpointslice.endpoints"}, says: []string{"nodeName"}},
		{args: []string{"auth", "can-i", "delete", "pods"}, says: []string{"yes"}},
		{args: []string{"get", "nodes"}, says: []string{"NAME", at.spec.Name}},
		{args: []string{"get", "pods", "-o", "wide"}, says: []string{"NAME", "Running", at.spec.Name}},
		{args: []string{"get", "services,endpointslices,endpoints"},
			says: []string{"service/echo", "endpointslice.discovery.k8s.io/echo-", "endpoints/echo"}},
		{args: []string{"get", "service", echo, "-o", "yaml"},
			says: []string{"clusterIP: " + f.service.Spec.ClusterIP}},
		{args: []string{"get", "endpointslices", "-l", "kubernetes.io/service-name=" + echo, "-o",
			"jsonpath=" + endpoints}, sees: true},
		{args: []string{"get", "endpoints", echo, "-o", "jsonpath=" + legacy}, sees: true},
		{args: []string{"describe", "service", echo}, says: []string{"Name:", f.service.Spec.ClusterIP, "Endpoints:"}},
		{args: []string{"wait", "--for=jsonpath={.metadata.labels.told}=yes", "--timeout=60s", "service/" + echo},
			says: []string{"condition met"}},
		{args: []string{"create", "configmap", "made", "--from-literal=a=b"}, says: []string{"created"}},
		{args: []string{"patch", "configmap", "made", "-p", `{"data":{"a":"c"}}`}, says: []string{"patched"}},
		{args: []string{"delete", "configmap", "made"}, says: []string{"deleted"}},
		{args: []string{"annotate", "service", echo, "note=through-the-wrapper"}, says: []string{"annotated"}},
	} {
		step := "kubectl " + strings.Join(command.args, " ")
		f.try(s, step, func() error {
			if command.args[0] == "wait" { // its watch has begun, or begins after the change; both end it
				told := time.AfterFunc(time.Second, func() {
					f.label("told", "yes")
				})
				defer told.Stop()
			}
			output, err := run(command.args...)
			if err != nil {
				return err
			}
			for _, part := range command.says {
				if !strings.Contains(output, part) {
					return fmt.Errorf("there is no %q in: %s", part, output)
				}
			}
			if command.sees {
				seen := strings.Fields(strings.ReplaceAll(output,
					"Warning: v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice", ""))
				slices.Sort(seen)
				if got, want := strings.Join(seen, " "), f.expected(at); got != want {
					return fmt.Errorf("want endpoints on %s, got %s", want, got)
				}
			}
			return nil
		})
	}
	if s.problem == nil {
		f.Logf("kubectl: every command does through the wrapper what it should")
	}
}

// label labels the echo Service, past the wrapper.
func (f *fixture) label(key, value string) {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, key, value)
	if _, err := f.client.CoreV1().Services(namespace).Patch(f.ctx, echo, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		f.Errorf("labelling the Service: %v", err)
	}
}
