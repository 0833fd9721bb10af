package e2e

import (
	"fmt"
	"strings"
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
	// observed is how long connections are tried after that.
	observed = 4 * time.Second
	// pause is the one after every connection.
	pause = 5 * time.Millisecond
	// stateWriteDelay is that of the wrappers that are switched off here.
	stateWriteDelay = 200 * time.Millisecond
)

// powered is a site of one node that has a container runtime, with two pods of a Service of the site-local Service.
type powered struct {
	*fixture
	node    *cluster.Node
	service *corev1.Service
	// pods are the names of the Service's pods on the node.
	pods []string
}

func newPowered(t *testing.T, spec cluster.NodeSpec) *powered {
	t.Helper()
	p := &powered{fixture: newFixture(t), pods: []string{"echo-1", "echo-2"}}
	spec.Labels = map[string]string{siteLabel: "site-" + spec.Name}
	spec.Runtime = true
	spec.WrapperArgs = append(spec.WrapperArgs, "--state-write-delay="+stateWriteDelay.String())
	p.node = p.AddNode(spec)
	for _, pod := range p.pods {
		p.Must(workload.In(p.client, p.namespace).CreatePod(p.ctx, pod, "echo", spec.Name))
	}
	p.Must(workload.In(p.client, p.namespace).CreatePod(p.ctx, "echo-far", "echo", "b1"))
	p.service = p.fixture.service("echo", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	p.Eventually("the node reaches both of its pods", func() error {
		if got := workload.ReachPods(p.ctx, p.node, p.service, workload.Tries); len(got) != 2 || got["echo-far"] > 0 {
			return fmt.Errorf("it reaches %v", got)
		}
		return nil
	})
	p.say("/readyz", "cri: ok")
	return p
}

// powerCut switches the node off and on with its link cut, so that all pods have new addresses, and checks how soon
// after its processes are up no connection fails any more.
func (p *powered) powerCut() {
	p.Helper()
	p.Must(p.node.CutLink(p.ctx))
	p.Must(p.node.PowerOff(p.ctx))
	if got := workload.ReachPods(p.ctx, p.node, p.service, 2); len(got) > 0 {
		p.Fatalf("a node without power reaches %v", got)
	}
	p.Must(p.node.PowerOn(p.ctx))
	p.Must(p.node.Wrapper.WaitReady(p.ctx))
	p.Must(p.node.KubeProxy.WaitReady(p.ctx))
	up := time.Now()
	recovery := workload.Recover(p.ctx, p.node, workload.URL(p.service), up, answersAgain+observed)
	p.Logf("all processes are up: %s", recovery)
	if recovery.Last > answersAgain {
		p.Fatalf("connections failed later than %s after all processes were up: %s", answersAgain, recovery)
	}
	answered := recovery.Pods
	if answered[p.pods[0]] == 0 || answered[p.pods[1]] == 0 || len(answered) != 2 {
		p.Errorf("not the node's own two pods have answered: %v", answered)
	}
}

// say waits until a page of the wrapper has a part.
func (p *powered) say(path, part string) {
	p.Helper()
	p.Says(p.node, path, part)
}

// TestPowerCut: power and link of a site fail together. Its pods start again with new addresses, and its Services work
// before the link does. The cloud has changed meanwhile: it calls the site's pods not ready, a Service is gone and
// another one is there. When the link is back no connection fails, neither before the kubelet has reported nor after.
func TestPowerCut(t *testing.T) {
	for _, spec := range []cluster.NodeSpec{
		{Name: "p1", ProxyMode: cluster.NFTables, Protocol: cluster.WatchList},
		{Name: "p2", ProxyMode: cluster.IPTables, Protocol: cluster.ListThenWatch},
	} {
		t.Run(string(spec.ProxyMode), func(t *testing.T) {
			t.Parallel()
			p := newPowered(t, spec)
			p.Must(workload.In(p.client, p.namespace).CreatePod(p.ctx, "old", "old", spec.Name))
			old := p.fixture.service("old", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
			p.Must(workload.AwaitReach(p.ctx, p.node, old, spec.Name, workload.Tries))
			p.Kept(stateWriteDelay, p.node)
			p.powerCut()
			p.say("/readyz", "cri: the upstream is away, and this node's pods are shown as the container runtime has "+
				"them, 3 of them")
			p.say("/metrics", "application_grid_wrapper_corrected_pods 3")
			p.say("/debug/explain/"+p.namespace+"/echo", "with which node "+spec.Name+" runs its pod")

			// As the node lifecycle controller does, of a node that it has not heard of.
			for _, pod := range p.pods {
				p.Must(workload.In(p.client, p.namespace).SetPodCondition(p.ctx, pod, corev1.PodReady,
					corev1.ConditionFalse))
			}
			p.Must(p.client.CoreV1().Services(p.namespace).Delete(p.ctx, "old", metav1.DeleteOptions{}))
			p.Must(workload.In(p.client, p.namespace).CreatePod(p.ctx, "late", "late", spec.Name))
			late := p.fixture.service("late", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})

			traffic := workload.StartTraffic(p.ctx, workload.URL(p.service), pause)
			defer traffic.End()
			end := traffic.From(p.node, []string{spec.Name})
			p.Must(p.node.RestoreLink(p.ctx))
			p.say("/readyz", "cri: 2 of this node's pods are shown as the container runtime has them, until the API "+
				"server says the same")
			time.Sleep(observed) // nothing is to happen
			p.Must(p.node.KubeletReports(p.ctx))
			p.say("/readyz", "cri: ok")
			p.say("/metrics", "application_grid_wrapper_corrected_pods 0")
			p.Must(workload.AwaitReach(p.ctx, p.node, late, spec.Name, workload.Tries))
			p.Must(workload.AwaitReach(p.ctx, p.node, old, "", workload.Tries))
			time.Sleep(observed)
			end()
			p.expectFlawless(traffic) // from before the link was back until the API server had caught up
		})
	}
}

// TestWithoutRuntime: the same power cut of a node whose wrapper asks no runtime leaves the Service dead until the
// kubelet has reported: what is shown are the addresses of pods that are gone.
func TestWithoutRuntime(t *testing.T) {
	p := newPowered(t, cluster.NodeSpec{Name: "p3", WrapperArgs: nil})
	var args []string
	for _, arg := range p.node.Wrapper.Args() {
		if !strings.HasPrefix(arg, "--cri=") {
			args = append(args, arg)
		}
	}
	p.node.Wrapper.SetArgs(args)
	p.Must(p.node.Wrapper.Restart(p.ctx))
	p.Kept(stateWriteDelay, p.node)
	p.Must(p.node.CutLink(p.ctx))
	p.Must(p.node.PowerOff(p.ctx))
	p.Must(p.node.PowerOn(p.ctx))
	p.Must(p.node.Wrapper.WaitReady(p.ctx))
	p.Must(p.node.KubeProxy.WaitReady(p.ctx))
	recovery := workload.Recover(p.ctx, p.node, workload.URL(p.service), time.Now(), answersAgain)
	if len(recovery.Failed) < recovery.Tried {
		p.Fatalf("this test proves nothing: %s", recovery)
	}
	p.Must(p.node.RestoreLink(p.ctx))
	p.Must(p.node.KubeletReports(p.ctx))
	p.Must(workload.AwaitReach(p.ctx, p.node, p.service, "p3", workload.Tries))
}
