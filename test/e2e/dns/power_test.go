package dns

import (
	"context"
	"fmt"
	"net"
	"net/http"
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
		site = "south"
		// behind is how much later than a Service a name may lead to the pods: CoreDNS has to start.
		behind = 10 * time.Second
	)
	f := newFixture(t)
	node := f.AddNode(cluster.NodeSpec{
		Name: "south1", Labels: map[string]string{siteLabel: site}, Runtime: true, WrapperArgs: snapshots(),
	})
	f.createGridObject()
	f.createService()
	f.createSet(site)
	before := f.podAddresses(site, replicas)
	virtual, err := workload.In(f.client, f.namespace).CreateService(f.ctx, grid,
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	f.Must(err)
	f.Eventually("every name leads to its pod", func() error { return f.leadToPods(node, site) })
	f.Must(workload.AwaitReach(f.ctx, node, virtual, node.Spec.Name, replicas))
	f.Kept(stateWriteDelay, node)

	f.Must(node.CutLink(f.ctx))
	f.Must(node.PowerOff(f.ctx))
	f.Must(node.PowerOn(f.ctx))
	f.Must(workload.AwaitReach(f.ctx, node, virtual, node.Spec.Name, replicas))
	took := f.Eventually("every name leads to its pod", func() error { return f.leadToPods(node, site) })
	if took > behind {
		f.Errorf("the names follow the Service after %s", took)
	}
	for i, old := range before {
		if err := f.answers(node, f.name(i), "A", old); err == nil {
			f.Errorf("%s still leads to %s, so this test proves nothing", f.name(i), old)
		}
	}
	f.readyz(node, http.StatusOK, "the API server is away")

	// From now on no name may lead elsewhere, or nowhere.
	stop := f.always(func() error { return f.leadToPods(node, site) })
	f.Must(node.RestoreLink(f.ctx))
	time.Sleep(2 * time.Second) // the API server still has the old addresses
	f.Must(node.KubeletReports(f.ctx))
	f.readyz(node, http.StatusOK)
	time.Sleep(2 * time.Second)
	stop()
	f.Must(f.asSite(node, f.podAddresses(site, replicas)))
}

// leadToPods checks that the name of each pod of a node's site leads to that pod, and the headless name to all of them:
// who answers there says so itself.
func (f *fixture) leadToPods(node *cluster.Node, site string) error {
	for i := range replicas {
		if err := f.leads(node, f.name(i), podName(site, i)); err != nil {
			return err
		}
	}
	all := make([]string, replicas)
	for i := range all {
		all[i] = podName(site, i)
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
		ctx, cancel := context.WithTimeout(f.ctx, 3*time.Second) // on a busy machine
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
