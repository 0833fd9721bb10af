package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// answersAgain is how soon after all processes are up the last connection may fail.
	answersAgain = 5 * time.Second
	// startedAgain is how long connections are tried then: a pod that was started again when others were ready already
	// is shown after 10 s.
	startedAgain = 12 * time.Second
	// observed is how long nothing is to happen while the link is back.
	observed = 4 * time.Second
	// pause is the one after every connection.
	pause = 5 * time.Millisecond
	// stateWriteDelay is that of the wrappers that are switched off here.
	stateWriteDelay = 200 * time.Millisecond
	// suspicion is how long a neighbour may take until it counts as silent: three probes of a site of three nodes, and
	// the suspicion time.
	suspicion = 30 * time.Second
)

// site is a site of nodes with container runtimes, with a pod of a site-local Service on each. Several nodes exchange
// facts.
type site struct {
	*fixture
	nodes   []*cluster.Node
	names   []string
	service *corev1.Service
}

func newSite(t *testing.T, name string, specs ...cluster.NodeSpec) *site {
	t.Helper()
	s := &site{fixture: newFixture(t)}
	keys, err := cluster.WriteSiteKey(s.TempDir())
	s.Must(err)
	for _, spec := range specs {
		spec.Labels = map[string]string{siteLabel: name}
		spec.Runtime = true
		spec.WrapperArgs = []string{"--state-write-delay=" + stateWriteDelay.String()}
		if len(specs) > 1 {
			spec.WrapperArgs = append(spec.WrapperArgs, "--site-exchange=on", "--site-exchange-key-file="+keys)
		}
		s.nodes, s.names = append(s.nodes, s.AddNode(spec)), append(s.names, spec.Name)
		s.Must(workload.In(s.client, s.namespace).CreatePod(s.ctx, "echo-"+spec.Name, "echo", spec.Name))
	}
	s.Must(workload.In(s.client, s.namespace).CreatePod(s.ctx, "echo-far", "echo", "b1"))
	s.service = s.fixture.service("echo", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	for _, node := range s.nodes {
		s.Must(workload.AwaitReach(s.ctx, node, s.service, strings.Join(s.names, " "), workload.Tries))
		s.Says(node, "/readyz", "cri: ok")
		if len(s.nodes) > 1 {
			s.Says(node, "/readyz", fmt.Sprintf("site-exchange: ok, %d of %[1]d neighbours take part", len(s.nodes)-1))
		}
	}
	return s
}

// each does something with all nodes at the same time.
func (s *site) each(act func(*cluster.Node) error) {
	s.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(s.nodes))
	for i, node := range s.nodes {
		wg.Go(func() { errs[i] = act(node) })
	}
	wg.Wait()
	for _, err := range errs {
		s.Must(err)
	}
}

// powerCut takes link and power from all nodes, gives power back, and waits until all processes are up.
func (s *site) powerCut() {
	s.Helper()
	s.each(func(n *cluster.Node) error { return n.CutLink(s.ctx) })
	s.each(func(n *cluster.Node) error { return n.PowerOff(s.ctx) })
	if got := workload.ReachPods(s.ctx, s.nodes[0], s.service, 2); len(got) > 0 {
		s.Fatalf("a node without power reaches %v", got)
	}
	s.each(func(n *cluster.Node) error { return n.PowerOn(s.ctx) })
	s.each(func(n *cluster.Node) error { return n.Wrapper.WaitReady(s.ctx) })
	s.each(func(n *cluster.Node) error { return n.KubeProxy.WaitReady(s.ctx) })
}

// TestPowerCut: power and link of a site fail together. Its pods start again with new addresses, and every node reaches
// those of all nodes before the link is back. The cloud has changed meanwhile: it calls the site's pods not ready, a
// Service is gone and another one is there. When the link is back no connection fails, neither before the kubelets have
// reported nor after.
func TestPowerCut(t *testing.T) {
	nftables := cluster.NodeSpec{Name: "p1", ProxyMode: cluster.NFTables, Protocol: cluster.WatchList}
	iptables := cluster.NodeSpec{Name: "p2", ProxyMode: cluster.IPTables, Protocol: cluster.ListThenWatch}
	// What a page of each wrapper says when power is back, and when all is as before.
	alone := [][2]string{
		{"/readyz", "cri: the upstream is away, and this node's pods are shown as the container runtime has them, 2 of them"},
		{"/metrics", "application_grid_wrapper_corrected_pods 2"},
		{"/debug/explain/NAMESPACE/echo", "with which node NODE runs its pod"},
	}
	together := [][2]string{
		{"/readyz", "site-exchange: ok, 2 of 2 neighbours take part; pods on "},
		{"/metrics", "application_grid_wrapper_neighbours_corrected_pods"},
		{"/debug/explain/NAMESPACE/echo", "that node itself says so"},
	}
	for _, of := range []struct {
		name  string
		nodes []cluster.NodeSpec
		says  [][2]string
		again string
	}{
		{"nftables", []cluster.NodeSpec{nftables}, alone, "corrected_pods 0"},
		{"iptables", []cluster.NodeSpec{iptables}, alone, "corrected_pods 0"},
		{"three nodes", []cluster.NodeSpec{
			{Name: "s1", ProxyMode: cluster.NFTables, Protocol: cluster.WatchList},
			{Name: "s2", ProxyMode: cluster.IPTables, Protocol: cluster.ListThenWatch},
			{Name: "s3", ProxyMode: cluster.NFTables, Protocol: cluster.ListThenWatch},
		}, together, "neighbours_corrected_pods 0"},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "site-"+of.nodes[0].Name, of.nodes...)
			first, last := s.names[0], s.names[len(s.names)-1]
			s.Must(workload.In(s.client, s.namespace).CreatePod(s.ctx, "old", "old", first))
			old := s.fixture.service("old", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
			for _, node := range s.nodes {
				s.Must(workload.AwaitReach(s.ctx, node, old, first, workload.Tries))
			}
			s.Kept(stateWriteDelay, s.nodes...)
			s.powerCut()
			s.answersAgain()
			for _, node := range s.nodes {
				fill := strings.NewReplacer("NAMESPACE", s.namespace, "NODE", node.Name())
				for _, said := range of.says {
					s.Says(node, fill.Replace(said[0]), fill.Replace(said[1]))
				}
			}

			// As the node lifecycle controller does, of nodes that it has not heard of.
			for _, name := range s.names {
				s.Must(workload.In(s.client, s.namespace).SetPodCondition(s.ctx, "echo-"+name, corev1.PodReady,
					corev1.ConditionFalse))
			}
			s.Must(s.client.CoreV1().Services(s.namespace).Delete(s.ctx, "old", metav1.DeleteOptions{}))
			s.Must(workload.In(s.client, s.namespace).CreatePod(s.ctx, "late", "late", last))
			late := s.fixture.service("late", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})

			traffic := workload.StartTraffic(s.ctx, workload.URL(s.service), pause)
			defer traffic.End()
			for _, node := range s.nodes {
				defer traffic.From(node, s.names)()
			}
			// One after another: those that are not back yet are still served by those that are.
			for _, node := range s.nodes {
				s.Must(node.RestoreLink(s.ctx))
				time.Sleep(time.Second)
			}
			for _, node := range s.nodes {
				s.Says(node, "/readyz", "endpointslices: ok")
				if len(s.nodes) == 1 {
					s.Says(node, "/readyz", "cri: 1 of this node's pods are shown as the container runtime has them, until the "+
						"API server says the same")
				}
			}
			time.Sleep(observed) // nothing is to happen
			for _, node := range s.nodes {
				s.Must(node.KubeletReports(s.ctx))
			}
			for _, node := range s.nodes {
				s.Says(node, "/readyz", "cri: ok")
				s.Says(node, "/metrics", "application_grid_wrapper_"+of.again)
				s.Must(workload.AwaitReach(s.ctx, node, late, last, workload.Tries))
				s.Must(workload.AwaitReach(s.ctx, node, old, "", workload.Tries))
			}
			time.Sleep(observed)
			s.expectFlawless(traffic) // from before the link was back until the API server had caught up
		})
	}
}

// answersAgain checks how soon after all processes are up no connection of any node fails any more, and that the pods
// of all nodes answer on each.
func (s *site) answersAgain() {
	s.Helper()
	report, err := workload.SiteRecovers(s.ctx, s.nodes, workload.URL(s.service), answersAgain, startedAgain)
	s.Logf("all processes are up:\n%s", report)
	if err == nil {
		return
	}
	for _, node := range s.nodes {
		for _, page := range []string{"/readyz", "/debug/explain/" + s.namespace + "/echo"} {
			reply, err := node.Get(s.ctx, node.WrapperURL()+page)
			s.Logf("%s%s: %v %+v", node.Spec.Name, page, err, reply)
		}
	}
	s.Fatal(err)
}

// TestWithoutRuntime: the same power cut of a node whose wrapper asks no runtime leaves the Service dead until the
// kubelet has reported: what is shown are the addresses of pods that are gone.
func TestWithoutRuntime(t *testing.T) {
	s := newSite(t, "site-p3", cluster.NodeSpec{Name: "p3"})
	node := s.nodes[0]
	node.Wrapper.SetArgs(slices.DeleteFunc(node.Wrapper.Args(), func(arg string) bool {
		return strings.HasPrefix(arg, "--cri=")
	}))
	s.Must(node.Wrapper.Restart(s.ctx))
	s.Kept(stateWriteDelay, node)
	s.powerCut()
	recovery := workload.Recover(s.ctx, node, workload.URL(s.service), time.Now(), answersAgain)
	if len(recovery.Failed) < recovery.Tried {
		s.Fatalf("this test proves nothing: %s", recovery)
	}
	s.Must(node.RestoreLink(s.ctx))
	s.Must(node.KubeletReports(s.ctx))
	s.Must(workload.AwaitReach(s.ctx, node, s.service, "p3", workload.Tries))
}

// TestSilentNeighbour: a node of a site that dies while the link is cut is not sent any connections soon, neither when
// its neighbours restart without it, and is again when it is back.
func TestSilentNeighbour(t *testing.T) {
	t.Parallel()
	s := newSite(t, "site-silent",
		cluster.NodeSpec{Name: "q1", ProxyMode: cluster.NFTables, Protocol: cluster.WatchList},
		cluster.NodeSpec{Name: "q2", ProxyMode: cluster.IPTables, Protocol: cluster.WatchList},
		cluster.NodeSpec{Name: "q3", ProxyMode: cluster.NFTables, Protocol: cluster.WatchList},
	)
	s.Kept(stateWriteDelay, s.nodes...)
	s.each(func(n *cluster.Node) error { return n.CutLink(s.ctx) })
	for _, node := range s.nodes {
		s.Says(node, "/readyz", "cri: the upstream is away")
	}
	s.Must(s.nodes[2].PowerOff(s.ctx))
	died := time.Now()
	for _, node := range s.nodes[:2] {
		s.Must(workload.AwaitReach(s.ctx, node, s.service, "q1 q2", workload.Tries))
		s.Says(node, "/metrics", "application_grid_wrapper_silent_nodes 1")
		s.Says(node, "/debug/explain/"+s.namespace+"/echo", "node q3 does not answer its neighbours")
	}
	t.Logf("the endpoints on the dead neighbour were hidden after %s", time.Since(died).Round(time.Millisecond))
	if took := time.Since(died); took > suspicion {
		t.Errorf("it took %s", took)
	}
	// The others lose their power too, so they have not heard it since they started.
	for _, node := range s.nodes[:2] {
		s.Must(node.PowerOff(s.ctx))
	}
	for _, node := range s.nodes[:2] {
		s.Must(node.PowerOn(s.ctx))
	}
	started := time.Now()
	for _, node := range s.nodes[:2] {
		s.Must(node.Wrapper.WaitReady(s.ctx))
		s.Must(workload.AwaitReach(s.ctx, node, s.service, "q1 q2", workload.Tries))
		s.Says(node, "/metrics", "application_grid_wrapper_silent_nodes 1")
	}
	t.Logf("they were hidden again %s after the neighbours were switched on",
		time.Since(started).Round(time.Millisecond))
	if took := time.Since(started); took > 2*suspicion {
		t.Errorf("it took %s", took)
	}
	s.Must(s.nodes[2].PowerOn(s.ctx))
	for _, node := range s.nodes {
		s.Must(workload.AwaitReach(s.ctx, node, s.service, "q1 q2 q3", workload.Tries))
		s.Says(node, "/metrics", "application_grid_wrapper_silent_nodes 0")
	}
	s.each(func(n *cluster.Node) error { return n.RestoreLink(s.ctx) })
	for _, node := range s.nodes {
		s.Must(node.KubeletReports(s.ctx))
	}
	for _, node := range s.nodes {
		s.Says(node, "/readyz", "cri: ok")
	}
}
