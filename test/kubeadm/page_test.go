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
	"github.com/application-grid/application-grid/test/kubeadm/operate"
)

const (
	wrappers   = "app=application-grid-wrapper"
	daemons    = "app=statefulset-grid-daemon"
	ourProxies = "app=kube-proxy-edge"
	proxies    = "k8s-app=kube-proxy"
)

// section is the heading of each page above its first steps.
const section = "## Install"

// pages is the cluster that the pages are followed on, step by step.
type pages struct {
	*operator
	// before has the pods of kubeadm's kube-proxy by node, before anything is installed.
	before map[string]string
}

var (
	// open and closed are who may answer whom.
	open   = map[string][]string{"cloud0": operate.Everybody, "node0": operate.Everybody, "node1": operate.Everybody}
	closed = map[string][]string{"cloud0": operate.Everybody, "node0": {"node0"}, "node1": {"node1"}}
	// siteOf is the site of each node of a site.
	siteOf = map[string]string{"node0": "east", "node1": "west"}
)

// TestPages follows docs/kubeadm.md, hub.md, systemd.md, coredns.md and upgrade.md, with the commands as they are
// there. node0 and node1 are two sites; the control plane's node is none, and never an edge node. All three ask a
// closed Service all the time. A request that is lost, or answered by a foreign site where that is closed off, fails
// the step; so do two kube-proxies that run on one node at once.
func TestPages(t *testing.T) {
	o := &operator{shared.Operator(t, "kubeadm.md")}
	o.Must(shared.Node("node0").SetPodFamilies(false)) // until judgeFamilies
	o.StartEcho()
	p := &pages{operator: o}
	o.Shell("kubectl label node node0 " + operate.SiteLabel + "=east\nkubectl label node node1 " + operate.SiteLabel + "=west")
	for _, node := range operate.Everybody {
		p.Expect(node, operate.Everybody...)
	}
	oneKubeProxy(t)
	p.before, _ = o.kubeProxies()
	for _, step := range []struct {
		name string
		do   func(*pages)
	}{
		{"install", (*pages).install},
		{"label", (*pages).label},
		{"check and prove", (*pages).checkAndProve},
		{"what all commands say of Services", (*pages).judgeServices},
		{"what all commands say of families", (*pages).judgeFamilies},
		{"what all commands say of a hub", (*pages).judgeHub},
		{"move a node", (*pages).moveANode},
		{"readiness", (*pages).readiness},
		{"upgrade", (*pages).upgrade},
		{"upgrade without the policy", (*pages).upgradeWithoutThePolicy},
		{"roll out a new wrapper", (*pages).rollOut},
		{"take a node back", (*pages).takeBack},
		{"the wrapper under systemd", (*pages).underSystemd},
		{"power cut with a link", (*pages).powerCutWithLink},
		{"power cut without a link", (*pages).powerCutWithoutLink},
		{"a site that comes back alone", (*pages).siteComesBack},
		{"names in every site", (*pages).namesInSites},
		{"a site of ordinary pods that comes back alone", (*pages).ordinarySiteComesBack},
		{"remove", (*pages).remove},
	} {
		if !o.Step(step.name, func() { step.do(p) }) {
			t.FailNow()
		}
	}
	for _, node := range operate.Everybody {
		p.Pause(node)
	}
}

// widenBoth lets these nodes answer node0 and node1: that is about to change.
func (p *pages) widenBoth(by ...string) {
	p.Helper()
	p.Widen("node0", by...)
	p.Widen("node1", by...)
}

// joinSites makes node0 and node1 one site, partSites makes them two again.
func (p *pages) joinSites() {
	p.Helper()
	p.widenBoth("node0", "node1")
	p.Shell("kubectl label node node1 --overwrite " + operate.SiteLabel + "=east")
	p.Expect("node0", "node0", "node1")
	p.Expect("node1", "node0", "node1")
}

func (p *pages) partSites() {
	p.Helper()
	p.Shell("kubectl label node node1 --overwrite " + operate.SiteLabel + "=west")
	p.Expect("node0", "node0")
	p.Expect("node1", "node1")
	p.check(closed)
}

// unchanged fails if kubeadm's kube-proxy of these nodes was replaced.
func (p *pages) unchanged(what string, nodes ...string) {
	p.Helper()
	now, _ := p.kubeProxies()
	for _, node := range nodes {
		if now[node] != p.before[node] || now[node] == "" {
			p.Errorf("%s: kubeadm's kube-proxy of %s was replaced: %q, then %q", what, node, p.before[node], now[node])
		}
	}
}

func (p *pages) install() {
	p.Import()
	p.WriteFiles(section)
	p.checkBefore()
	p.Follow(section, "kubectl apply -k edge")
	p.Shell("kubectl -n kube-system rollout status deployment application-grid-controller --timeout=2m")
	for _, name := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
		p.Eventually("no node is to have "+name, func() error { return p.wanted(name, 0) })
	}
	p.Eventually("kubeadm's kube-proxy is to be where it was",
		func() error { return p.wanted("kube-proxy", len(operate.Everybody)) })
	p.unchanged("installing", operate.Everybody...)
	p.check(open)
}

func (p *pages) label() {
	p.Follow(section, "kubectl label node node0")
	for _, selector := range []string{wrappers, daemons, ourProxies} {
		p.expectOn(selector, "node0")
	}
	p.Expect("node0", "node0")
	p.unchanged("labelling node0", "cloud0", "node1")
	p.Shell("kubectl label node node1 superedge.io/application-grid=true")
	p.expectOn(ourProxies, "node0", "node1")
	p.Expect("node1", "node1")
	p.unchanged("labelling node1", "cloud0")
	p.fromPods("cloud0", operate.Everybody...)
	p.fromPods("node0", "node0")
	p.fromPods("node1", "node1")
	p.check(closed)
}

func (p *pages) checkAndProve() {
	p.checkAfter()
	p.check(closed)
}

func (p *pages) moveANode() {
	p.joinSites()
	p.fromPods("node1", "node0", "node1")
	p.partSites()
}

// readiness changes what the probe of node0's pod finds. Both nodes are one site meanwhile, so that somebody answers
// while the pod does not.
func (p *pages) readiness() {
	p.joinSites()
	for _, from := range []string{"node0", "node1"} {
		p.widenBoth("node0", "node1")
		p.followReadiness(false, from)
		p.Expect("node0", "node1")
		p.Expect("node1", "node1")
		p.widenBoth("node0", "node1")
		p.followReadiness(true, from)
		p.Expect("node0", "node0", "node1")
		p.Expect("node1", "node0", "node1")
	}
	p.partSites()
}

// upgrade is one from the version before to this one, as far as kube-proxy is concerned.
func (p *pages) upgrade() {
	_, ours := p.kubeProxies()
	cloud := shared.ControlPlane()
	const version, older = "v1.37.1", "v1.36.0"
	p.tag(cloud, "registry.k8s.io/kube-proxy:"+version, "registry.k8s.io/kube-proxy:"+older)
	configuration, err := cloud.ReadFile("/etc/kubeadm.yaml")
	p.Must(err)
	p.Must(cloud.WriteFile("/etc/kubeadm-older.yaml",
		strings.Replace(string(configuration), "kubernetesVersion: "+version, "kubernetesVersion: "+older, 1)))
	for _, command := range []struct{ line, image string }{
		{"init phase addon kube-proxy --config=/etc/kubeadm-older.yaml", older},
		{"upgrade node phase addon kube-proxy", version},
		{"init phase addon kube-proxy --config=/etc/kubeadm.yaml", version},
	} {
		p.addonPhase(strings.Fields(command.line)...)
		p.Eventually("kubeadm's DaemonSet is rolled out", p.rolledOut)
		p.expectOn(proxies, "cloud0")
		if image := p.imageOf("kube-proxy"); image != "registry.k8s.io/kube-proxy:"+command.image {
			p.Errorf("kubeadm %s: kube-proxy's image is %s", command.line, image)
		}
	}
	if _, now := p.kubeProxies(); !maps.Equal(ours, now) {
		p.Errorf("kube-proxy-edge was replaced: %v, then %v", ours, now)
	}
	p.check(closed)
}

// upgradeWithoutThePolicy is one with an API server older than 1.36, which has no such policies: the pods refuse each
// other.
func (p *pages) upgradeWithoutThePolicy() {
	p.Shell("kubectl delete mutatingadmissionpolicybindings,mutatingadmissionpolicies kube-proxy.superedge.io\n" +
		"sleep 5 # until kube-apiserver has forgotten it")
	p.addonPhase("init", "phase", "addon", "kube-proxy", "--config=/etc/kubeadm.yaml")
	p.Eventually("kubeadm's kube-proxy waits for two nodes", func() error { return p.pending(proxies, 2) })
	p.check(closed)
	p.Shell("kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
	p.expectOn(proxies, "cloud0")
	p.Shell("kubectl apply -k edge")
	p.check(closed)
}

func (p *pages) rollOut() {
	for _, node := range operate.Everybody {
		p.tag(shared.Node(node), "registry.example.org/application-grid-wrapper:v1",
			"registry.example.org/application-grid-wrapper:v2")
	}
	p.Shell("sed -i '/name: application-grid-wrapper,/s/newTag: v1/newTag: v2/' edge/kustomization.yaml\nkubectl apply -k edge")
	p.Reading("upgrade.md").Follow("## Upgrade", "maxUnavailable")
	p.Shell("kubectl -n kube-system rollout status daemonset application-grid-wrapper --timeout=2m")
	if image := p.imageOf("application-grid-wrapper"); !strings.HasSuffix(image, ":v2") {
		p.Errorf("the wrapper's image is %s", image)
	}
	p.expectOn(wrappers, "node0", "node1")
	p.Shell("kubectl -n kube-system rollout restart daemonset kube-proxy-edge\n" +
		"kubectl -n kube-system rollout status daemonset kube-proxy-edge --timeout=2m")
	p.expectOn(ourProxies, "node0", "node1")
	p.check(closed)
}

func (p *pages) takeBack() {
	p.Widen("node0", operate.Everybody...)
	p.Shell("kubectl label node node0 superedge.io/application-grid-")
	p.expectOn(proxies, "cloud0", "node0")
	p.Expect("node0", operate.Everybody...)
	p.Shell("kubectl label node node0 superedge.io/application-grid=true")
	p.expectOn(ourProxies, "node0", "node1")
	p.Expect("node0", "node0")
	p.check(closed)
}

func (p *pages) underSystemd() {
	node, manual := shared.Node("node1"), p.Reading("systemd.md")
	p.Widen("node1", operate.Everybody...)
	p.Shell("kubectl label node node1 superedge.io/application-grid-")
	p.expectOn(proxies, "cloud0", "node1")
	p.expectOn(wrappers, "node0") // its port is free
	p.Expect("node1", operate.Everybody...)
	manual.Follow(section, "kubectl grid kubeconfig")
	p.installUnit(node)
	p.startUnit(node)
	p.Shell(strings.ReplaceAll(manual.Commands("## On a node of kubeadm", "kubectl label node node0"), "node0",
		"node1"))
	p.expectOn(ourProxies, "node0", "node1")
	p.expectOn(wrappers, "node0")
	p.Expect("node1", "node1")
	// The token is renewed, and the unit restarted.
	manual.Follow(section, "kubectl grid kubeconfig")
	p.stopUnit(node)
	p.installUnit(node)
	p.startUnit(node)
	p.check(closed)
	// Back to pods. Without either wrapper kube-proxy goes on with its rules.
	p.stopUnit(node)
	p.Shell("kubectl label node node1 superedge.io/application-grid=true --overwrite")
	p.expectOn(wrappers, "node0", "node1")
	p.check(closed)
}

func (p *pages) powerCutWithLink() {
	node := shared.Node("node1")
	p.Pause("node1")
	p.Pause("cloud0") // nobody knows yet that node1's pods are gone
	p.Must(node.PowerCut())
	p.PowerOn(node)
	p.check(closed)
}

func (p *pages) powerCutWithoutLink() {
	node := shared.Node("node1")
	p.Pause("node1")
	p.Pause("cloud0")
	p.Must(node.PowerCut())
	p.Must(node.PowerOn())
	p.Must(node.CutLink())
	// As long as the page says: containerd and the kubelet, which has learned of no pod.
	p.Eventually("the kubelet runs", func() error { return contains(p.processesOn("node1"), "kubelet") })
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Second) {
		running := p.processesOn("node1")
		if contains(running, "application-grid-wrapper") == nil || contains(running, "kube-proxy") == nil {
			p.Errorf("without a link there run %v: the page says otherwise", running)
		}
	}
	p.Logf("20 s after a reboot without a link there run %v", p.processesOn("node1"))
	p.staticPods(node)
	p.PowerOn(node)
	p.check(closed)
}

func (p *pages) siteComesBack() {
	p.comesBackAlone(shared.Node("node0"), shared.Node("node1"))
	for node, site := range siteOf {
		p.Shell("kubectl label node " + node + " --overwrite " + operate.SiteLabel + "=" + site +
			" superedge.io/application-grid=true")
	}
	p.expectOn(ourProxies, "node0", "node1")
	p.expectOn(wrappers, "node0", "node1")
	p.Expect("node0", "node0")
	p.Expect("node1", "node1")
	p.Expect("cloud0", operate.Everybody...)
	p.check(closed)
}

func (p *pages) namesInSites() {
	manual := p.Reading("coredns.md")
	p.Shell("kubectl apply -f - <<'END'\n" + statefulGrid + "END")
	p.Shell("printf '\ncomponents: [../manifests/coredns-edge]\n' >> edge/kustomization.yaml && kubectl apply -k edge")
	manual.Follow(section, "annotate --overwrite service kube-dns")
	p.Shell("kubectl -n kube-system rollout status daemonset coredns-edge --timeout=2m")
	p.expectOn("app=coredns-edge", "node0", "node1")
	for node, site := range siteOf {
		p.expectName(node, site)
		p.checkSiteCommands(site)
	}
	p.addonPhase("upgrade", "node", "phase", "addon", "coredns")
	manual.Follow(section, "annotate --overwrite service kube-dns") // as the page says
	p.expectOn("app=coredns-edge", "node0", "node1")
	if keys := p.Shell("kubectl -n kube-system get service kube-dns -o jsonpath='{.metadata.annotations.topologyKeys}'"); !strings.Contains(keys, operate.SiteLabel) {
		p.Errorf("after an upgrade kube-dns has topologyKeys %q", keys)
	}
	for node, site := range siteOf {
		p.expectName(node, site)
	}
	p.check(closed)
}

func (p *pages) ordinarySiteComesBack() {
	p.widenBoth(operate.Everybody...)
	p.ordinaryPodsComeBackAlone(shared.Node("node0"), shared.Node("node1"))
}

func (p *pages) remove() {
	p.widenBoth(operate.Everybody...)
	manual := p.Reading("upgrade.md")
	manual.Follow("## Remove", "kubectl delete -k edge")
	manual.Follow("## Remove", "kube-proxy-back.yaml")
	p.expectOn(proxies, operate.Everybody...)
	for _, node := range operate.Everybody {
		p.Expect(node, operate.Everybody...)
	}
	set, err := p.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(p.Context(), "kube-proxy",
		metav1.GetOptions{})
	p.Must(err)
	if set.Spec.Template.Spec.Affinity != nil {
		p.Errorf("kubeadm's kube-proxy still has %+v", set.Spec.Template.Spec.Affinity)
	}
	p.Eventually("no pod is left", func() error {
		for _, node := range operate.Everybody {
			for _, pod := range p.podsOn(node) {
				if strings.Contains(pod, "grid") || strings.Contains(pod, "edge") {
					return fmt.Errorf("pod %s is left on %s", pod, node)
				}
			}
		}
		return nil
	})
	p.check(open)
}

// addonPhase writes kubeadm's kube-proxy again.
func (o *operator) addonPhase(args ...string) {
	o.Helper()
	output, err := shared.ControlPlane().Run(o.Context(), "kubeadm", args...)
	o.Must(err)
	o.Logf("kubeadm %s\n%s", strings.Join(args, " "), output)
}

// tag gives an image on a node a further name.
func (o *operator) tag(node *kubeadm.Node, image, name string) {
	o.Helper()
	_, err := node.Run(o.Context(), "ctr", "-n", "k8s.io", "images", "tag", image, name)
	o.Must(err)
}

// imageOf is the image that a DaemonSet of kube-system asks for.
func (o *operator) imageOf(name string) string {
	o.Helper()
	set, err := o.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), name, metav1.GetOptions{})
	o.Must(err)
	return set.Spec.Template.Spec.Containers[0].Image
}

// rolledOut is nil if all pods of kubeadm's kube-proxy are of its present version, and available.
func (o *operator) rolledOut() error {
	set, err := o.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), "kube-proxy", metav1.GetOptions{})
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
	pods, err := o.Client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
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
	set, err := o.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), name, metav1.GetOptions{})
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
