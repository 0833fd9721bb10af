package cilium

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
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

	"github.com/application-grid/application-grid/internal/testkit/await"
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
	suite.Must(t, err)
	f.proxy, err = shared.Node("a2")
	suite.Must(t, err)
	crds, err := filepath.Glob(filepath.Join(sources, "pkg/k8s/apis/cilium.io/client/crds/v2*/*.yaml"))
	suite.Must(t, err)
	args := []string{"apply", "--server-side", "-f", "role.yaml", "-f", "cilium.yaml"}
	for _, crd := range crds {
		args = append(args, "-f", crd)
	}
	f.kubectl(args...)

	f.namespace = suite.Namespace(t, shared, "cilium-")
	suite.Must(t, workload.In(f.client, f.namespace).CreateDaemonSet(f.ctx, "echo"))
	f.service, err = workload.In(f.client, f.namespace).CreateService(f.ctx, "echo",
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	suite.Must(t, err)
	suite.Must(t, workload.In(f.client, f.namespace).CreateDaemonSet(f.ctx, "open"))
	f.open, err = workload.In(f.client, f.namespace).CreateService(f.ctx, "open", workload.ServiceOptions{})
	suite.Must(t, err)
	f.agent = newAgent(t, f.cilium)
	go workload.Probes{Client: f.client, Dir: f.agent.dir,
		Execute: func(ctx context.Context, name string, args ...string) error {
			if name == f.cilium.Name() {
				_, err := f.agent.run(wrapper, args...)
				return err
			}
			node, err := shared.Node(name)
			if err != nil {
				return err
			}
			_, err = node.Run(ctx, wrapper, args...)
			return err
		}}.Run(f.ctx)
	return f
}

func (f *fixture) kubectl(args ...string) {
	f.Helper()
	_, err := f.proxy.Run(f.ctx, suite.Binary(f, "components"), append([]string{"kubectl", "--kubeconfig=" + shared.Kubeconfig(),
		"--server=" + f.proxy.APIServerURL()}, args...)...)
	suite.Must(f.T, err)
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

func (f *fixture) relabel(node, site string) {
	f.Helper()
	suite.Must(f.T, shared.RelabelNode(f.ctx, node, siteLabel, site))
}

// startProxy starts kube-proxy without any rules, and waits until the node reaches exactly these nodes.
func (f *fixture) startProxy(what, want string) {
	f.Helper()
	suite.Must(f.T, f.proxy.KubeProxy.Stop())
	_, err := f.proxy.Run(f.ctx, "nft", "flush", "ruleset")
	suite.Must(f.T, err)
	begin := time.Now()
	suite.Must(f.T, f.proxy.KubeProxy.Launch())
	f.kubeProxy(what, want, begin)
}

// TestCilium: the agent's maps have what kube-proxy's rules have, through whatever befalls the wrapper.
func TestCilium(t *testing.T) {
	f := newFixture(t)
	begin := time.Now()
	f.agent.start()
	f.maps("first sync, directly at kube-apiserver: all sites", f.service, 4, begin)
	f.reached("a1 a2 b1 b2")
	f.plugin("directly", "Leak", "failure")
	f.agent.stop()

	f.kubectl("apply", "--server-side", "-f", "../../manifests/cilium/node-config.yaml")
	begin = time.Now()
	f.agent.start(f.agent.configure())
	f.maps("first sync, through the wrapper: the own site", f.service, 2, begin)
	f.maps("a Service that is not governed", f.open, 4, begin)
	f.reached("a1 a2")
	f.startProxy("first sync, through the wrapper: the own site", "a1 a2")
	f.plugin("through the wrapper", "Closed", "ok")
	f.probes()

	f.relabel("b1", siteA)
	f.both("a node joins the site", "a1 a2 b1")
	f.relabel("b1", siteB)
	f.both("it leaves", "a1 a2")

	f.restarts()
	f.moves()
	f.cut()
	f.hub()
}

// plugin has kubectl grid say, of the node with Cilium, whether the loop is closed, and whom its agent asks.
func (f *fixture) plugin(way, verdict, severity string) {
	f.Helper()
	run := func(into any, args ...string) {
		said, err := exec.CommandContext(f.ctx, plugin, append(args, "-o", "json",
			"--kubeconfig="+shared.Kubeconfig())...).Output()
		if unmarshal := json.Unmarshal(said, into); unmarshal != nil {
			f.Fatalf("kubectl grid %s: %v, %v\n%s", args[0], err, unmarshal, said)
		}
	}
	var proof struct {
		Rows []struct{ Node, Verdict, Message string }
	}
	run(&proof, "prove", "echo", "-n", f.namespace, "--all-nodes", "--image=application-grid-wrapper:test", "--requests=30")
	for _, row := range proof.Rows {
		f.Logf("kubectl grid prove, %s: %s %s %s", way, row.Node, row.Verdict, row.Message)
		want := "Closed"
		if row.Node == f.cilium.Name() {
			want = verdict
		}
		if row.Verdict != want {
			f.Errorf("%s, from %s: want %s", way, row.Node, want)
		}
	}
	if len(proof.Rows) != 4 {
		f.Errorf("%s: %d rows", way, len(proof.Rows))
	}
	var report struct {
		Findings []struct {
			Severity, Check, Message string
			Object                   struct{ Kind, Name string }
		}
	}
	run(&report, "check")
	found := false
	for _, finding := range report.Findings {
		if finding.Check != "KubeProxyReplacement" {
			continue
		}
		f.Logf("kubectl grid check, %s: %s %s/%s: %s", way, finding.Severity, finding.Object.Kind, finding.Object.Name,
			finding.Message)
		found = true
		if finding.Severity != severity {
			f.Errorf("%s: want %s", way, severity)
		}
	}
	if !found {
		f.Errorf("%s: kubectl grid check says nothing of Cilium", way)
	}
}

// probes has the probe of kubectl grid prove see through the translation of sockets, also if nobody answers.
func (f *fixture) probes() {
	f.Helper()
	silent, err := workload.In(f.client, f.namespace).CreateService(f.ctx, "silent",
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	suite.Must(f.T, err)
	f.slice("silent", 0)
	f.maps("a Service whose endpoint is silent", silent, 1, time.Now())
	for _, service := range []*corev1.Service{f.service, f.open, silent} {
		_, backends, err := f.agent.backends(f.ctx, service)
		suite.Must(f.T, err)
		result, err := f.agent.probe(service)
		suite.Must(f.T, err)
		sent := result.Reached
		if service == silent {
			sent = result.Silent
		}
		var got []string
		for address := range sent {
			host, _, err := net.SplitHostPort(address)
			suite.Must(f.T, err)
			got = append(got, host)
		}
		slices.Sort(got)
		if !slices.Equal(got, backends) || len(result.Reached)+len(result.Silent) != len(got) ||
			result.Untranslated+result.Nobody+result.Others > 0 || result.Asked != 30 {
			f.Errorf("%s: the probe saw %+v; the maps have %v", service.Name, result, backends)
		}
	}
}

// restarts ends both wrappers for a while, in which a node joins the site.
func (f *fixture) restarts() {
	for _, away := range []struct {
		ended string
		end   func(*cluster.Component) error
		time.Duration
	}{
		{"stopped", (*cluster.Component).Stop, 200 * time.Millisecond},
		{"killed", func(c *cluster.Component) error { c.Kill(); return nil }, 10 * time.Second},
		{"stopped", (*cluster.Component).Stop, time.Minute},
	} {
		if testing.Short() && away.Duration == time.Minute {
			continue
		}
		for _, node := range []*cluster.Node{f.cilium, f.proxy} {
			suite.Must(f.T, away.end(node.Wrapper))
		}
		f.relabel("b1", siteA)
		time.Sleep(away.Duration)
		for _, node := range []*cluster.Node{f.cilium, f.proxy} {
			suite.Must(f.T, node.Wrapper.Start(f.ctx))
		}
		f.both(fmt.Sprintf("after the wrappers were %s for %s", away.ended, away), "a1 a2 b1")
		f.relabel("b1", siteB)
		f.both("and a change afterwards", "a1 a2")
	}
}

// moves leads the agent to kube-apiserver when its wrapper stops, and back.
func (f *fixture) moves() {
	suite.Must(f.T, f.cilium.Wrapper.Stop())
	relay, err := f.cilium.StandIn(f.ctx, "")
	suite.Must(f.T, err)
	defer relay.Close()
	f.maps("moved to kube-apiserver: all sites", f.service, 4, time.Now())
	ready := func(status corev1.ConditionStatus) {
		suite.Must(f.T, workload.In(f.client, f.namespace).SetReadyOn(f.ctx, "echo", "a2", status))
	}
	ready(corev1.ConditionFalse)
	f.maps("and a change there", f.service, 3, time.Now())
	relay.Close()
	suite.Must(f.T, f.cilium.Wrapper.Start(f.ctx))
	f.maps("moved back to the wrapper", f.service, 1, time.Now())
	ready(corev1.ConditionTrue)
	f.maps("and a change there", f.service, 2, time.Now())
}

// cut takes the node's link away, and restarts its wrapper meanwhile, then the agent, as after a reboot.
func (f *fixture) cut() {
	through := "--k8s-api-server-urls=" + f.cilium.WrapperURL()
	f.agent.configure(through)
	suite.Must(f.T, f.cilium.CutLink(f.ctx))
	suite.Must(f.T, f.cilium.Wrapper.Stop())
	suite.Must(f.T, f.cilium.Wrapper.Launch())
	f.relabel("b1", siteA)
	time.Sleep(20 * time.Second)
	f.reached("a1 a2")
	f.agent.stop()
	f.reached("a1 a2")
	f.agent.reboot()
	f.reached("")
	begin := time.Now()
	configuration := f.agent.configure(through)
	f.Logf("cilium-dbg build-config took %.1f s", time.Since(begin).Seconds())
	f.agent.start(configuration, "--auto-create-cilium-node-resource=false") // an agent that cannot write it ends
	f.maps("an agent that starts while the link is cut", f.service, 2, begin)
	f.reached("a1 a2")
	f.Logf("connections are answered %.1f s after it started", time.Since(begin).Seconds())
	suite.Must(f.T, f.cilium.RestoreLink(f.ctx))
	f.both("after the link was cut, and the agent started again", "a1 a2 b1")
	f.relabel("b1", siteB)
	f.both("and a change afterwards", "a1 a2")
}

// hub lets the wrapper follow its share.
func (f *fixture) hub() {
	suite.Must(f.T, f.cilium.Wrapper.Stop())
	f.cilium.Wrapper.SetArgs(append(f.cilium.Wrapper.Args(), "--hub"))
	suite.Must(f.T, f.cilium.Wrapper.Start(f.ctx))
	f.relabel("b1", siteA)
	f.both("through a hub: a node joins the site", "a1 a2 b1")
	f.relabel("b1", siteB)
	f.both("it leaves", "a1 a2")
}

// TestManyServices prints what many Services cost the agent and a kube-proxy: their first sync, and changes of other
// sites' endpoints, beside what the processes take in as long a time without changes.
func TestManyServices(t *testing.T) {
	if testing.Short() {
		t.Skip("these are figures only")
	}
	f := newFixture(t)
	names := make([]string, many)
	for i := range names {
		names[i] = fmt.Sprintf("many-%d", i)
		_, err := workload.In(f.client, f.namespace).CreateService(f.ctx, names[i],
			workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
		suite.Must(t, err)
		f.slice(names[i], 0)
	}
	through := f.proxy.KubeProxy.Args()
	directly := slices.DeleteFunc(slices.Clone(through), func(arg string) bool { return strings.HasPrefix(arg, "--master=") })
	f.kubectl("apply", "--server-side", "-f", "../../manifests/cilium/node-config.yaml")
	configuration := []string{f.agent.configure()}
	for _, way := range []struct {
		name, sites  string
		agent, proxy []string
	}{{"directly", "a1 a2 b1 b2", nil, directly}, {"through the wrapper", "a1 a2", configuration, through}} {
		begin := time.Now()
		f.agent.start(way.agent...)
		await.Patience{Within: deadline, Between: 50 * time.Millisecond}.Until(t, "the maps have all Services", func() error {
			services, _, err := f.agent.backends(f.ctx, f.service)
			if err == nil && services < many {
				err = fmt.Errorf("%d entries", services)
			}
			return err
		})
		t.Logf("first sync of %d Services %s: cilium %d ms", many, way.name, time.Since(begin).Milliseconds())
		f.proxy.KubeProxy.SetArgs(way.proxy)
		f.startProxy(fmt.Sprintf("first sync of %d Services %s", many, way.name), way.sites)
		f.reached(way.sites)         // then the agent has compiled its programs
		time.Sleep(10 * time.Second) // what else they do at their start
		used := func() (cilium, kubeProxy int64) {
			return cpu(t, f.agent.process.Process.Pid).Milliseconds(), cpu(t, f.proxy.KubeProxy.PID()).Milliseconds()
		}
		begin = time.Now()
		cilium, kubeProxy := used()
		for i, name := range names {
			f.slice(name, i+1)
		}
		time.Sleep(3 * time.Second) // the last changes get there
		busyCilium, busyProxy := used()
		time.Sleep(time.Since(begin))
		idleCilium, idleProxy := used()
		t.Logf("%d changes of other sites' endpoints %s: cilium %d ms of CPU (%d without them), kube-proxy %d ms (%d)", many,
			way.name, busyCilium-cilium, idleCilium-busyCilium, busyProxy-kubeProxy, idleProxy-busyProxy)
		f.agent.reboot() // with it the maps go
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
	suite.Must(f.T, err)
}
