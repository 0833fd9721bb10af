package dns

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
)

// TestSameNameInEveryUnit is the walk-through: one name, three units, three answers; and every kind of change
// follows within a second.
func TestSameNameInEveryUnit(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := map[string][]string{}
	for _, unit := range units {
		addresses[unit] = f.podAddresses(unit, replicas)
	}
	own := func(node *cluster.Node) error { return f.asUnit(node, addresses[units[node.Spec.Name]]) }
	f.follows("created: every name is its own unit's pod, on every node", func() error { return onEveryNode(own) })
	f.table()

	f.scale("east", 5)
	addresses["east"] = f.podAddresses("east", 5)
	f.follows("scaled up in one unit", func() error { return onEveryNode(own) })
	f.must(onEveryNode(func(node *cluster.Node) error {
		if units[node.Spec.Name] == "east" {
			return nil
		}
		return f.unknown(node, f.name(4))
	}))

	f.scale("east", 2)
	addresses["east"] = addresses["east"][:2]
	f.follows("scaled down in one unit", func() error {
		if err := f.unknown(f.node("east1"), f.name(2)); err != nil {
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
	f.follows("a pod is being deleted: its name is gone", func() error { return f.unknown(f.node("west1"), f.name(1)) })
	f.letGo("west", 1)
	old := addresses["west"][1]
	addresses["west"][1] = "10.244.2.200"
	f.setAddress("west", 1, addresses["west"][1])
	f.follows("its successor has another address", func() error { return onEveryNode(own) })
	f.Logf("%s in unit west was %s and is %s", f.name(1), old, addresses["west"][1])

	f.must(shared.RelabelNode(f.ctx, "north1", unitLabel, "east"))
	f.follows("a node moves: it answers as its new unit",
		func() error { return f.asUnit(f.node("north1"), addresses["east"]) })
	f.must(shared.RelabelNode(f.ctx, "north1", unitLabel, ""))
	f.follows("a node's label is removed: it has no such names", func() error { return f.allUnknown(f.node("north1")) })
	f.must(shared.RelabelNode(f.ctx, "north1", unitLabel, "north"))
	f.follows("the label is back", func() error { return onEveryNode(own) })

	f.must(f.client.CoreV1().Services(f.namespace).Delete(f.ctx, service, metav1.DeleteOptions{}))
	f.follows("the Service is deleted: no names", func() error { return onEveryNode(f.allUnknown) })
	f.createService()
	f.follows("the Service is back", func() error { return onEveryNode(own) })

	f.must(f.client.AppsV1().StatefulSets(f.namespace).Delete(f.ctx, grid+"-west", metav1.DeleteOptions{}))
	f.eventually("one unit's set is deleted: no names in that unit", deadline,
		func() error { return f.allUnknown(f.node("west1")) })
	f.must(f.asUnit(f.node("east1"), addresses["east"]))

	f.must(f.dynamic.Resource(gridsResource).Namespace(f.namespace).Delete(f.ctx, grid, metav1.DeleteOptions{}))
	f.eventually("the grid is deleted, and its sets and pods: no names", deadline,
		func() error { return onEveryNode(f.allUnknown) })
}

// TestAnotherIncarnation: pods that are left when their set is deleted keep their names, and so does the set that
// adopts them.
func TestAnotherIncarnation(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := f.podAddresses("east", replicas)
	f.follows("created", func() error { return f.asUnit(f.node("east1"), addresses) })
	orphan := metav1.DeletePropagationOrphan
	f.must(f.client.AppsV1().StatefulSets(f.namespace).Delete(f.ctx, grid+"-east",
		metav1.DeleteOptions{PropagationPolicy: &orphan}))
	f.deleted("the set", func() error {
		_, err := f.client.AppsV1().StatefulSets(f.namespace).Get(f.ctx, grid+"-east", metav1.GetOptions{})
		return err
	})
	stop := f.alwaysAnswers(f.node("east1"), addresses)
	f.createSet("east")
	f.eventually("the new set has adopted the pods", deadline, func() error {
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
	f.follows("A only", func() error { return f.answers(f.node("east1"), f.name(0), "A", address) })
	f.must(f.answers(f.node("east1"), f.name(0), "AAAA")) // it exists, and has none

	const address6 = "fd00::244:1"
	f.setAddress("east", 0, address, address6)
	f.follows("A and AAAA", func() error {
		if err := f.answers(f.node("east1"), f.name(0), "AAAA", address6); err != nil {
			return err
		}
		return f.answers(f.node("east1"), f.name(0), "A", address)
	})
}

// TestHeadlessService: CoreDNS' kubernetes plugin gets its slices from the wrapper.
func TestHeadlessService(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := map[string][]string{}
	for _, unit := range units {
		addresses[unit] = f.podAddresses(unit, replicas)
	}
	whole := fmt.Sprintf("%s.%s.svc.cluster.local", service, f.namespace)
	took := f.eventually("the headless name is the own unit's pods", deadline, func() error {
		return onEveryNode(func(node *cluster.Node) error {
			return f.answers(node, whole, "A", addresses[units[node.Spec.Name]]...)
		})
	})
	f.Logf("%s: own unit's pods only, on every node, after %d ms", whole, took.Milliseconds())

	f.must(shared.RelabelNode(f.ctx, "north1", unitLabel, "east"))
	defer shared.RelabelNode(f.ctx, "north1", unitLabel, "north")
	f.follows("a node moves: the headless name is its new unit's pods", func() error {
		// Node north1 is in unit east now, and with it the pods that run on it.
		return f.answers(f.node("north1"), whole, "A", slices.Concat(addresses["east"], addresses["north"])...)
	})
}

// TestRestarts: neither the daemon's nor the API server's absence takes anything away.
func TestRestarts(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := f.podAddresses("east", replicas)
	node := f.node("east1")
	f.follows("created", func() error { return f.asUnit(node, addresses) })

	flaps := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		defer close(flaps)
		for {
			select {
			case <-stop:
				return
			case <-time.After(between):
				if err := f.asUnit(node, addresses); err != nil {
					flaps <- err
					return
				}
			}
		}
	}()
	f.settled(node)
	before, err := os.Stat(node.HostsFile)
	f.must(err)
	node.DNSDaemon.Kill()
	f.must(node.DNSDaemon.Start(f.ctx))
	after, err := os.Stat(node.HostsFile)
	f.must(err)
	if !os.SameFile(before, after) {
		t.Error("the restart wrote the file, although nothing had changed")
	}

	// The daemon starts while the API server is away: the wrapper has all that it needs.
	shared.APIServer.Kill()
	node.DNSDaemon.Kill()
	f.must(node.DNSDaemon.Start(f.ctx))
	// And while the wrapper is away too: the file stays.
	node.Wrapper.Kill()
	node.DNSDaemon.Kill()
	f.must(node.DNSDaemon.Launch())
	f.readyz(node, http.StatusServiceUnavailable, "not listed yet")
	f.must(shared.APIServer.Start(f.ctx))
	f.must(node.Wrapper.Start(f.ctx))
	f.must(node.DNSDaemon.WaitReady(f.ctx))
	close(stop)
	if err := <-flaps; err != nil {
		t.Errorf("an answer was taken away meanwhile: %v", err)
	}
	f.scale("east", 1)
	f.eventually("the daemon follows again", deadline, func() error { return f.unknown(node, f.name(1)) })
}

// TestBrokenBlock: someone edits the file by hand.
func TestBrokenBlock(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	addresses := f.podAddresses("east", replicas)
	node := f.node("east1")
	f.follows("created", func() error { return f.asUnit(node, addresses) })
	f.settled(node)
	data, err := os.ReadFile(node.HostsFile)
	f.must(err)
	const foreign = "10.9.9.9 printer.example.org\n"
	// It may take a while to be answered: CoreDNS caches for 5 s that the name could not be resolved.
	f.must(os.WriteFile(node.HostsFile, []byte(foreign+strings.ReplaceAll(string(data), addresses[0], "6.6.6.6")),
		0o600))
	f.eventually("the block is mended, the foreign line stays and is answered", 15*time.Second, func() error {
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
		return f.asUnit(node, addresses)
	})
}

// TestFootprint: what the daemon asks the API server for, and what it takes.
func TestFootprint(t *testing.T) {
	f := newFixture(t)
	f.createGrid()
	node := f.node("east1")
	f.follows("created", func() error { return f.asUnit(node, f.podAddresses("east", replicas)) })
	reply, err := node.Get(f.ctx, "http://127.0.0.1:51007/metrics")
	f.must(err)
	if !strings.Contains(reply.Body, "statefulset_grid_daemon_in_sync 1\n") {
		t.Errorf("the metrics do not say that the file is in sync")
	}
	for line := range strings.SplitSeq(reply.Body, "\n") {
		if strings.HasPrefix(line, "statefulset_grid_daemon_change_delay_seconds") ||
			strings.HasPrefix(line, "statefulset_grid_daemon_writes") {
			f.Log(line)
		}
	}
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", node.DNSDaemon.PID()))
	f.must(err)
	defer status.Close()
	for lines := bufio.NewScanner(status); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "VmRSS") || strings.HasPrefix(lines.Text(), "VmHWM") {
			f.Log(lines.Text())
		}
	}
}

// TestCorefile: what is proven here is what the manifests say.
func TestCorefile(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "coredns-edge", "Corefile"))
	if err != nil {
		t.Fatal(err)
	}
	const kubernetes = "    kubernetes cluster.local in-addr.arpa ip6.arpa {\n"
	added := kubernetes + "       kubeconfig /etc/coredns/wrapper.kubeconfig\n" // as docs/install.md adds it
	if strings.Replace(string(data), kubernetes, added, 1) != cluster.Corefile {
		t.Errorf("manifests/coredns-edge/Corefile is not cluster.Corefile:\n%s", data)
	}
}
