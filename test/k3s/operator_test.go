package k3s_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/docs/page"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// patience is for what kubelets and controllers do on a busy machine.
var patience = await.Patience{Within: 2 * time.Minute, Between: 100 * time.Millisecond}

// operator follows the page.
type operator struct {
	*page.Reader
	client  kubernetes.Interface
	service *corev1.Service
	streams map[string]*workload.Traffic
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	path := t.TempDir()
	suite.Must(t, os.WriteFile(filepath.Join(path, "kubectl"),
		fmt.Appendf(nil, "#!/bin/sh\nexec '%s/components' kubectl \"$@\"\n", programs), 0o755))
	suite.Must(t, os.Symlink(filepath.Join(programs, "kubectl-grid"), filepath.Join(path, "kubectl-grid")))
	return &operator{client: shared.Client(), streams: map[string]*workload.Traffic{},
		Reader: page.Open(suite.Test{T: t, Patience: patience}, "k3s.md",
			"KUBECONFIG="+shared.Kubeconfig(), "PATH="+path+":"+os.Getenv("PATH"))}
}

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

func (o *operator) kubectl(args ...string) *exec.Cmd {
	o.Helper()
	return o.command("components", append([]string{"kubectl"}, args...)...)
}

// plugin is a command of kubectl grid.
func (o *operator) plugin(args ...string) *exec.Cmd {
	o.Helper()
	return o.command("kubectl-grid", args...)
}

func (o *operator) command(program string, args ...string) *exec.Cmd {
	o.Helper()
	command := exec.CommandContext(o.Context(), filepath.Join(programs, program), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig())
	return command
}

// asks waits until requests from the node are answered by exactly these nodes. From then on, until the next change or
// pause, each request must be.
func (o *operator) asks(node string, by ...string) {
	o.Helper()
	o.pause(node)
	begin := time.Now()
	o.Eventually(fmt.Sprintf("%s is answered by %v", node, by), func() error {
		if seen := o.answers(node, o.service, 30); !slices.Equal(seen, by) {
			return fmt.Errorf("it is answered by %v", seen)
		}
		return nil
	})
	o.Logf("%s is answered by %v after %.1f s", node, by, time.Since(begin).Seconds())
	o.change(node, by...)
}

// change goes on with the requests of the node, which these nodes may answer from now on.
func (o *operator) change(node string, by ...string) {
	o.Helper()
	o.pause(node)
	traffic := workload.StartTraffic(o.Context(), workload.URL(o.service), 20*time.Millisecond)
	traffic.From(shared.Node(node), by)
	o.streams[node] = traffic
}

// pause ends the node's requests. Each one that was lost, or answered by another node, is a failure.
func (o *operator) pause(node string) {
	o.Helper()
	traffic := o.streams[node]
	if traffic == nil {
		return
	}
	delete(o.streams, node)
	tried, failed := traffic.End()
	o.Logf("%s: %d of %d requests lost or answered by a foreign site", node, len(failed), tried)
	if len(failed) > 0 {
		o.Errorf("%s, of %d requests:\n%s", node, tried, strings.Join(failed[:min(len(failed), 10)], "\n"))
	}
}

// answers are the nodes that answer requests to a Service from a node; "nobody" for one without an answer.
func (o *operator) answers(node string, service *corev1.Service, tries int) []string {
	reached := map[string]bool{}
	for range tries {
		attempt, cancel := context.WithTimeout(o.Context(), time.Second)
		answer, err := workload.Ask(attempt, shared.Node(node), workload.URL(service))
		cancel()
		if err != nil {
			answer.Node = "nobody"
		}
		reached[answer.Node] = true
	}
	return slices.Sorted(maps.Keys(reached))
}

// wrapperOn waits until a ready wrapper runs on the node.
func (o *operator) wrapperOn(node string) {
	o.Helper()
	o.Eventually("the wrapper on "+node+" is ready", func() error {
		pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(), metav1.ListOptions{
			LabelSelector: "app=application-grid-wrapper", FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, condition := range pod.Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		return fmt.Errorf("of %d none is", len(pods.Items))
	})
}

// nodeIs waits until the API server has this of a node's readiness.
func (o *operator) nodeIs(node string, ready corev1.ConditionStatus) {
	o.Helper()
	o.Eventually(fmt.Sprintf("%s has Ready %s", node, ready), func() error {
		found, err := o.client.CoreV1().Nodes().Get(o.Context(), node, metav1.GetOptions{})
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
		found, err := o.client.CoreV1().Nodes().Get(o.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if args := found.Annotations["k3s.io/node-args"]; strings.Contains(args, "localhost:51006") != lead {
			return fmt.Errorf("it says %s", args)
		}
		return nil
	})
}
