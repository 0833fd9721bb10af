package kubeadm_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	wrappers   = "app=application-grid-wrapper"
	daemons    = "app=statefulset-grid-daemon"
	ourProxies = "app=kube-proxy-edge"
	proxies    = "k8s-app=kube-proxy"
)

// TestInstallPage follows the part of docs/install.md for kubeadm and the one for removing, with the commands of the
// page as they are there. node0 and node1 are two units; the control plane's node is none, and never an edge node. All
// three ask a closed Service all the time. A request that is lost, or answered by a foreign unit where that is closed
// off, fails the step; so do two kube-proxies that run on one node at once.
func TestInstallPage(t *testing.T) {
	o := newOperator(t)
	s := &sites{operator: o, streaming: t.Context(), service: o.startEcho(), streams: map[string]*stream{}}
	o.shell("kubectl label node node0 " + unitLabel + "=east\nkubectl label node node1 " + unitLabel + "=west")
	for _, node := range everybody {
		s.expect(node, everybody...)
	}
	oneKubeProxy(t)
	// open and closed are who may answer whom.
	open := map[string][]string{"cloud0": everybody, "node0": everybody, "node1": everybody}
	closed := map[string][]string{"cloud0": everybody, "node0": {"node0"}, "node1": {"node1"}}
	step := func(name string, do func(t *testing.T)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) {
			outer := o.T
			o.T = t
			defer func() { o.T = outer }()
			do(t)
		}) {
			t.FailNow()
		}
	}

	before, _ := o.kubeProxies()
	unchanged := func(what string, nodes ...string) {
		t.Helper()
		now, _ := o.kubeProxies()
		for _, node := range nodes {
			if now[node] != before[node] || now[node] == "" {
				o.Errorf("%s: kubeadm's kube-proxy of %s was replaced: %q, then %q", what, node, before[node], now[node])
			}
		}
	}

	step("install", func(*testing.T) {
		for _, node := range everybody {
			for _, name := range []string{"application-grid-controller", "application-grid-wrapper", "statefulset-grid-daemon"} {
				o.must(shared.Node(node).Import(o.Context(), filepath.Join(images, name+".tar")))
			}
		}
		o.writeFileOf("## kubeadm", "edge/kustomization.yaml")
		o.follow("## kubeadm", "kubectl apply -k edge")
		o.shell("kubectl -n kube-system rollout status deployment application-grid-controller --timeout=2m")
		for _, name := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
			o.eventually("no node is to have "+name, func() error { return o.wanted(name, 0) })
		}
		o.eventually("kubeadm's kube-proxy is to be where it was", func() error { return o.wanted("kube-proxy", len(everybody)) })
		unchanged("installing", everybody...)
		s.check(open)
	})

	step("label", func(*testing.T) {
		o.follow("## kubeadm", "kubectl label node node0")
		for _, selector := range []string{wrappers, daemons, ourProxies} {
			o.expectOn(selector, "node0")
		}
		s.expect("node0", "node0")
		unchanged("labelling node0", "cloud0", "node1")
		o.shell("kubectl label node node1 superedge.io/application-grid=true")
		o.expectOn(ourProxies, "node0", "node1")
		s.expect("node1", "node1")
		unchanged("labelling node1", "cloud0")
		s.check(closed)
	})

	step("move a node", func(*testing.T) {
		s.widen("node0", "node0", "node1")
		s.widen("node1", "node0", "node1")
		o.shell("kubectl label node node1 --overwrite " + unitLabel + "=east")
		s.expect("node0", "node0", "node1")
		s.expect("node1", "node0", "node1")
		o.shell("kubectl label node node1 --overwrite " + unitLabel + "=west")
		s.expect("node0", "node0")
		s.expect("node1", "node1")
		s.check(closed)
	})

	step("upgrade", func(*testing.T) {
		_, ours := o.kubeProxies()
		for _, command := range [][]string{
			{"init", "phase", "addon", "kube-proxy", "--config=/etc/kubeadm.yaml"},
			{"upgrade", "node", "phase", "addon", "kube-proxy"},
		} {
			o.addonPhase(command...)
			o.eventually("kubeadm's DaemonSet is rolled out", o.rolledOut)
			o.expectOn(proxies, "cloud0")
		}
		if _, now := o.kubeProxies(); !maps.Equal(ours, now) {
			o.Errorf("kube-proxy-edge was replaced: %v, then %v", ours, now)
		}
		s.check(closed)
	})

	// As with an API server older than 1.36, which has no such policies: the pods refuse each other.
	step("upgrade without the policy", func(*testing.T) {
		o.shell("kubectl delete mutatingadmissionpolicybindings,mutatingadmissionpolicies kube-proxy.superedge.io\n" +
			"sleep 5 # until kube-apiserver has forgotten it")
		o.addonPhase("init", "phase", "addon", "kube-proxy", "--config=/etc/kubeadm.yaml")
		o.eventually("kubeadm's kube-proxy waits for two nodes", func() error { return o.pending(proxies, 2) })
		s.check(closed)
		o.shell("kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
		o.expectOn(proxies, "cloud0")
		o.shell("kubectl apply -k edge")
		s.check(closed)
	})

	step("roll out a new wrapper", func(*testing.T) {
		o.shell("kubectl -n kube-system rollout restart daemonset application-grid-wrapper\n" +
			"kubectl -n kube-system rollout status daemonset application-grid-wrapper --timeout=2m")
		o.expectOn(wrappers, "node0", "node1")
		o.shell("kubectl -n kube-system rollout restart daemonset kube-proxy-edge\n" +
			"kubectl -n kube-system rollout status daemonset kube-proxy-edge --timeout=2m")
		o.expectOn(ourProxies, "node0", "node1")
		s.check(closed)
	})

	step("take a node back", func(*testing.T) {
		s.widen("node0", everybody...)
		o.shell("kubectl label node node0 superedge.io/application-grid-")
		o.expectOn(proxies, "cloud0", "node0")
		s.expect("node0", everybody...)
		o.shell("kubectl label node node0 superedge.io/application-grid=true")
		o.expectOn(ourProxies, "node0", "node1")
		s.expect("node0", "node0")
		s.check(closed)
	})

	step("power cut with a link", func(*testing.T) {
		node := shared.Node("node1")
		s.pause("node1")
		s.pause("cloud0") // nobody knows yet that node1's pods are gone
		o.must(node.PowerCut())
		begin := time.Now()
		o.must(node.PowerOn())
		s.expect("node1", "node1")
		o.Logf("node1 reaches its own unit %.1f s after power came back", time.Since(begin).Seconds())
		s.expect("cloud0", everybody...)
		s.check(closed)
	})

	step("power cut without a link", func(*testing.T) {
		node := shared.Node("node1")
		s.pause("node1")
		s.pause("cloud0")
		o.must(node.PowerCut())
		o.must(node.PowerOn())
		o.must(node.CutLink())
		// As long as the page says: containerd and the kubelet, which has learned of no pod.
		patience.Until(o.T, "the kubelet runs", func() error {
			return contains(o.processesOn("node1"), "kubelet")
		})
		for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Second) {
			running := o.processesOn("node1")
			if contains(running, "application-grid-wrapper") == nil || contains(running, "kube-proxy") == nil {
				o.Errorf("without a link there run %v: the page says otherwise", running)
			}
		}
		o.Logf("20 s after a reboot without a link there run %v", o.processesOn("node1"))
		begin := time.Now()
		o.must(node.JoinLink())
		s.expect("node1", "node1")
		o.Logf("node1 reaches its own unit %.1f s after its link came back", time.Since(begin).Seconds())
		s.expect("cloud0", everybody...)
		s.check(closed)
	})

	step("remove", func(*testing.T) {
		s.widen("node0", everybody...)
		s.widen("node1", everybody...)
		o.follow("## Removing it", "kubectl delete -k edge")
		o.follow("## Removing it", "kube-proxy-back.yaml")
		o.expectOn(proxies, everybody...)
		for _, node := range everybody {
			s.expect(node, everybody...)
		}
		set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), "kube-proxy", metav1.GetOptions{})
		o.must(err)
		if set.Spec.Template.Spec.Affinity != nil {
			o.Errorf("kubeadm's kube-proxy still has %+v", set.Spec.Template.Spec.Affinity)
		}
		for _, node := range everybody {
			for _, pod := range o.podsOn(node) {
				if strings.Contains(pod, "grid") || strings.Contains(pod, "edge") {
					o.Errorf("pod %s is left on %s", pod, node)
				}
			}
		}
		s.check(open)
	})
	for _, node := range everybody {
		s.pause(node)
	}
}

// addonPhase writes kubeadm's kube-proxy anew.
func (o *operator) addonPhase(args ...string) {
	o.Helper()
	output, err := shared.ControlPlane().Run(o.Context(), "kubeadm", args...)
	o.must(err)
	o.Logf("kubeadm %s\n%s", strings.Join(args, " "), output)
}

// rolledOut is nil if all pods of kubeadm's kube-proxy are of its present version, and available.
func (o *operator) rolledOut() error {
	set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if now := set.Status; now.ObservedGeneration != set.Generation || now.UpdatedNumberScheduled != now.DesiredNumberScheduled ||
		now.NumberAvailable != now.DesiredNumberScheduled {
		return fmt.Errorf("generation %d, %+v", set.Generation, now)
	}
	return nil
}

// pending is nil if the scheduler has found no node for this many pods.
func (o *operator) pending(selector string, want int) error {
	pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	count := 0
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
				count++
			}
		}
	}
	if count != want {
		return fmt.Errorf("%d of %d wait", count, len(pods.Items))
	}
	return nil
}

// wanted is nil if the DaemonSet controller has seen the DaemonSet as it is now and wants it on this many nodes.
func (o *operator) wanted(name string, nodes int) error {
	set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), name, metav1.GetOptions{})
	if err == nil && (set.Status.ObservedGeneration != set.Generation || int(set.Status.DesiredNumberScheduled) != nodes) {
		err = fmt.Errorf("generation %d, %+v", set.Generation, set.Status)
	}
	return err
}

// processesOn are the names of the programs that run on a node.
func (o *operator) processesOn(node string) []string {
	output, err := shared.Node(node).Run(o.Context(), "ps", "-e", "-o", "args=")
	if err != nil {
		return nil
	}
	names := map[string]bool{}
	for line := range strings.Lines(output) {
		if fields := strings.Fields(line); len(fields) > 0 {
			names[filepath.Base(fields[0])] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// contains is nil if the name is in the list.
func contains(names []string, name string) error {
	if !slices.Contains(names, name) {
		return fmt.Errorf("%s is not among %v", name, names)
	}
	return nil
}
