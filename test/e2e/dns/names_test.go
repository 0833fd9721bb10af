package dns

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// TestSameNameInEverySite is the walk-through: one name, three sites, three answers; and every kind of change
// follows within a second.
func TestSameNameInEverySite(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := map[string][]string{}
	for _, site := range sites {
		addresses[site] = f.podAddresses(site, replicas)
	}
	own := func(node *cluster.Node) error { return f.asSite(node, addresses[sites[node.Spec.Name]]) }
	f.follows("created: every name is its own site's pod, on every node", func() error { return onEveryNode(own) })

	f.scale("east", 5)
	addresses["east"] = f.podAddresses("east", 5)
	f.follows("scaled up in one site", func() error { return onEveryNode(own) })
	f.Must(onEveryNode(func(node *cluster.Node) error {
		if sites[node.Spec.Name] == "east" {
			return nil
		}
		return f.unknown(node, f.name(4))
	}))

	f.scale("east", 2)
	addresses["east"] = addresses["east"][:2]
	f.published("east", addresses["east"])
	f.follows("scaled down in one site", func() error {
		if err := f.unknown(f.Node("east1"), f.name(2)); err != nil {
			return err
		}
		return onEveryNode(own)
	})
	f.deleted("the pod that is not wanted", func() error {
		_, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, podName("east", 2), metav1.GetOptions{})
		return err
	})
	f.scale("east", replicas)
	addresses["east"] = f.podAddresses("east", replicas)
	f.follows("scaled up again", func() error { return onEveryNode(own) })

	f.deletePod("west", 1)
	f.published("west", []string{addresses["west"][0], "", addresses["west"][2]})
	f.follows("a pod is being deleted: its name is gone", func() error { return f.unknown(f.Node("west1"), f.name(1)) })
	f.letGo("west", 1)
	old := addresses["west"][1]
	addresses["west"][1] = "10.244.2.200"
	f.setAddress("west", 1, addresses["west"][1])
	f.published("west", addresses["west"])
	f.follows("its successor has another address", func() error { return onEveryNode(own) })
	f.Logf("%s in site west was %s and is %s", f.name(1), old, addresses["west"][1])

	f.Must(shared.RelabelNode(f.ctx, "north1", siteLabel, "east"))
	f.follows("a node moves: it answers as its new site",
		func() error { return f.asSite(f.Node("north1"), addresses["east"]) })
	f.Must(shared.RelabelNode(f.ctx, "north1", siteLabel, ""))
	f.follows("a node's label is removed: it has no such names", func() error { return f.allUnknown(f.Node("north1")) })
	f.Must(shared.RelabelNode(f.ctx, "north1", siteLabel, "north"))
	f.follows("the label is back", func() error { return onEveryNode(own) })

	f.Must(f.client.CoreV1().Services(f.namespace).Delete(f.ctx, service, metav1.DeleteOptions{}))
	f.follows("the Service is deleted: no names", func() error { return onEveryNode(f.allUnknown) })
	f.createService()
	for site, pods := range addresses {
		f.published(site, pods)
	}
	f.follows("the Service is back", func() error { return onEveryNode(own) })

	f.Must(f.client.AppsV1().StatefulSets(f.namespace).Delete(f.ctx, grid+"-west", metav1.DeleteOptions{}))
	f.Eventually("one site's set is deleted: no names in that site",
		func() error { return f.allUnknown(f.Node("west1")) })
	f.Must(f.asSite(f.Node("east1"), addresses["east"]))

	f.Must(f.dynamic.Resource(gridsResource).Namespace(f.namespace).Delete(f.ctx, grid, metav1.DeleteOptions{}))
	// The garbage collector hears of the CRD within 30 s, and looks at the grid after pauses of 10, 20, 40 s and so on.
	f.Patience.Within = 2 * deadline
	f.Eventually("the grid is deleted, and its sets and pods: no names",
		func() error { return onEveryNode(f.allUnknown) })
}

// TestAnotherIncarnation: pods that are left when their set is deleted keep their names, and so does the set that
// adopts them.
func TestAnotherIncarnation(t *testing.T) {
	f := newFixture(t)
	node, addresses := f.east()
	orphan := metav1.DeletePropagationOrphan
	f.Must(f.client.AppsV1().StatefulSets(f.namespace).Delete(f.ctx, grid+"-east",
		metav1.DeleteOptions{PropagationPolicy: &orphan}))
	f.deleted("the set", func() error {
		_, err := f.client.AppsV1().StatefulSets(f.namespace).Get(f.ctx, grid+"-east", metav1.GetOptions{})
		return err
	})
	stop := f.alwaysAnswers(node, addresses)
	f.createSet("east")
	f.Eventually("the new set has adopted the pods", func() error {
		set, err := f.client.AppsV1().StatefulSets(f.namespace).Get(f.ctx, grid+"-east", metav1.GetOptions{})
		if err == nil && set.Status.Replicas != replicas {
			err = fmt.Errorf("it has %d", set.Status.Replicas)
		}
		return err
	})
	stop()
}

// TestDualStack: every address of a pod is answered, and so is a change of them.
func TestDualStack(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	address := f.podAddresses("east", replicas)[0]
	f.follows("A only", func() error { return f.answers(f.Node("east1"), f.name(0), "A", address) })
	f.Must(f.answers(f.Node("east1"), f.name(0), "AAAA")) // it exists, and has none

	const address6 = "fd00::244:1"
	f.setAddress("east", 0, address, address6)
	f.follows("A and AAAA", func() error {
		if err := f.answers(f.Node("east1"), f.name(0), "AAAA", address6); err != nil {
			return err
		}
		return f.answers(f.Node("east1"), f.name(0), "A", address)
	})
}

// TestHeadlessService: CoreDNS' kubernetes plugin gets its slices from the wrapper.
func TestHeadlessService(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := map[string][]string{}
	for _, site := range sites {
		addresses[site] = f.podAddresses(site, replicas)
	}
	whole := fmt.Sprintf("%s.%s.svc.cluster.local", service, f.namespace)
	f.Eventually("the headless name is the own site's pods", func() error {
		return onEveryNode(func(node *cluster.Node) error {
			return f.answers(node, whole, "A", addresses[sites[node.Spec.Name]]...)
		})
	})

	f.Must(shared.RelabelNode(f.ctx, "north1", siteLabel, "east"))
	defer shared.RelabelNode(f.ctx, "north1", siteLabel, "north")
	f.follows("a node moves: the headless name is its new site's pods", func() error {
		// Node north1 is in site east now, and with it the pods that run on it.
		return f.answers(f.Node("north1"), whole, "A", slices.Concat(addresses["east"], addresses["north"])...)
	})
}

// TestRestarts: neither the daemon's nor the API server's absence takes anything away.
func TestRestarts(t *testing.T) {
	f := newFixture(t)
	node, addresses := f.east()

	stop := f.alwaysAnswers(node, addresses)
	f.settled(node)
	before, err := os.Stat(node.HostsFile)
	f.Must(err)
	node.DNSDaemon.Kill()
	f.Must(node.DNSDaemon.Start(f.ctx))
	after, err := os.Stat(node.HostsFile)
	f.Must(err)
	if !os.SameFile(before, after) {
		t.Error("the restart wrote the file, although nothing had changed")
	}

	// The daemon starts while the API server is away: the wrapper has all that it needs.
	shared.APIServer.Kill()
	node.DNSDaemon.Kill()
	f.Must(node.DNSDaemon.Start(f.ctx))
	// And while the wrapper is away too: the file stays.
	node.Wrapper.Kill()
	node.DNSDaemon.Kill()
	f.Must(node.DNSDaemon.Launch())
	f.readyz(node, http.StatusServiceUnavailable, "not listed yet")
	f.Must(shared.APIServer.Start(f.ctx))
	f.Must(node.Wrapper.Start(f.ctx))
	f.Must(node.DNSDaemon.WaitReady(f.ctx))
	stop()
	f.scale("east", 1)
	f.Eventually("the daemon follows again", func() error { return f.unknown(node, f.name(1)) })
}

// TestBrokenBlock: someone edits the file by hand.
func TestBrokenBlock(t *testing.T) {
	f := newFixture(t)
	node, addresses := f.east()
	f.settled(node)
	data, err := os.ReadFile(node.HostsFile)
	f.Must(err)
	const foreign = "10.9.9.9 printer.example.org\n"
	f.Must(os.WriteFile(node.HostsFile, []byte(foreign+strings.ReplaceAll(string(data), addresses[0], "6.6.6.6")),
		0o600))
	resolvable.Until(t, "the block is mended, the foreign line stays and is answered", func() error {
		now, err := os.ReadFile(node.HostsFile)
		if err != nil {
			return err
		}
		if string(now) != foreign+string(data) {
			return fmt.Errorf("the file is\n%s", now)
		}
		if err := f.answers(node, "printer.example.org", "A", "10.9.9.9"); err != nil {
			return err
		}
		return f.asSite(node, addresses)
	})
}

// TestFootprint: what the daemon takes.
func TestFootprint(t *testing.T) {
	f := newFixture(t)
	node, _ := f.east()
	reply, err := node.Get(f.ctx, "http://127.0.0.1:51007/metrics")
	f.Must(err)
	if in, _ := cluster.Metric(reply.Body, "statefulset_grid_daemon_in_sync"); in != 1 {
		t.Errorf("the metrics do not say that the file is in sync")
	}
	resident, peak, err := cluster.ResidentMemory(node.DNSDaemon.PID())
	f.Must(err)
	changes, _ := cluster.Metric(reply.Body, "statefulset_grid_daemon_change_delay_seconds_count")
	took, _ := cluster.Metric(reply.Body, "statefulset_grid_daemon_change_delay_seconds_sum")
	f.Logf("%.0f MB resident, at most %.0f MB; %.0f changes took %.3f s", resident/1e6, peak/1e6, changes, took)
}

// TestCorefile: what is proven here is what the manifests say.
func TestCorefile(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "coredns-edge", "Corefile"))
	suite.Must(t, err)
	const kubernetes = "    kubernetes cluster.local in-addr.arpa ip6.arpa {\n"
	added := kubernetes + "       kubeconfig /etc/coredns/wrapper.kubeconfig\n" // as docs/coredns.md adds it
	if strings.Replace(string(data), kubernetes, added, 1) != cluster.Corefile {
		t.Errorf("manifests/coredns-edge/Corefile is not cluster.Corefile:\n%s", data)
	}
}
