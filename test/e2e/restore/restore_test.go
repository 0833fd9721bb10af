package restore

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	siteLabel = "zone1"
	siteA     = "site-a"

	// direct asks kube-apiserver, behind a hub, cached a proxy like SuperEdge's lite-apiserver.
	direct = "direct"
	behind = "behind"
	cached = "cached"

	// deadline is how long anything may take that is waited for and not measured.
	deadline = time.Minute
	// reconnect is how long after kube-apiserver is back all is to be right: a source asks again every 22 s at most.
	reconnect = 40 * time.Second
	// writes are made after the backup, so that the restored cluster does not reach the version of before soon.
	writes = 400
)

var shared *cluster.Cluster

func TestMain(m *testing.M) {
	node := func(name string, spec cluster.NodeSpec) cluster.NodeSpec {
		spec.Name, spec.Labels = name, map[string]string{siteLabel: siteA}
		return spec
	}
	suite.Suite{
		Name: "e2e/restore", Cluster: &shared,
		Programs: []string{"application-grid-wrapper", "application-grid-hub", "statefulset-grid-daemon"},
		Options: cluster.Options{
			DNSFromAPIServer: true,
			Nodes: []cluster.NodeSpec{
				node(direct, cluster.NodeSpec{}), node(behind, cluster.NodeSpec{WrapperArgs: []string{"--hub"}}),
				node(cached, cluster.NodeSpec{Interposed: true, Lite: true}),
			},
		},
	}.Main(m)
}

// fixture is a namespace with an echo pod on each node, and Services whose endpoints the test writes.
type fixture struct {
	suite.Test
	ctx       context.Context
	client    kubernetes.Interface
	namespace string
	// addresses are those of the pods, clients ask the wrappers; by node.
	addresses map[string]string
	clients   map[string]kubernetes.Interface
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Test: suite.NewTest(t, shared, deadline, 100*time.Millisecond), ctx: t.Context(),
		client: shared.Client(), namespace: suite.Namespace(t, shared, "restore-"), addresses: map[string]string{},
		clients: map[string]kubernetes.Interface{}}
	for _, n := range shared.Nodes() {
		node := n.Name()
		client, err := kubernetes.NewForConfig(n.WrapperConfig(cluster.RoleKubeProxy))
		f.Must(err)
		f.clients[node] = client
		f.Must(workload.In(f.client, f.namespace).CreatePod(f.ctx, "echo-"+node, "echo", node))
		f.Eventually("the pod on "+node+" has an address", func() error {
			pod, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, "echo-"+node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if f.addresses[node] = pod.Status.PodIP; pod.Status.PodIP == "" {
				return fmt.Errorf("it has none")
			}
			return nil
		})
	}
	return f
}

// grid labels what is of a StatefulSetGrid named demo.
func grid() map[string]string {
	return map[string]string{"superedge.io/grid-selector": "demo", "superedge.io/grid-uniq-key": siteLabel}
}

// service makes a Service without a selector, whose slices nobody else writes.
func (f *fixture) service(name, clusterIP string) *corev1.Service {
	f.Helper()
	created, err := f.client.CoreV1().Services(f.namespace).Create(f.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: grid(),
			Annotations: map[string]string{workload.TopologyKeys: `["` + siteLabel + `"]`}},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Name: "http", Port: workload.Port}}},
	}, metav1.CreateOptions{})
	f.Must(err)
	return created
}

// slice makes a slice of a Service with one endpoint on a node, whose pod is demo's with this ordinal.
func (f *fixture) slice(service, name, node string, ordinal int) {
	f.Helper()
	labels, pod := grid(), fmt.Sprintf("demo-%s-%d", siteA, ordinal)
	labels[discoveryv1.LabelServiceName] = service
	_, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).Create(f.ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](workload.Port)}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{f.addresses[node]}, NodeName: ptr.To(node), Hostname: ptr.To(pod),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: f.namespace, Name: pod},
		}},
	}, metav1.CreateOptions{})
	f.Must(err)
}

// state is what a node is shown: the slices of both Services, the nodes that traffic reaches, and the daemon's names.
type state struct{ slices, reached, names string }

func (f *fixture) look(node *cluster.Node, echo *corev1.Service) (s state, err error) {
	list, err := f.clients[node.Name()].DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return s, err
	}
	var names []string
	for _, slice := range list.Items {
		names = append(names, slice.Name)
	}
	s.slices = joined(names)
	s.reached = strings.Join(workload.Reach(f.ctx, node, echo, workload.Tries).Nodes(), " ")
	hosts, err := os.ReadFile(node.HostsFile)
	if err != nil {
		return s, err
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(hosts)) {
		for _, field := range strings.Fields(line) {
			if ordinal, _, found := strings.Cut(field, ".demo-svc."+f.namespace); found {
				known[ordinal] = true
			}
		}
	}
	s.names = strings.Join(slices.Sorted(maps.Keys(known)), " ")
	return s, nil
}

func joined(names []string) string { return strings.Join(slices.Sorted(slices.Values(names)), " ") }

// expect waits until every node is shown this, and returns how long it took.
func (f *fixture) expect(when string, echo *corev1.Service, want state) time.Duration {
	f.Helper()
	return f.Eventually(when, func() error {
		for _, node := range shared.Nodes() {
			got, err := f.look(node, echo)
			if err != nil {
				return fmt.Errorf("node %s: %w", node.Name(), err)
			}
			if got != want {
				return fmt.Errorf("node %s has %+v, not %+v", node.Name(), got, want)
			}
		}
		return nil
	})
}

// pids are the processes that must not be restarted for it.
func pids() map[string]int {
	all := map[string]int{}
	for _, node := range shared.Nodes() {
		for _, c := range []*cluster.Component{node.Wrapper, node.DNSDaemon, node.KubeProxy} {
			all[c.Name()] = c.PID()
		}
	}
	for _, replica := range shared.Hubs {
		all[replica.Name()] = replica.PID()
	}
	return all
}

// TestEtcdRestored: when etcd is set back to a backup, with lower versions or with higher ones, what was lost is gone
// for clients of every wrapper, and for the daemon, and what is new is there, soon after kube-apiserver is. No process
// is restarted, and no connection fails. Of higher versions Kubernetes' own clients take notice as well.
func TestEtcdRestored(t *testing.T) {
	for name, bump := range map[string]uint64{"lower": 0, "higher": 1_000_000_000} {
		t.Run(name, func(t *testing.T) { restored(t, bump) })
	}
}

func restored(t *testing.T, bump uint64) {
	t.Helper()
	f := newFixture(t)
	echo := f.service("echo", "")
	f.service("demo-svc", corev1.ClusterIPNone)
	f.slice("echo", "echo-kept", direct, 9)
	f.slice("demo-svc", "demo-kept", direct, 0)
	f.expect("before the backup", echo, state{"demo-kept echo-kept", direct, "demo-0"})
	f.Must(shared.BackUp(f.ctx))

	f.Eventually("much is written after the backup", func() error {
		for i := range writes {
			_, err := f.client.CoreV1().ConfigMaps(f.namespace).Create(f.ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "filler-", Labels: map[string]string{"n": fmt.Sprint(i)}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
		}
		return nil
	})
	f.slice("echo", "echo-lost", behind, 8)
	f.slice("demo-svc", "demo-lost", behind, 1)
	f.expect("what will be lost", echo,
		state{"demo-kept demo-lost echo-kept echo-lost", behind + " " + direct, "demo-0 demo-1"})
	informer := informers.NewSharedInformerFactoryWithOptions(f.client, 0, informers.WithNamespace(f.namespace)).
		Discovery().V1().EndpointSlices().Informer()
	go informer.RunWithContext(f.ctx)
	informed := func() string {
		var names []string
		for _, key := range informer.GetStore().ListKeys() {
			names = append(names, strings.TrimPrefix(key, f.namespace+"/"))
		}
		return joined(names)
	}
	f.Eventually("an informer has it", suite.Is("demo-kept demo-lost echo-kept echo-lost", informed))
	processes := pids()
	traffic := workload.StartTraffic(f.ctx, workload.URL(echo), 20*time.Millisecond)
	for _, node := range shared.Nodes() {
		traffic.From(node, []string{direct, behind, cached})
	}

	f.Must(shared.Restore(f.ctx, bump))
	took := suite.Unhindered(func() {
		f.Eventually("new slices are written", func() error {
			_, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).Get(f.ctx, "echo-kept", metav1.GetOptions{})
			return err
		})
		f.slice("echo", "echo-new", cached, 7)
		f.slice("demo-svc", "demo-new", cached, 2)
		want := state{"demo-kept demo-new echo-kept echo-new", cached + " " + direct, "demo-0 demo-2"}
		f.expect("the restored state", echo, want)
		if bump > 0 {
			f.Eventually("the informer has it", suite.Is(want.slices, informed))
		}
	})
	tried, failed := traffic.End()
	t.Logf("right %s after kube-apiserver was back; %d of %d connections failed", took, len(failed), tried)
	if took > reconnect {
		t.Errorf("it took more than %s", reconnect)
	}
	if len(failed) > 0 || tried < 50 {
		t.Errorf("%d of %d connections failed: %q", len(failed), tried, failed[:min(len(failed), 5)])
	}
	if now := pids(); !maps.Equal(now, processes) {
		t.Errorf("processes were restarted: %v, now %v", processes, now)
	}
}
