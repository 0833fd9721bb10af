package kubeadm_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/suite"
)

// plugin runs kubectl grid and returns what it prints and its exit code.
func (o *operator) plugin(args ...string) (stdout string, code int) {
	o.Helper()
	stdout, stderr, code := suite.Run(o, exec.CommandContext(o.Context(), filepath.Join(shared.Programs, "kubectl-grid"),
		append(args, "--kubeconfig="+shared.Kubeconfig())...))
	o.Logf("kubectl grid %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
	return stdout, code
}

// expectPlugin runs kubectl grid and compares its exit code.
func (o *operator) expectPlugin(code int, args ...string) string {
	o.Helper()
	stdout, got := o.plugin(args...)
	if got != code {
		o.Errorf("kubectl grid %s ended with %d, not %d", strings.Join(args, " "), got, code)
	}
	return stdout
}

// checkDashboard starts kubectl grid dashboard, asks it as a script would until it knows both sites and the Service,
// and interrupts it.
func (o *operator) checkDashboard() {
	o.Helper()
	command := exec.CommandContext(o.Context(), filepath.Join(shared.Programs, "kubectl-grid"), "dashboard",
		"--kubeconfig="+shared.Kubeconfig(), "--namespace=default")
	stdout, err := command.StdoutPipe()
	o.Must(err)
	o.Must(command.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	o.Must(err)
	base, token, found := strings.Cut(strings.TrimSpace(line), "#token=")
	if !found {
		o.Fatalf("it prints %q", line)
	}
	for path, want := range map[string]string{
		"api/sites/east?key=" + operate.SiteLabel: `"state":"Ready"`,
		"api/sites/west?key=" + operate.SiteLabel: `"state":"Ready"`,
		"api/services/default/echo":               `"topologyKeys":["` + operate.SiteLabel + `"]`,
	} {
		o.Eventually("the dashboard answers "+path, func() error {
			request, err := http.NewRequestWithContext(o.Context(), http.MethodGet, base+path, nil)
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+token)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), want) {
				return fmt.Errorf("%s, %w: %s", response.Status, err, body)
			}
			return nil
		})
	}
	o.Must(command.Process.Signal(os.Interrupt))
	o.Must(command.Wait())
}

// checkBefore compares what kubectl grid check --pre prints to install with, with what the page shows, and proves that
// the Service is open.
func (o *operator) checkBefore() {
	o.Helper()
	o.expectPlugin(0, "check", "--pre")
	printed := o.expectPlugin(0, "check", "--pre", "--registry=registry.example.org", "--tag=v1", "-o", "kustomization")
	page, err := os.ReadFile(filepath.Join(o.Directory, "edge", "kustomization.yaml"))
	o.Must(err)
	if want := "# edge/kustomization.yaml\n" + strings.TrimSpace(string(page)) + "\n"; printed != want {
		o.Errorf("it prints\n%s\nand the page shows\n%s", printed, want)
	}
	// The nodes of the sites are no edge nodes yet.
	if preview := o.expectPlugin(3, "preview", "--key="+operate.SiteLabel, "--namespace=default"); !strings.Contains(preview,
		"echo   3       -         -               site-local\n") {
		o.Errorf("it prints\n%s", preview)
	}
	stdout := o.expectPlugin(3, "prove", "echo", "--image=registry.example.org/application-grid-wrapper:v1",
		"--requests=60")
	if strings.Count(stdout, "LEAK: reached pod echo-") != 2 {
		o.Errorf("without a wrapper it prints\n%s", stdout)
	}
	o.noProvingPods()
}

// checkAfter looks at the installation, and proves that a Service stays in its sites.
func (o *operator) checkAfter() {
	o.Helper()
	o.Eventually("kubectl grid check finds nothing but that names need the link", func() error {
		if stdout, code := o.plugin("check"); code != 0 || !strings.Contains(stdout, "WARNING  Service kube-system/kube-dns: ") ||
			!strings.Contains(stdout, "\n0 failures, 1 warning, 0 unknown, ") {
			return errors.New(stdout)
		}
		return nil
	})
	o.checkDashboard()
	// A site without a CoreDNS of its own would be dark: usually both are, since it runs on the control plane's node.
	o.Eventually("kubectl grid preview says what closing kube-dns would change", func() error {
		on, want, without := o.uids("k8s-app=kube-dns"), 0, ""
		for _, site := range []struct{ node, name string }{{"node0", "east"}, {"node1", "west"}} {
			if on[site.node] == "" {
				want, without = 3, without+".*"+site.name
			}
		}
		stdout, code := o.plugin("preview", "--key="+operate.SiteLabel, "--namespace="+metav1.NamespaceSystem)
		if code != want || !regexp.MustCompile(`(?m)^kube-dns +2 +\d+% +`+without).MatchString(stdout) {
			return fmt.Errorf("exit code %d: %s", code, stdout)
		}
		return nil
	})
	stdout := o.expectPlugin(0, "prove", "echo", "--all-nodes")
	for _, row := range []string{"east (node0)   20     ·      ·        ok\n", "west (node1)   ·      20     ·        ok\n"} {
		if !strings.Contains(stdout, row) {
			o.Errorf("prove prints no %q", row)
		}
	}
	// An image that no node has: the reason is the pod's, and nothing is left.
	if stdout := o.expectPlugin(1, "prove", "echo", "--image=registry.invalid/application-grid-wrapper:none",
		"--timeout=2m"); !strings.Contains(stdout, "unproved: ErrImagePull: ") &&
		!strings.Contains(stdout, "unproved: ImagePullBackOff: ") {
		o.Errorf("it prints\n%s", stdout)
	}
	o.noProvingPods()
}

func (o *operator) noProvingPods() {
	o.Helper()
	pods, err := o.Client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubectl-grid-prove"})
	o.Must(err)
	if len(pods.Items) != 0 {
		o.Errorf("%d pods of kubectl grid prove are left", len(pods.Items))
	}
}
