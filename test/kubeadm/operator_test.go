package kubeadm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/pkg/program/await"
	"github.com/application-grid/application-grid/test/docs"
	"github.com/application-grid/application-grid/test/suite"
)

// operator is who follows the pages, in a directory with the repository's manifests.
type operator struct {
	suite.Test
	client    kubernetes.Interface
	directory string
	// name and page are the page that is open.
	name, page string
}

// patience is for what kubelets and controllers do on a busy machine.
var patience = await.Patience{Within: 2 * time.Minute, Between: 100 * time.Millisecond}

func newOperator(t *testing.T) *operator {
	t.Helper()
	root := suite.Repository(t)
	o := (&operator{Test: suite.Test{T: t, Patience: patience}, client: shared.Client(), directory: t.TempDir()}).reading("install.md")
	o.Must(os.CopyFS(filepath.Join(o.directory, "manifests"), os.DirFS(filepath.Join(root, "manifests"))))
	o.Must(os.WriteFile(filepath.Join(o.directory, "kubectl"),
		fmt.Appendf(nil, "#!/bin/sh\nexec '%s/components' kubectl \"$@\"\n", programs), 0o755))
	o.Must(os.Symlink(filepath.Join(programs, "kubectl-grid"), filepath.Join(o.directory, "kubectl-grid")))
	return o
}

// step is a part of the test, which fails with it. It reports whether it passed.
func (o *operator) step(name string, do func()) bool {
	o.Helper()
	whole := o.T
	defer func() { o.T = whole }()
	return whole.Run(name, func(t *testing.T) {
		o.T = t
		do()
	})
}

// reading is the same operator with another page of docs/ open.
func (o *operator) reading(name string) *operator {
	o.Helper()
	root := suite.Repository(o)
	page, err := os.ReadFile(filepath.Join(root, "docs", name))
	o.Must(err)
	other := *o
	other.name, other.page = name, string(page)
	return &other
}

// writeFileOf writes a file that the page shows: a block of YAML whose first line is a comment with the file's name.
func (o *operator) writeFileOf(heading, name string) {
	o.Helper()
	match := regexp.MustCompile("(?s)\n( *)```yaml\n *# " + regexp.QuoteMeta(name) +
		"\n(.*?)\n *```").FindStringSubmatch(o.section(heading))
	if match == nil {
		o.Fatalf("%s shows no %s", heading, name)
	}
	file := filepath.Join(o.directory, name)
	o.Must(os.MkdirAll(filepath.Dir(file), 0o755))
	o.Must(os.WriteFile(file, []byte(strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")), 0o600))
}

// section is the text of the page from this heading to the next of its level.
func (o *operator) section(heading string) string {
	o.Helper()
	_, text, found := strings.Cut("\n"+o.page, "\n"+heading+"\n")
	if !found {
		o.Fatalf("%s has no %q", o.name, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// follow runs the block of commands below the heading that has this text in it, as it is on the page.
func (o *operator) follow(heading, text string) string {
	o.Helper()
	return o.shell(o.commands(heading, text))
}

// commands is the block of commands below the heading that has this text in it.
func (o *operator) commands(heading, text string) string {
	o.Helper()
	blocks, err := docs.BlocksOf(o.name, o.section(heading))
	o.Must(err)
	for _, block := range blocks {
		if strings.Contains(block.Script, text) {
			return block.Script
		}
	}
	o.Fatalf("%s: %s has no commands with %q", o.name, heading, text)
	return ""
}

// shell runs commands and fails if one fails.
func (o *operator) shell(script string) string {
	o.Helper()
	command := exec.CommandContext(o.Context(), "bash", "-euo", "pipefail", "-c", script)
	command.Dir = o.directory
	command.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig(), "PATH="+o.directory+":"+os.Getenv("PATH"))
	begin := time.Now()
	output, err := command.CombinedOutput()
	if err != nil {
		o.Fatalf("%v:\n%s\n%s", err, script, output)
	}
	o.Logf("%.1f s\n%s\n%s", time.Since(begin).Seconds(), strings.TrimSpace(script), output)
	return string(output)
}

// kubeProxies are the uids of the kube-proxy pods by node, kubeadm's and ours, without those that are ending.
func (o *operator) kubeProxies() (kubeadms, ours map[string]string) {
	o.Helper()
	return o.uids("k8s-app=kube-proxy"), o.uids("app=kube-proxy-edge")
}

func (o *operator) uids(selector string) map[string]string {
	o.Helper()
	pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
		metav1.ListOptions{LabelSelector: selector})
	o.Must(err)
	found := map[string]string{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" {
			found[pod.Spec.NodeName] = string(pod.UID)
		}
	}
	return found
}

// expectOn waits until the pods of kube-system with this label run, ready, on exactly these nodes.
func (o *operator) expectOn(selector string, nodes ...string) {
	o.Helper()
	o.Eventually(fmt.Sprintf("%s on %v", selector, nodes), func() error {
		pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
			metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		on := map[string]bool{}
		for _, pod := range pods.Items {
			if !isReady(&pod) {
				return fmt.Errorf("pod %s on %q is %s: %+v", pod.Name, pod.Spec.NodeName, pod.Status.Phase,
					pod.Status.ContainerStatuses)
			}
			on[pod.Spec.NodeName] = true
		}
		for _, node := range nodes {
			if !on[node] {
				return fmt.Errorf("there is none on %s", node)
			}
		}
		if len(pods.Items) != len(nodes) {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
}

func isReady(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podsOn are the names of all pods that the API server has of a node.
func (o *operator) podsOn(node string) []string {
	o.Helper()
	pods, err := o.client.CoreV1().Pods("").List(o.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	o.Must(err)
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names
}
