package soak

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	siteLabel = "zone1"
	east      = "east"
	west      = "west"
	// mover changes its site; steady is never restarted, so that what its wrapper holds can be compared.
	mover  = "east2"
	steady = "east1"
	// rebooted is the other node with a lite-apiserver of ours, beside steady.
	rebooted = "west1"
	churn    = "churn"
	// within is how long anything may take that has no fault in its way, on a busy machine.
	within = 2 * time.Minute
)

var (
	hours = flag.Float64("hours", 0, "how long it runs; 0.05 for a try. Without it, it is not run")
	seed  = flag.Uint64("seed", 0, "of the order of faults; 0 for another one each time")
)

// world is what the soak happens to.
type world struct {
	suite.Test
	random   *rand.Rand
	client   workload.Namespace
	askers   map[string]*asker
	kubelets map[string]*kubelet
	sites    map[string]string
	replicas int32
	samples  []sample
	begin    time.Time
	done     map[string]int
}

// TestSoak runs for -hours.
func TestSoak(t *testing.T) {
	if *hours <= 0 {
		t.Skip("it runs with -hours: make soak HOURS=2")
	}
	w := newWorld(t)
	end := w.begin.Add(time.Duration(*hours * float64(time.Hour)))
	between := min(10*time.Minute, time.Until(end)/6)
	next := time.Now()                       // the first sample is before all faults
	restore := next.Add(time.Until(end) / 4) // so that most of what happens is after it
	for restored := false; time.Now().Before(end); {
		if !time.Now().Before(next) {
			w.sample()
			next = next.Add(between)
		}
		if !restored && time.Now().After(restore) {
			restored = true
			w.restoreEtcd()
		}
		w.step()
	}
	w.await("all nodes reach their sites")
	w.sample()
	w.conclude()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	node := func(name, site string, mode cluster.ProxyMode, args ...string) cluster.NodeSpec {
		return cluster.NodeSpec{Name: name, Labels: map[string]string{siteLabel: site}, ProxyMode: mode,
			WrapperArgs: args}
	}
	lite := node("west2", west, cluster.IPTables)
	lite.Interposed, lite.Lite = true, true
	nodes := []cluster.NodeSpec{
		node(steady, east, cluster.NFTables), node(rebooted, west, cluster.NFTables, "--hub"),
		node(mover, east, cluster.IPTables), lite,
	}
	for i := range nodes[:2] {
		nodes[i].LiteAPIServer = suite.Binary(t, "lite-apiserver")
	}
	c := suite.Start(t, cluster.Options{HubReplicas: 2, Kubelets: true, Nodes: nodes,
		ControllerManagerArgs: cluster.PatientWithNodes, // no fault lasts for so long
	}, "application-grid-wrapper", "application-grid-hub")
	from := *seed
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("-seed=%d", from)
	w := &world{
		Test:   suite.NewTest(t, c, within, 100*time.Millisecond),
		random: rand.New(rand.NewPCG(from, 0)),
		client: workload.In(c.Client(), metav1.NamespaceDefault), askers: map[string]*asker{},
		kubelets: map[string]*kubelet{}, done: map[string]int{}, replicas: 2,
		sites: map[string]string{steady: east, mover: east, rebooted: west, "west2": west},
	}
	w.Must(w.client.CreateDaemonSet(t.Context(), "echo"))
	w.Must(w.client.CreateDeployment(t.Context(), churn, w.replicas, nil))
	_, err := w.client.CreateService(t.Context(), churn, workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	w.Must(err)
	echo, err := w.client.CreateService(t.Context(), "echo", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	w.Must(err)
	for name := range w.sites {
		w.askers[name] = newAsker(w.Node(name), workload.URL(echo))
	}
	for _, node := range c.Nodes() {
		if node.LiteAPIServer != nil {
			w.kubelets[node.Name()] = w.newKubelet(node)
			w.kubelets[node.Name()].start(t)
		}
	}
	t.Cleanup(w.explain)
	w.await("all nodes reach their sites")
	for _, a := range w.askers {
		a.start(t)
	}
	w.begin = time.Now()
	return w
}

// await waits until each node reaches all nodes of its site and no other, and has the askers expect that; and until the
// kubelets know their pods.
func (w *world) await(what string) {
	w.Helper()
	w.awaitKubelets(what)
	for name, a := range w.askers {
		want := w.siteOf(name)
		a.allow(func(node string) bool { return want[node] }, false)
		w.Eventually(what+": "+name, func() error { return a.reaches(w.Context(), want) })
		a.allow(func(node string) bool { return want[node] }, true)
	}
}

// explain writes what the API server and each wrapper have of the echo Service, if the test has failed.
func (w *world) explain() {
	if !w.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	api, echo := w.Cluster.Client(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=echo"}
	found, err := api.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, echo)
	w.Logf("the API server has the slices %+v, %v", found, err)
	pods, err := api.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=echo"})
	w.Logf("the API server has the pods %+v, %v", pods, err)
	for _, node := range w.Cluster.Nodes() {
		for _, page := range []string{"/readyz", "/debug/explain/default/echo"} {
			reply, err := node.Get(ctx, node.WrapperURL()+page)
			w.Logf("%s%s: %v %+v", node.Spec.Name, page, err, reply)
		}
	}
}

// siteOf says of every node whether it is in the site of this one.
func (w *world) siteOf(name string) map[string]bool {
	want := map[string]bool{}
	for other, site := range w.sites {
		want[other] = site == w.sites[name]
	}
	return want
}

// awaitSite waits until a node that had no power reaches its site.
func (w *world) awaitSite(name string) {
	w.Helper()
	w.Eventually(name+" is back", func() error { return w.askers[name].reaches(w.Context(), w.siteOf(name)) })
}

// step lets something happen, and waits until all nodes reach what they should.
func (w *world) step() {
	faults := []struct {
		name string
		do   func()
	}{
		{"a link flaps", w.flap}, {"a link falls silent", w.silence}, {"connections freeze", w.freeze},
		{"a link loses packets", w.lose}, {"power is cut", w.cutPower}, {"power is cut without a link", w.cutPowerAlone},
		{"a node moves", w.move},
		{"pods come and go", w.churn}, {"the API server restarts", w.restartAPIServer},
		{"a hub restarts", w.restartHub}, {"etcd is compacted", w.compact}, {"a wrapper is killed", w.killWrapper},
	}
	fault := faults[w.random.IntN(len(faults))]
	w.done[fault.name]++
	fault.do()
	w.await("after " + fault.name)
	select {
	case err := <-w.Cluster.Failed():
		w.Fatalf("after %s a component failed: %v", fault.name, err)
	default:
	}
}

// wait lets time pass, from shortest to longest.
func (w *world) wait(shortest, longest time.Duration) {
	select {
	case <-time.After(shortest + time.Duration(w.random.Int64N(int64(longest-shortest)+1))):
	case <-w.Context().Done():
	}
}

// any is one of the nodes, but that.
func (w *world) any(but string) *cluster.Node {
	w.Helper()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(w.sites)), func(name string) bool { return name == but })
	return w.Node(names[w.random.IntN(len(names))])
}

// restoreLink ends what was done to a link.
func (w *world) restoreLink(node *cluster.Node) { w.Must(node.RestoreLink(w.Context())) }

// flap and the others cut no link for as long as the API server needs to call the node dead: its pods
// would be taken away.
func (w *world) flap() {
	node := w.any("")
	for range 2 + w.random.IntN(4) {
		w.Must(node.CutLink(w.Context()))
		w.wait(100*time.Millisecond, 3*time.Second)
		w.restoreLink(node)
		w.wait(100*time.Millisecond, 3*time.Second)
	}
}

func (w *world) silence() {
	node := w.any("")
	w.Must(node.CutLink(w.Context()))
	w.wait(10*time.Second, 40*time.Second)
	w.restoreLink(node)
}

func (w *world) freeze() {
	node := w.any("")
	w.Eventually("there is a connection to freeze", func() error { return node.FreezeConnections(w.Context()) })
	w.wait(5*time.Second, 30*time.Second)
	w.restoreLink(node)
}

func (w *world) lose() {
	node := w.any("")
	w.Must(node.LoseOnLink(w.Context(), 20))
	w.wait(5*time.Second, 20*time.Second)
	w.restoreLink(node)
}

func (w *world) cutPower() {
	node := w.any(steady)
	defer w.askers[node.Name()].excuse()() // its rules are gone until kube-proxy has written them
	if k := w.kubelets[node.Name()]; k != nil {
		defer k.excuse()()
	}
	w.Must(node.Reboot(w.Context()))
	w.awaitSite(node.Name())
	w.awaitKubelets("after power is cut")
}

func (w *world) killWrapper() {
	node := w.any(steady)
	node.Wrapper.Kill()
	w.wait(0, 10*time.Second)
	w.Must(node.Wrapper.Launch())
}

func (w *world) move() {
	for _, a := range w.askers {
		a.allow(func(string) bool { return true }, false) // until all have heard of it
	}
	w.sites[mover] = map[string]string{east: west, west: east}[w.sites[mover]]
	w.Must(w.Cluster.RelabelNode(w.Context(), mover, siteLabel, w.sites[mover]))
}

func (w *world) churn() {
	for range 3 + w.random.IntN(5) {
		w.replicas = w.random.Int32N(12)
		w.Must(w.client.Scale(w.Context(), churn, w.replicas))
		w.wait(time.Second, 4*time.Second)
	}
}

func (w *world) restartAPIServer() {
	w.Cluster.APIServer.Kill()
	w.wait(0, 10*time.Second)
	ctx, cancel := context.WithTimeout(w.Context(), within)
	defer cancel()
	w.Must(w.Cluster.APIServer.Start(ctx))
}

func (w *world) restartHub() {
	hub := w.Cluster.Hubs[w.random.IntN(len(w.Cluster.Hubs))]
	hub.Kill()
	w.wait(0, 10*time.Second)
	w.Must(hub.Launch())
}

// compact forgets all of etcd's past, so that a watch from an older version is answered 410.
func (w *world) compact() {
	w.Must(compactEtcd(w.Context(), w.Cluster))
	w.wait(0, time.Second)
}

// restoreEtcd sets etcd back to a backup, after which pods have come and gone. What docs/operate.md says has to be
// restarted then is restarted: kwok is the other nodes' kubelet.
func (w *world) restoreEtcd() {
	w.done["etcd is restored"]++
	w.Must(w.Cluster.BackUp(w.Context()))
	before := w.replicas
	w.churn()
	w.Must(w.Cluster.Restore(w.Context(), 0))
	w.replicas = before
	for _, c := range []*cluster.Component{w.Cluster.ControllerManager, w.Cluster.Scheduler, w.Cluster.Kwok} {
		w.Must(c.Restart(w.Context()))
	}
	for _, k := range w.kubelets {
		k.restart()
	}
	w.await("after etcd is restored")
}

// nodesReady is nil if the API server calls all nodes ready.
func (w *world) nodesReady() error {
	nodes, err := w.Cluster.Client().CoreV1().Nodes().List(w.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return fmt.Errorf("%s is not ready: %s", node.Name, condition.Message)
			}
		}
	}
	return nil
}
