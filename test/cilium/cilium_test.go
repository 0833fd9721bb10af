package cilium

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/pkg/program/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// deadline is how long a change may take to get into the agent's maps, its longest backoffs included.
	deadline = 3 * time.Minute
	// many is how many further governed Services there are.
	many = 1000
)

// fixture is the node with Cilium, a1, and the one with kube-proxy beside it, a2.
type fixture struct {
	*testing.T
	ctx           context.Context
	client        kubernetes.Interface
	namespace     string
	agent         *agent
	cilium, proxy *cluster.Node
	service, open *corev1.Service
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, ctx: t.Context(), client: shared.Client()}
	var err error
	f.cilium, err = shared.Node("a1")
	must(t, err)
	f.proxy, err = shared.Node("a2")
	must(t, err)
	crds, err := filepath.Glob(filepath.Join(sources, "pkg/k8s/apis/cilium.io/client/crds/v2*/*.yaml"))
	must(t, err)
	args := []string{"kubectl", "--kubeconfig=" + shared.Kubeconfig(), "--server=" + f.proxy.APIServerURL(), "apply",
		"--server-side", "-f", "role.yaml"}
	for _, crd := range crds {
		args = append(args, "-f", crd)
	}
	components, err := suite.Program("COMPONENTS_BIN", "components")
	must(t, err)
	_, err = f.proxy.Run(f.ctx, components, args...)
	must(t, err)

	f.namespace = suite.Namespace(t, shared, "cilium-")
	must(t, workload.CreateDaemonSet(f.ctx, f.client, f.namespace, "echo"))
	f.service, err = workload.CreateService(f.ctx, f.client, f.namespace, "echo",
		workload.ServiceOptions{TopologyKeys: []string{unitLabel}})
	must(t, err)
	must(t, workload.CreateDaemonSet(f.ctx, f.client, f.namespace, "open"))
	f.open, err = workload.CreateService(f.ctx, f.client, f.namespace, "open", workload.ServiceOptions{})
	must(t, err)
	f.agent = newAgent(t, f.cilium)
	return f
}

// maps waits until the agent's maps have so many backends of a Service, and returns since when, after begin.
func (f *fixture) maps(what string, service *corev1.Service, want int, begin time.Time) time.Duration {
	f.Helper()
	await.Patience{Within: deadline, Between: 20 * time.Millisecond}.Until(f.T, what, func() error {
		_, backends, err := f.agent.backends(f.ctx, service)
		if err == nil && len(backends) != want {
			err = fmt.Errorf("want %d backends, got %s", want, strings.Join(backends, " "))
		}
		return err
	})
	took := time.Since(begin)
	f.Logf("%-66s cilium     %7d ms", what, took.Milliseconds())
	return took
}

// kubeProxy waits until the node with kube-proxy reaches exactly these nodes.
func (f *fixture) kubeProxy(what string, want string, begin time.Time) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, deadline)
	defer cancel()
	if err := workload.AwaitReach(ctx, f.proxy, f.service, want, 20); err != nil {
		f.Errorf("%s: %v", what, err)
	}
	f.Logf("%-66s kube-proxy %7d ms", what, time.Since(begin).Milliseconds())
}

// both waits for the maps and the node with kube-proxy at once.
func (f *fixture) both(what, want string) {
	f.Helper()
	begin := time.Now()
	var group sync.WaitGroup
	group.Go(func() { f.kubeProxy(what, want, begin) })
	f.maps(what, f.service, len(strings.Fields(want)), begin)
	group.Wait()
	f.reached(want)
}

// reached waits until connections from the node with Cilium are answered by exactly these nodes. An agent that has
// just started compiles its programs first.
func (f *fixture) reached(want string) {
	f.Helper()
	await.Patience{Within: deadline, Between: 20 * time.Millisecond}.Until(f.T, "connections are answered", func() error {
		got, err := f.agent.answers(f.service)
		if err == nil && got != want {
			err = fmt.Errorf("want %s, got %s", want, got)
		}
		return err
	})
}

func (f *fixture) relabel(node, unit string) {
	f.Helper()
	must(f.T, shared.RelabelNode(f.ctx, node, unitLabel, unit))
}

// TestCilium: the agent's maps have what kube-proxy's rules have, through whatever befalls the wrapper.
func TestCilium(t *testing.T) {
	f := newFixture(t)
	begin := time.Now()
	f.agent.start()
	f.maps("first sync, directly at kube-apiserver: all sites", f.service, 4, begin)
	f.reached("a1 a2 b1 b2")
	f.agent.stop()

	begin = time.Now()
	f.agent.start(f.agent.through())
	f.maps("first sync, through the wrapper: the own site", f.service, 2, begin)
	f.maps("a Service that is not governed", f.open, 4, begin)
	f.reached("a1 a2")
	f.probes()

	f.relabel("b1", unitA)
	f.both("a node joins the site", "a1 a2 b1")
	f.relabel("b1", unitB)
	f.both("it leaves", "a1 a2")

	f.restarts()
	f.cut()
	f.hub()
}

// probes has the probe of kubectl grid prove see through the translation of sockets, also if nobody answers.
func (f *fixture) probes() {
	f.Helper()
	silent, err := workload.CreateService(f.ctx, f.client, f.namespace, "silent",
		workload.ServiceOptions{TopologyKeys: []string{unitLabel}})
	must(f.T, err)
	f.slice("silent", 0)
	f.maps("a Service whose endpoint is silent", silent, 1, time.Now())
	for _, service := range []*corev1.Service{f.service, f.open, silent} {
		_, backends, err := f.agent.backends(f.ctx, service)
		must(f.T, err)
		result, err := f.agent.probe(service)
		must(f.T, err)
		sent := result.Reached
		if service == silent {
			sent = result.Silent
		}
		var got []string
		for address := range sent {
			host, _, err := net.SplitHostPort(address)
			must(f.T, err)
			got = append(got, host)
		}
		slices.Sort(got)
		if !slices.Equal(got, backends) || len(result.Reached)+len(result.Silent) != len(got) ||
			result.Untranslated+result.Nobody+result.Others > 0 || result.Asked != 30 {
			f.Errorf("%s: the probe saw %+v; the maps have %v", service.Name, result, backends)
		}
	}
}

// restarts stops both wrappers for a while, in which a node joins the site.
func (f *fixture) restarts() {
	for _, away := range []time.Duration{200 * time.Millisecond, 10 * time.Second, time.Minute} {
		for _, node := range []*cluster.Node{f.cilium, f.proxy} {
			must(f.T, node.Wrapper.Stop())
		}
		f.relabel("b1", unitA)
		time.Sleep(away)
		for _, node := range []*cluster.Node{f.cilium, f.proxy} {
			must(f.T, node.Wrapper.Start(f.ctx))
		}
		f.both(fmt.Sprintf("after the wrappers were stopped for %s", away), "a1 a2 b1")
		f.relabel("b1", unitB)
		f.both("and a change afterwards", "a1 a2")
	}
}

// cut takes the node's link away, and restarts its wrapper meanwhile, then the agent, as after a reboot.
func (f *fixture) cut() {
	must(f.T, f.cilium.CutLink(f.ctx))
	must(f.T, f.cilium.Wrapper.Stop())
	must(f.T, f.cilium.Wrapper.Launch())
	f.relabel("b1", unitA)
	time.Sleep(20 * time.Second)
	f.reached("a1 a2")
	f.agent.stop()
	f.reached("a1 a2")
	f.agent.reboot()
	f.reached("")
	begin := time.Now()
	f.agent.start(f.agent.through(), "--auto-create-cilium-node-resource=false") // an agent that cannot write it ends
	f.maps("an agent that starts while the link is cut", f.service, 2, begin)
	f.reached("a1 a2")
	f.Logf("connections are answered %.1f s after it started", time.Since(begin).Seconds())
	must(f.T, f.cilium.RestoreLink(f.ctx))
	f.both("after the link was cut, and the agent started again", "a1 a2 b1")
	f.relabel("b1", unitB)
	f.both("and a change afterwards", "a1 a2")
}

// hub lets the wrapper follow its share.
func (f *fixture) hub() {
	must(f.T, f.cilium.Wrapper.Stop())
	f.cilium.Wrapper.SetArgs(append(f.cilium.Wrapper.Args(), "--hub=require"))
	must(f.T, f.cilium.Wrapper.Start(f.ctx))
	f.relabel("b1", unitA)
	f.both("through a hub: a node joins the site", "a1 a2 b1")
	f.relabel("b1", unitB)
	f.both("it leaves", "a1 a2")
}

// TestManyServices: what happens to the endpoints of other sites costs the agent nothing.
func TestManyServices(t *testing.T) {
	f := newFixture(t)
	names := make([]string, many)
	for i := range names {
		names[i] = fmt.Sprintf("many-%d", i)
		_, err := workload.CreateService(f.ctx, f.client, f.namespace, names[i],
			workload.ServiceOptions{TopologyKeys: []string{unitLabel}})
		must(t, err)
		f.slice(names[i], 0)
	}
	for _, way := range []struct{ name, url string }{{"directly", ""}, {"through the wrapper", f.agent.through()}} {
		if way.url == "" {
			f.agent.start()
		} else {
			f.agent.start(way.url)
		}
		await.Patience{Within: deadline, Between: 50 * time.Millisecond}.Until(t, "the maps have all Services", func() error {
			services, _, err := f.agent.backends(f.ctx, f.service)
			if err == nil && services < many {
				err = fmt.Errorf("%d entries", services)
			}
			return err
		})
		time.Sleep(10 * time.Second) // what else it does at its start
		before := f.agent.cpu()
		for i, name := range names {
			f.slice(name, i+1)
		}
		time.Sleep(3 * time.Second) // the last changes get there
		t.Logf("%d changes of other sites' endpoints %s: %d ms of CPU", many, way.name,
			(f.agent.cpu() - before).Milliseconds())
		f.agent.stop()
	}
}

// slice writes the EndpointSlice of a Service without pods: an endpoint here, and one elsewhere that changes with n.
func (f *fixture) slice(name string, n int) {
	f.Helper()
	endpoint := func(node, address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
	}
	port, protocol := int32(8080), corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "test"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &port, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{endpoint("a2", "10.244.250.1"),
			endpoint("b1", fmt.Sprintf("10.244.251.%d", 1+n%200))},
	}
	slices := f.client.DiscoveryV1().EndpointSlices(f.namespace)
	_, err := slices.Create(f.ctx, slice, metav1.CreateOptions{})
	if n > 0 {
		_, err = slices.Update(f.ctx, slice, metav1.UpdateOptions{})
	}
	must(f.T, err)
}
