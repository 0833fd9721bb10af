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

	"github.com/application-grid/application-grid/test/kubeadm"
)

const (
	wrappers   = "app=application-grid-wrapper"
	daemons    = "app=statefulset-grid-daemon"
	ourProxies = "app=kube-proxy-edge"
	proxies    = "k8s-app=kube-proxy"
)

// TestPages follows the part of docs/install.md for kubeadm, those for new versions, systemd, CoreDNS in each site and
// for removing, with the commands of the page as they are there. node0 and
// node1 are two units; the control plane's node is none, and never an edge node. All three ask a closed Service all the
// time. A request that is lost, or answered by a foreign unit where that is closed off, fails the step; so do two
// kube-proxies that run on one node at once.
func TestPages(t *testing.T) {
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
				o.Errorf("%s: kubeadm's kube-proxy of %s was replaced: %q, then %q", what, node, before[node],
					now[node])
			}
		}
	}

	step("install", func(*testing.T) {
		for _, node := range everybody {
			for _, name := range []string{"application-grid-controller", "application-grid-wrapper",
				"statefulset-grid-daemon"} {
				o.Must(shared.Node(node).Import(o.Context(), filepath.Join(images, name+".tar")))
			}
		}
		o.writeFileOf("## kubeadm", "edge/kustomization.yaml")
		o.checkBefore()
		o.follow("## kubeadm", "kubectl apply -k edge")
		o.shell("kubectl -n kube-system rollout status deployment application-grid-controller --timeout=2m")
		for _, name := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
			o.Eventually("no node is to have "+name, func() error { return o.wanted(name, 0) })
		}
		o.Eventually("kubeadm's kube-proxy is to be where it was",
			func() error { return o.wanted("kube-proxy", len(everybody)) })
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
		s.fromPods("cloud0", everybody...)
		s.fromPods("node0", "node0")
		s.fromPods("node1", "node1")
		s.check(closed)
	})

	step("check and prove", func(*testing.T) {
		o.checkAfter()
		s.check(closed)
	})

	step("move a node", func(*testing.T) {
		s.widen("node0", "node0", "node1")
		s.widen("node1", "node0", "node1")
		o.shell("kubectl label node node1 --overwrite " + unitLabel + "=east")
		s.expect("node0", "node0", "node1")
		s.expect("node1", "node0", "node1")
		s.fromPods("node1", "node0", "node1")
		o.shell("kubectl label node node1 --overwrite " + unitLabel + "=west")
		s.expect("node0", "node0")
		s.expect("node1", "node1")
		s.check(closed)
	})

	// Both nodes are one unit meanwhile, so that there is who answers while node0's pod does not.
	step("readiness", func(*testing.T) {
		s.widen("node0", "node0", "node1")
		s.widen("node1", "node0", "node1")
		o.shell("kubectl label node node1 --overwrite " + unitLabel + "=east")
		s.expect("node0", "node0", "node1")
		s.expect("node1", "node0", "node1")
		for _, from := range []string{"node0", "node1"} {
			s.widen("node0", "node0", "node1")
			s.widen("node1", "node0", "node1")
			o.followReadiness(false, from)
			s.expect("node0", "node1")
			s.expect("node1", "node1")
			s.widen("node0", "node0", "node1")
			s.widen("node1", "node0", "node1")
			o.followReadiness(true, from)
			s.expect("node0", "node0", "node1")
			s.expect("node1", "node0", "node1")
		}
		o.shell("kubectl label node node1 --overwrite " + unitLabel + "=west")
		s.expect("node0", "node0")
		s.expect("node1", "node1")
		s.check(closed)
	})

	// From the version before to this one, as far as kube-proxy is concerned.
	step("upgrade", func(*testing.T) {
		_, ours := o.kubeProxies()
		cloud := shared.ControlPlane()
		const version, older = "v1.37.1", "v1.36.0"
		tag(o, cloud, "registry.k8s.io/kube-proxy:"+version, "registry.k8s.io/kube-proxy:"+older)
		configuration, err := cloud.ReadFile("/etc/kubeadm.yaml")
		o.Must(err)
		o.Must(cloud.WriteFile("/etc/kubeadm-older.yaml",
			strings.Replace(string(configuration), "kubernetesVersion: "+version, "kubernetesVersion: "+older, 1)))
		for _, command := range []struct{ line, image string }{
			{"init phase addon kube-proxy --config=/etc/kubeadm-older.yaml", older},
			{"upgrade node phase addon kube-proxy", version},
			{"init phase addon kube-proxy --config=/etc/kubeadm.yaml", version},
		} {
			o.addonPhase(strings.Fields(command.line)...)
			o.Eventually("kubeadm's DaemonSet is rolled out", o.rolledOut)
			o.expectOn(proxies, "cloud0")
			if image := o.imageOf("kube-proxy"); image != "registry.k8s.io/kube-proxy:"+command.image {
				o.Errorf("kubeadm %s: kube-proxy's image is %s", command.line, image)
			}
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
		o.Eventually("kubeadm's kube-proxy waits for two nodes", func() error { return o.pending(proxies, 2) })
		s.check(closed)
		o.shell("kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
		o.expectOn(proxies, "cloud0")
		o.shell("kubectl apply -k edge")
		s.check(closed)
	})

	step("roll out a new wrapper", func(*testing.T) {
		for _, node := range everybody {
			tag(o, shared.Node(node), "registry.example.org/application-grid-wrapper:v1",
				"registry.example.org/application-grid-wrapper:v2")
		}
		o.shell("sed -i '/name: application-grid-wrapper,/s/newTag: v1/newTag: v2/' edge/kustomization.yaml\nkubectl apply -k edge")
		o.follow("## New versions", "maxUnavailable")
		o.shell("kubectl -n kube-system rollout status daemonset application-grid-wrapper --timeout=2m")
		if image := o.imageOf("application-grid-wrapper"); !strings.HasSuffix(image, ":v2") {
			o.Errorf("the wrapper's image is %s", image)
		}
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

	step("the wrapper under systemd", func(*testing.T) {
		node, manual := shared.Node("node1"), o.reading("install.md")
		s.widen("node1", everybody...)
		o.shell("kubectl label node node1 superedge.io/application-grid-")
		o.expectOn(proxies, "cloud0", "node1")
		o.expectOn(wrappers, "node0") // its port is free
		s.expect("node1", everybody...)
		manual.follow("## systemd", "kubectl grid kubeconfig")
		o.installUnit(node)
		o.startUnit(node)
		o.shell(strings.ReplaceAll(manual.commands("### On a node of kubeadm", "kubectl label node node0"), "node0",
			"node1"))
		o.expectOn(ourProxies, "node0", "node1")
		o.expectOn(wrappers, "node0")
		s.expect("node1", "node1")
		// The token is renewed, and the unit restarted.
		manual.follow("## systemd", "kubectl grid kubeconfig")
		o.stopUnit(node)
		o.installUnit(node)
		o.startUnit(node)
		s.check(closed)
		// Back to pods. Without either wrapper kube-proxy goes on with its rules.
		o.stopUnit(node)
		o.shell("kubectl label node node1 superedge.io/application-grid=true --overwrite")
		o.expectOn(wrappers, "node0", "node1")
		s.check(closed)
	})

	step("power cut with a link", func(*testing.T) {
		node := shared.Node("node1")
		s.pause("node1")
		s.pause("cloud0") // nobody knows yet that node1's pods are gone
		o.Must(node.PowerCut())
		begin := time.Now()
		o.Must(node.PowerOn())
		s.expect("node1", "node1")
		o.Logf("node1 reaches its own unit %.1f s after power came back", time.Since(begin).Seconds())
		s.expect("cloud0", everybody...)
		s.check(closed)
	})

	step("power cut without a link", func(*testing.T) {
		node := shared.Node("node1")
		s.pause("node1")
		s.pause("cloud0")
		o.Must(node.PowerCut())
		o.Must(node.PowerOn())
		o.Must(node.CutLink())
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
		s.staticPods(node)
		begin := time.Now()
		o.Must(node.PowerOn())
		s.expect("node1", "node1")
		o.Logf("node1 reaches its own unit %.1f s after power and link came back", time.Since(begin).Seconds())
		s.expect("cloud0", everybody...)
		s.check(closed)
	})

	step("a site that comes back alone", func(*testing.T) {
		s.comesBackAlone(shared.Node("node0"), shared.Node("node1"))
		for node, unit := range map[string]string{"node0": "east", "node1": "west"} {
			o.shell("kubectl label node " + node + " --overwrite " + unitLabel + "=" + unit +
				" superedge.io/application-grid=true")
		}
		o.expectOn(ourProxies, "node0", "node1")
		o.expectOn(wrappers, "node0", "node1")
		s.expect("node0", "node0")
		s.expect("node1", "node1")
		s.expect("cloud0", everybody...)
		s.check(closed)
	})

	step("names in every unit", func(*testing.T) {
		manual := o.reading("install.md")
		o.shell("kubectl apply -f - <<'END'\n" + statefulGrid + "END")
		o.shell("printf '\ncomponents: [../manifests/coredns-edge]\n' >> edge/kustomization.yaml && kubectl apply -k edge")
		manual.follow("## CoreDNS in each site", "annotate --overwrite service kube-dns")
		o.shell("kubectl -n kube-system rollout status daemonset coredns-edge --timeout=2m")
		o.expectOn("app=coredns-edge", "node0", "node1")
		for node, unit := range map[string]string{"node0": "east", "node1": "west"} {
			o.expectName(node, unit)
			o.checkUnitCommands(unit)
		}
		o.addonPhase("upgrade", "node", "phase", "addon", "coredns")
		manual.follow("## CoreDNS in each site", "annotate --overwrite service kube-dns") // as the page says
		o.expectOn("app=coredns-edge", "node0", "node1")
		if keys := o.shell("kubectl -n kube-system get service kube-dns -o jsonpath='{.metadata.annotations.topologyKeys}'"); !strings.Contains(keys, unitLabel) {
			o.Errorf("after an upgrade kube-dns has topologyKeys %q", keys)
		}
		for node, unit := range map[string]string{"node0": "east", "node1": "west"} {
			o.expectName(node, unit)
		}
		s.check(closed)
	})

	step("a site of ordinary pods that comes back alone", func(*testing.T) {
		s.widen("node0", everybody...)
		s.widen("node1", everybody...)
		s.ordinaryPodsComeBackAlone(shared.Node("node0"), shared.Node("node1"))
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
		set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), "kube-proxy",
			metav1.GetOptions{})
		o.Must(err)
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

// addonPhase writes kubeadm's kube-proxy again.
func (o *operator) addonPhase(args ...string) {
	o.Helper()
	output, err := shared.ControlPlane().Run(o.Context(), "kubeadm", args...)
	o.Must(err)
	o.Logf("kubeadm %s\n%s", strings.Join(args, " "), output)
}

// tag gives an image on a node a further name.
func tag(o *operator, node *kubeadm.Node, image, name string) {
	o.Helper()
	_, err := node.Run(o.Context(), "ctr", "-n", "k8s.io", "images", "tag", image, name)
	o.Must(err)
}

// imageOf is the image that a DaemonSet of kube-system asks for.
func (o *operator) imageOf(name string) string {
	o.Helper()
	set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), name, metav1.GetOptions{})
	o.Must(err)
	return set.Spec.Template.Spec.Containers[0].Image
}

// rolledOut is nil if all pods of kubeadm's kube-proxy are of its present version, and available.
func (o *operator) rolledOut() error {
	set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if now := set.Status; now.ObservedGeneration != set.Generation ||
		now.UpdatedNumberScheduled != now.DesiredNumberScheduled ||
		now.NumberAvailable != now.DesiredNumberScheduled {
		return fmt.Errorf("generation %d, %+v", set.Generation, now)
	}
	return nil
}

// pending is nil if the scheduler has found no node for this many pods.
func (o *operator) pending(selector string, want int) error {
	pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
		metav1.ListOptions{LabelSelector: selector})
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
	if err == nil && (set.Status.ObservedGeneration != set.Generation ||
		int(set.Status.DesiredNumberScheduled) != nodes) {
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
