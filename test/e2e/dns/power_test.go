package dns

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// TestNamesAfterAPowerCut: power and link of a site fail together, and its pods start again with new addresses. The
// name of each pod, and the name of the headless Service, lead to the pods as soon as a Service does, before the link
// is back: CoreDNS starts, with the namespaces that the wrapper knows, and the daemon writes the addresses that the
// wrapper has from the container runtime. When the link is back no name leads elsewhere.
func TestNamesAfterAPowerCut(t *testing.T) {
	const (
		unit = "south"
		// behind is how much later than a Service a name may lead to the pods: CoreDNS has to start.
		behind = 10 * time.Second
	)
	f := newFixture(t)
	node, err := shared.AddNode(f.ctx, cluster.NodeSpec{
		Name: "south1", Labels: map[string]string{unitLabel: unit}, Runtime: true,
		WrapperArgs: snapshots(),
	})
	f.must(err)
	defer func() {
		if err := shared.RemoveNode(context.Background(), node.Spec.Name); err != nil {
			t.Errorf("removing the node: %v", err)
		}
	}()
	f.createGridObject()
	f.createService()
	f.createSet(unit)
	before := f.podAddresses(unit, replicas)
	virtual, err := workload.CreateService(f.ctx, f.client, f.namespace, grid,
		workload.ServiceOptions{TopologyKeys: []string{unitLabel}})
	f.must(err)
	f.eventually("every name leads to its pod", deadline, func() error { return f.leadToPods(node, unit) })
	f.must(workload.AwaitReach(f.ctx, node, virtual, node.Spec.Name, replicas))
	f.kept(node)

	f.must(node.CutLink(f.ctx))
	f.must(node.PowerOff(f.ctx))
	f.must(node.PowerOn(f.ctx))
	f.must(workload.AwaitReach(f.ctx, node, virtual, node.Spec.Name, replicas))
	reached := time.Now()
	took := f.eventually("every name leads to its pod", deadline, func() error { return f.leadToPods(node, unit) })
	f.Logf("the names lead to the pods %s after the Service does", took)
	if took > behind {
		f.Errorf("the names follow the Service after %s", took)
	}
	for i, old := range before {
		if err := f.answers(node, f.name(i), "A", old); err == nil {
			f.Errorf("%s still leads to %s, so this test proves nothing", f.name(i), old)
		}
	}
	f.readyz(node, http.StatusOK, "the API server has not answered since the wrapper started")

	// From now on no name may lead elsewhere, or nowhere.
	end, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(between):
				if err := f.leadToPods(node, unit); err != nil {
					ended <- fmt.Errorf("%s after the Service worked: %w", time.Since(reached), err)
					return
				}
			}
		}
	}()
	f.must(node.RestoreLink(f.ctx))
	time.Sleep(2 * time.Second) // the API server still has the old addresses
	f.must(node.KubeletReports(f.ctx))
	f.readyz(node, http.StatusOK)
	time.Sleep(2 * time.Second)
	close(end)
	if err := <-ended; err != nil {
		f.Errorf("after the link was back: %v", err)
	}
	f.must(f.asUnit(node, f.podAddresses(unit, replicas)))
}

// kept waits until what a node sees now is in its wrapper's snapshot.
func (f *fixture) kept(node *cluster.Node) {
	f.Helper()
	time.Sleep(3 * stateWriteDelay) // a snapshot of the last change is begun by then
	f.eventually("there is a snapshot", deadline, func() error {
		_, err := os.Stat(node.SnapshotFile())
		return err
	})
}

// leadToPods checks that the name of each pod of a node's unit leads to that pod, and the headless name to all of them:
// who answers there says so itself.
func (f *fixture) leadToPods(node *cluster.Node, unit string) error {
	for i := range replicas {
		if err := f.leads(node, f.name(i), podName(unit, i)); err != nil {
			return err
		}
	}
	all := make([]string, replicas)
	for i := range all {
		all[i] = podName(unit, i)
	}
	return f.leads(node, fmt.Sprintf("%s.%s.svc.cluster.local", service, f.namespace), all...)
}

// leads checks that a name leads to these pods and to no others.
func (f *fixture) leads(node *cluster.Node, name string, pods ...string) error {
	addresses, err := node.Lookup(f.ctx, name, "A")
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	answered := map[string]bool{}
	for _, address := range addresses {
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		answer, err := workload.Ask(ctx, node, "http://"+net.JoinHostPort(address, strconv.Itoa(workload.Port))+"/")
		cancel()
		if err != nil {
			return fmt.Errorf("%s leads to %s: %w", name, address, err)
		}
		answered[answer.Pod] = true
	}
	for _, pod := range pods {
		if !answered[pod] {
			return fmt.Errorf("%s leads to %v, not to %s", name, addresses, pod)
		}
	}
	if len(answered) != len(pods) {
		return fmt.Errorf("%s leads to %v, want %v", name, answered, pods)
	}
	return nil
}
