package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// stopLimit is how long a wrapper may take to end after SIGTERM while it serves nothing but watches.
const stopLimit = 3 * time.Second

// TestRestartsUnderTraffic: while a component is away kube-proxy keeps the rules that it has, and catches up afterwards
// with what happened in between. It may take kube-proxy 30 s to come back: its reflectors go on backing off from where
// the case before left them, and begin again only after two quiet minutes.
func TestRestartsUnderTraffic(t *testing.T) {
	for _, of := range []struct {
		name string
		// do takes components away, lets things happen, and gives them back.
		do func(f *fixture, stream *workload.Traffic)
		// A node on which the pod is not ready, and what is reached because of that.
		unready string
		reached reach
	}{
		{"wrappers are killed", func(f *fixture, stream *workload.Traffic) {
			f.eachNode(func(node *cluster.Node) error {
				node.Wrapper.Kill()
				return nil
			})
			f.setReady("echo", "a1", corev1.ConditionFalse)
			f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "echo", siteLabel, corev1.LabelHostname))
			f.atLeast(stream, 200)
			f.eachNode(func(node *cluster.Node) error { return node.Wrapper.Start(f.ctx) })
		}, "a1", reach{"a1": "a2", "a2": "a2"}},
		{"wrappers restart", func(f *fixture, stream *workload.Traffic) {
			f.eachNode(func(node *cluster.Node) error {
				begin := time.Now()
				if err := node.Wrapper.Stop(); err != nil {
					return err
				}
				// All that time kube-proxy is refused and backs off further and further.
				if took := time.Since(begin); took > stopLimit {
					f.Errorf("the wrapper of %s took %s to end after SIGTERM, more than %s", node.Name(), took, stopLimit)
				}
				if code := node.Wrapper.ExitCode(); code != 0 {
					f.Errorf("the wrapper of %s ended with exit code %d after SIGTERM", node.Name(), code)
				}
				return node.Wrapper.Start(f.ctx)
			})
			f.atLeast(stream, 50)
		}, "b2", reach{"b1": "b1", "b2": "b1"}},
		{"kube-apiserver, with a new certificate", func(f *fixture, stream *workload.Traffic) {
			shared.APIServer.Kill()
			f.Must(shared.RotateServingCertificate())
			f.atLeast(stream, 200)
			f.Must(shared.APIServer.Start(f.ctx))
		}, "b1", reach{"b1": "b2", "b2": "b2"}},
		{"kube-proxies", func(f *fixture, _ *workload.Traffic) {
			f.eachNode(func(node *cluster.Node) error {
				node.KubeProxy.Kill()
				return node.KubeProxy.Start(f.ctx)
			})
		}, "a2", reach{"a1": "a1", "a2": "a1"}},
	} {
		t.Run(of.name, func(t *testing.T) {
			f := newFixture(t)
			service := f.daemonSet("echo", siteLabel)
			f.ExpectReach("before", service, siteLocal)
			stream := f.startTraffic(service, siteLocal)
			f.atLeast(stream, 50)
			of.do(f, stream)
			f.setReady("echo", of.unready, corev1.ConditionFalse)
			f.ExpectReach("followed what happened", service, siteLocal.with(of.reached))
			f.setReady("echo", of.unready, corev1.ConditionTrue)
			f.ExpectReach("followed a change afterwards", service, siteLocal)
			f.expectFlawless(stream)
		})
	}
}

// aways are how long a wrapper is away in TestRestartIsNotSeen.
var aways = []time.Duration{200 * time.Millisecond, 10 * time.Second, time.Minute}

// TestRestartIsNotSeen: when a wrapper that was stopped is back, the next request of kube-proxy for each resource is
// the one that it goes on with. It pauses between requests, for longer after each that fails, so one that is refused as
// expired would cost it the longest pause.
func TestRestartIsNotSeen(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var nodes []*cluster.Node
	for i := range aways {
		for _, protocol := range []cluster.Protocol{cluster.WatchList, cluster.ListThenWatch} {
			// A site of its own each, so that a node reaches its own pod or none.
			name := fmt.Sprintf("away%d-%s", i, strings.ToLower(string(protocol[0])))
			nodes = append(nodes, f.AddNode(cluster.NodeSpec{
				Name: name, Labels: map[string]string{siteLabel: name}, ProxyMode: cluster.NFTables, Protocol: protocol,
			}))
		}
	}
	service := f.daemonSet("echo", siteLabel)
	for _, node := range nodes {
		f.Must(workload.AwaitReach(f.ctx, node, service, node.Name(), workload.Tries))
	}
	var group sync.WaitGroup
	for i, node := range nodes {
		group.Go(func() { f.restarts(node, service, aways[i/2]) })
	}
	group.Wait()
}

// restarts takes a node's wrapper away, and its pod's readiness meanwhile.
func (f *fixture) restarts(node *cluster.Node, service *corev1.Service, away time.Duration) {
	ctx, cancel := context.WithTimeout(f.ctx, away+2*deadline)
	defer cancel()
	err := node.Wrapper.Stop()
	if err == nil {
		time.Sleep(away)
		err = workload.In(f.client, f.namespace).SetReadyOn(ctx, "echo", node.Name(), corev1.ConditionFalse)
	}
	if err == nil {
		err = node.Wrapper.Start(ctx)
	}
	if err != nil {
		f.Errorf("restarting the wrapper of %s: %v", node.Name(), err)
		return
	}
	begin := time.Now()
	var metrics string
	for !strings.Contains(metrics, `application_grid_wrapper_watchers{resource="endpointslices"} 1`) && ctx.Err() == nil {
		reply, err := node.Get(ctx, node.WrapperURL()+"/metrics")
		if err == nil {
			metrics = reply.Body
		}
		time.Sleep(between)
	}
	asked := time.Since(begin)
	if err := workload.AwaitReach(ctx, node, service, "", workload.Tries); err != nil {
		f.Errorf("%s after %s: %v", node.Name(), away, err)
	}
	f.Logf("%-12s %-16s away for %5s: kube-proxy watches after %5d ms, and has followed %4d ms later", node.Name(),
		node.Spec.Protocol, away, asked.Milliseconds(), (time.Since(begin) - asked).Milliseconds())
	if strings.Contains(metrics, `code="410"`) {
		f.Errorf("%s after %s: a request of kube-proxy was refused as expired", node.Name(), away)
	}
}
