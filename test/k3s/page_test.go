package k3s_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	section = "## k3s"
	server  = "cloud0"
	// argument is the page's file of its own on a node.
	argument = "application-grid.yaml"
)

// TestPage follows docs/k3s.md, with its commands as they are there, on a server and two agents. node0 and node1 are
// two sites. All nodes ask a closed Service all the time; a request that is lost, or answered by a foreign site where
// it is closed off, fails the step.
func TestPage(t *testing.T) {
	o := &operator{shared.Operator(t, "k3s.md")}
	o.StartEcho()
	o.Shell("kubectl label node node0 zone1=east\nkubectl label node node1 zone1=west")
	for _, node := range operate.Everybody {
		o.Expect(node, operate.Everybody...)
	}
	for _, step := range []struct {
		name string
		do   func(*operator)
	}{
		{"install", (*operator).install},
		{"label, wait, lead", (*operator).lead},
		{"the wrong order", (*operator).wrongOrder},
		{"the label is kept", (*operator).labelIsKept},
		{"move a node", (*operator).move},
		{"a new wrapper", (*operator).newWrapper},
		{"by a kubeconfig", (*operator).byKubeconfig},
		{"power cut with a link", (*operator).powerCut},
		{"the link is cut", (*operator).linkCut},
		{"power cut without a link", (*operator).powerCutWithoutLink},
		{"a server in the site", (*operator).serverInSite},
		{"remove", (*operator).remove},
	} {
		if !o.Step(step.name, func() { step.do(o) }) {
			t.FailNow()
		}
	}
	for _, node := range operate.Everybody {
		o.Pause(node)
	}
}

func (o *operator) install() {
	o.Import()
	o.WriteFiles(section)
	printed := o.Shell("kubectl grid check --pre")
	label, argument := strings.Index(printed, "superedge.io/application-grid=true"), strings.Index(printed, "kube-proxy-arg+")
	if label < 0 || argument < label {
		o.Errorf("kubectl grid check --pre does not print the label before kube-proxy-arg:\n%s", printed)
	}
	o.Follow(section, "kubectl apply -k edge")
	o.Shell("kubectl -n kube-system rollout status deployment application-grid-controller --timeout=2m")
}

// lead takes node0 in, in the page's order.
func (o *operator) lead() {
	o.Follow(section, "kubectl label node node0")
	o.Widen("node0", operate.Everybody...)
	o.on("node0", section, argument)
	o.Expect("node0", "node0")
	o.argsOf("node0", true)
	o.noFailure("node0")
}

// wrongOrder leads node1's kube-proxy to a wrapper that is not there. Its rules are frozen, though the node is ready.
func (o *operator) wrongOrder() {
	o.Pause("node1")
	o.on("node1", section, argument)
	o.argsOf("node1", true)
	late := o.CreateService("late")
	defer o.Shell("kubectl delete service late")
	o.Eventually("node0 has rules for a new Service", func() error { return o.answered("node0", late) })
	if seen := o.Reached("node1", late, 3); !slices.Equal(seen, []string{"nobody"}) {
		o.Errorf("node1 is answered by %v: its rules are not frozen, and the page says that they are", seen)
	}
	o.nodeIs("node1", corev1.ConditionTrue)
	if failures := o.failures("node1"); !strings.Contains(failures, "where no wrapper serves: its rules stay") {
		o.Errorf("kubectl grid check says of it %q", failures)
	}
	o.Shell("kubectl label node node1 superedge.io/application-grid=true")
	o.wrapperOn("node1")
	o.Expect("node1", "node1")
	o.Must(o.answered("node1", late))
	o.noFailure("node1")
}

func (o *operator) answered(node string, service *corev1.Service) error {
	if seen := o.Reached(node, service, 3); slices.Contains(seen, "nobody") {
		return fmt.Errorf("%s is answered by %v", node, seen)
	}
	return nil
}

// noFailure waits until kubectl grid check finds no failure of a node.
func (o *operator) noFailure(node string) {
	o.Helper()
	o.Eventually("kubectl grid check finds no failure of "+node, func() error {
		if failures := o.failures(node); failures != "" {
			return errors.New(failures)
		}
		return nil
	})
}

// failures are the lines of kubectl grid check about failures of a node.
func (o *operator) failures(node string) (found string) {
	o.Helper()
	stdout, _, _ := suite.Run(o, o.command("kubectl-grid", "check"))
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "FAILURE") && strings.Contains(line, node) {
			found += line
		}
	}
	return found
}

// labelIsKept: kube-apiserver refuses to take the label from a node whose kube-proxy asks the wrapper.
func (o *operator) labelIsKept() {
	stdout, stderr, code := suite.Run(o, o.command("components", "kubectl", "label", "node", "node1", "superedge.io/application-grid-"))
	if code == 0 || !strings.Contains(stderr, "rm /etc/rancher/k3s/config.yaml.d/application-grid.yaml") {
		o.Errorf("removing the label ended with %d: %s%s", code, stdout, stderr)
	}
	o.wrapperOn("node1")
}

func (o *operator) move() {
	for _, node := range []string{"node0", "node1"} {
		o.Widen(node, "node0", "node1")
	}
	o.Shell("kubectl label node node1 --overwrite zone1=east")
	o.Expect("node0", "node0", "node1")
	o.Expect("node1", "node0", "node1")
	o.Shell("kubectl label node node1 --overwrite zone1=west")
	o.Expect("node0", "node0")
	o.Expect("node1", "node1")
}

func (o *operator) newWrapper() {
	for _, node := range operate.Everybody {
		o.run(node, "k3s ctr -n k8s.io images tag registry.example.org/application-grid-wrapper:v1 "+
			"registry.example.org/application-grid-wrapper:v2")
	}
	o.Shell("sed -i '/name: application-grid-wrapper,/s/newTag: v1/newTag: v2/' edge/kustomization.yaml\n" +
		"kubectl apply -k edge\n" +
		"kubectl -n kube-system rollout status daemonset application-grid-wrapper --timeout=2m")
	o.Expect("node0", "node0")
	o.Expect("node1", "node1")
}

// byKubeconfig leads node1's kube-proxy to the wrapper by the other of the page's two ways.
func (o *operator) byKubeconfig() {
	const file = "/etc/rancher/k3s/wrapper.kubeconfig"
	node := shared.Node("node1")
	o.Must(node.WriteFile(file, o.Reading("other-clusters.md").YAML("## kube-proxy's server",
		"http://localhost:51006")))
	o.Must(node.WriteFile(kubeadm.K3sConfig+".d/"+argument, "kube-proxy-arg+: [\"kubeconfig="+file+"\"]\n"))
	o.run("node1", "systemctl restart k3s-agent")
	o.argsOf("node1", false) // it names the file
	o.nodeIs("node1", corev1.ConditionTrue)
	o.move()
	o.on("node1", section, argument)
	o.argsOf("node1", true)
	o.Expect("node1", "node1")
}

func (o *operator) powerCut() {
	node := shared.Node("node1")
	o.Pause("node1")
	o.Pause(server) // nobody knows yet that node1's pods are gone
	o.Must(node.PowerCut())
	o.PowerOn(node)
}

// linkCut: a site goes on without the cloud, also when k3s is restarted there, which then waits for a server.
func (o *operator) linkCut() {
	node := shared.Node("node1")
	o.Pause(server)
	o.Must(node.CutLink())
	o.Expect("node1", "node1")
	o.run("node1", "systemctl restart k3s-agent")
	o.Expect("node1", "node1")
	o.nodeIs("node1", corev1.ConditionUnknown)
	o.Pause("node1") // its pods are called not ready, too, until its kubelet has reported
	o.Must(node.JoinLink())
	o.nodeIs("node1", corev1.ConditionTrue)
	o.Eventually("the endpoint on node1 is ready", func() error {
		list, err := o.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(o.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=echo"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			for _, e := range list.Items[i].Endpoints {
				if ptr.Deref(e.NodeName, "") == "node1" && ptr.Deref(e.Conditions.Ready, true) {
					return nil
				}
			}
		}
		return errors.New("it is not")
	})
	o.Expect("node1", "node1")
	o.Expect(server, operate.Everybody...)
}

// powerCutWithoutLink: an agent starts nothing until it reaches a server.
func (o *operator) powerCutWithoutLink() {
	node := shared.Node("node1")
	o.Pause("node1")
	o.Pause(server)
	o.Must(node.PowerCut())
	o.Must(node.PowerOn())
	o.Must(node.CutLink())
	o.Eventually("k3s waits for a server", func() error {
		log, err := node.ReadFile("/var/log/k3s.log")
		if err == nil && !strings.Contains(lastLine(string(log)), "server is not ready") {
			err = fmt.Errorf("it says %s", lastLine(string(log)))
		}
		return err
	})
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(time.Second) {
		if running := o.run("node1", "ps -e -o args="); strings.Contains(running, "containerd") {
			o.Errorf("without a server there run\n%s", running)
		}
	}
	o.Must(node.JoinLink())
	o.Expect("node1", "node1")
	o.Expect(server, operate.Everybody...)
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// serverInSite makes the server a node of node0's site, and cuts the power of both: everything of the site comes back.
func (o *operator) serverInSite() {
	o.Widen("node0", "node0", server)
	o.Shell("kubectl label node " + server + " zone1=east")
	o.Expect("node0", server, "node0")
	o.Widen(server, operate.Everybody...)
	o.Shell(strings.ReplaceAll(o.Commands(section, "kubectl label node node0"), "node0", server))
	o.on(server, section, argument)
	o.Expect(server, server, "node0")
	o.Pause(server)
	o.Pause("node0")
	for _, name := range []string{server, "node0"} {
		o.Must(shared.Node(name).PowerCut())
	}
	o.Expect("node1", "node1") // a site without a server goes on
	begin := time.Now()
	for _, name := range []string{server, "node0"} {
		o.Must(shared.Node(name).PowerOn())
	}
	o.Expect(server, server, "node0")
	o.Expect("node0", server, "node0")
	o.Logf("the site with the server is back %.1f s after its power", time.Since(begin).Seconds())
	o.wrapperOn("node1")
}

func (o *operator) remove() {
	removal := o.Reading("upgrade.md")
	for _, node := range operate.Everybody {
		o.Widen(node, operate.Everybody...)
		o.runAs(node, removal.Commands("## Remove", "rm /etc/rancher/k3s"))
		o.argsOf(node, false)
		o.Expect(node, operate.Everybody...)
	}
	script := removal.Commands("## Remove", "kubectl delete -k edge")
	var lines []string
	for line := range strings.Lines(script) {
		if !strings.Contains(line, "# kubeadm only") && !strings.Contains(line, "# if coredns.md set it") {
			lines = append(lines, line)
		}
	}
	o.Shell(strings.Join(lines, ""))
	late := o.CreateService("later")
	for _, node := range operate.Everybody {
		o.Eventually("the rules of "+node+" change", func() error { return o.answered(node, late) })
		o.Expect(node, operate.Everybody...)
	}
}
