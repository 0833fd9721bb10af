package k3s_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
)

// operator follows the page.
type operator struct{ *operate.Operator }

// on runs a block of the page on a node.
func (o *operator) on(node, heading, text string) {
	o.Helper()
	o.runAs(node, o.Commands(heading, text))
}

// runAs runs a page's commands on a node; a server's unit is k3s.
func (o *operator) runAs(node, script string) {
	o.Helper()
	if node == server {
		script = strings.ReplaceAll(script, "restart k3s-agent", "restart k3s")
	}
	o.run(node, script)
}

// run runs commands on a node.
func (o *operator) run(node, script string) string {
	o.Helper()
	output, err := shared.Node(node).Run(o.Context(), "sh", "-ec", script)
	o.Must(err)
	o.Logf("on %s:\n%s\n%s", node, script, output)
	return output
}

func (o *operator) command(program string, args ...string) *exec.Cmd {
	o.Helper()
	command := exec.CommandContext(o.Context(), filepath.Join(shared.Programs, program), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig())
	return command
}

// wrapperOn waits until a ready wrapper runs on the node.
func (o *operator) wrapperOn(node string) {
	o.Helper()
	o.Eventually("the wrapper on "+node+" is ready", func() error {
		pods, err := o.Client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(), metav1.ListOptions{
			LabelSelector: "app=application-grid-wrapper", FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return kubeadm.Ready(&pod) }) {
			return nil
		}
		return fmt.Errorf("of %d none is", len(pods.Items))
	})
}

// nodeIs waits until the API server has this of a node's readiness.
func (o *operator) nodeIs(node string, ready corev1.ConditionStatus) {
	o.Helper()
	o.Eventually(fmt.Sprintf("%s has Ready %s", node, ready), func() error {
		found, err := o.Client.CoreV1().Nodes().Get(o.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == ready {
				return nil
			}
		}
		return fmt.Errorf("it has %+v", found.Status.Conditions)
	})
}

// argsOf waits until the annotation of a node says with what k3s was started last.
func (o *operator) argsOf(node string, lead bool) {
	o.Helper()
	o.Eventually(node+" says with what k3s was started", func() error {
		found, err := o.Client.CoreV1().Nodes().Get(o.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if args := found.Annotations["k3s.io/node-args"]; strings.Contains(args, "localhost:51006") != lead {
			return fmt.Errorf("it says %s", args)
		}
		return nil
	})
}
