package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	// deadline is how long one block may take, on a busy machine.
	deadline = 60 * time.Second
	root     = "../.."
	// onKubeadm is why the pages about installing on kubeadm are not followed here.
	onKubeadm = "needs a cluster of kubeadm: make test-kubeadm runs it"
	// settling is how long nothing is written when the grids have settled.
	settling = 500 * time.Millisecond
)

// elsewhere are pages of which no block runs here unless it is marked, or only asks the node's programs something, with
// the reason.
var elsewhere = map[string]string{
	"docs/compatibility.md": "builds old kube-proxies for minutes: make compat runs it",
	"docs/coredns.md":       onKubeadm,
	"docs/install.md":       onKubeadm,
	"docs/k3s.md":           "needs a cluster of k3s: make test-k3s runs it",
	"docs/kubeadm.md":       onKubeadm,
	"docs/migrate.md":       "needs what SuperEdge or OpenYurt leaves in a cluster: make test-takeover runs it",
	"docs/quickstart.md":    onKubeadm,
	"docs/systemd.md":       onKubeadm,
	"docs/upgrade.md":       onKubeadm,
	"docs/dev/release.md":   "needs a release, and builds one for minutes: make test-release",
}

// asksNode matches a script that only asks a program on the node.
var asksNode = regexp.MustCompile(`^(curl localhost:\d+/\S*( +#.*)?\n)+$`)

// TestCommands runs the commands of all pages, page by page, in their order.
func TestCommands(t *testing.T) {
	blocks := read(t)
	var notRun []string
	pages := map[string][]Block{}
	var order []string
	for _, b := range blocks {
		if reason := elsewhere[b.Page]; reason != "" && b.NoRun == "" && !b.OnNode {
			if asksNode.MatchString(b.Script) {
				b.OnNode = true
			} else {
				b.NoRun = reason
			}
		}
		if b.NoRun != "" {
			notRun = append(notRun, fmt.Sprintf("%-28s %s", b.Name(), b.NoRun))
			continue
		}
		if pages[b.Page] == nil {
			order = append(order, b.Page)
		}
		pages[b.Page] = append(pages[b.Page], b)
	}
	t.Logf("not run here:\n  %s", strings.Join(notRun, "\n  "))
	if len(order) < 4 {
		t.Errorf("only %q have commands that can be run", order)
	}
	r := start(t)
	for _, page := range order {
		t.Run(page, func(t *testing.T) {
			r.begin(t)
			for _, b := range pages[page] {
				r.run(t, b)
			}
			r.expectTidy(t)
		})
	}
}

// read finds the blocks of all pages.
func read(t *testing.T) []Block {
	t.Helper()
	var all []Block
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/dev/*.md", "charts/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		suite.Must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			suite.Must(t, err)
			page, err := filepath.Rel(root, file)
			suite.Must(t, err)
			blocks, err := BlocksOf(page, string(text))
			suite.Must(t, err)
			all = append(all, blocks...)
		}
	}
	return all
}

// reader is who tries the commands: with a cluster, and the programs on the PATH.
type reader struct {
	cluster *cluster.Cluster
	path    string
	// grids is a file with the grids of the demonstration.
	grids string
	// names and versions are what state returned when a page last began with new grids.
	names, versions string
}

// start starts the cluster and applies the demonstration's grids.
func start(t *testing.T) *reader {
	t.Helper()
	site := func(name string) map[string]string {
		return map[string]string{"zone1": name, "superedge.io/application-grid": "static"}
	}
	c := suite.Start(t, cluster.Options{Nodes: []cluster.NodeSpec{
		{Name: "node0", Labels: site("east")}, {Name: "node1", Labels: site("west")},
		{Name: "node2", Labels: site("west")},
	}}, "application-grid-wrapper", "statefulset-grid-daemon")
	controller, err := c.NewController(t.Context(), "docs", suite.Binary(t, "application-grid-controller"))
	suite.Must(t, err)
	suite.Must(t, controller.Start(t.Context()))
	t.Cleanup(controller.Kill)
	r := &reader{cluster: c, path: suite.Path(t, "application-grid-wrapper") + ":" + os.Getenv("PATH")}
	grids, err := os.ReadFile(filepath.Join(root, "test", "cmd", "edge-cluster", "grids.yaml"))
	suite.Must(t, err)
	file := filepath.Join(t.TempDir(), "grids.yaml")
	suite.Must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(grids), "SITE-LABEL", "zone1")), 0o600))
	r.grids = file
	return r
}

// begin has a page begin with the grids of the demonstration, all of them ready, and a Service of the reader's own. If
// the page before has written anything, they are made again: to wait until they are ready would not do. What that page
// has done and undone, such as a hold, the controller may not have seen yet, and tell of it in the middle of this page.
func (r *reader) begin(t *testing.T) {
	t.Helper()
	if _, versions := r.state(t); versions == r.versions {
		return
	}
	r.run(t, Block{Page: "the reader's cluster", Script: `
kubectl delete grids --all --cascade=foreground
kubectl delete --ignore-not-found service echo
kubectl apply -f ` + r.grids + `
kubectl create service clusterip echo --tcp=8080
until kubectl grid status; do sleep 0.2; done
until kubectl grid view echo-svc; do sleep 0.2; done
`})
	if t.Failed() {
		t.FailNow()
	}
	// Statuses go on to be written for a moment. If one is missed, the next page makes the grids again for nothing.
	for before := "none"; before != r.versions; time.Sleep(settling) {
		before = r.versions
		r.names, r.versions = r.state(t)
	}
}

// expectTidy fails the test if a page has left something behind, or taken something away. What belongs to an object
// that was deleted goes a moment later.
func (r *reader) expectTidy(t *testing.T) {
	t.Helper()
	await.Patience{Within: deadline, Between: settling}.Until(t, "the page leaves what it began with", func() error {
		if names, _ := r.state(t); names != r.names {
			return fmt.Errorf("it leaves\n%s\nand began with\n%s", names, r.names)
		}
		return nil
	})
}

// state returns the names of what there is, with the labels of nodes, and the versions of what commands write.
func (r *reader) state(t *testing.T) (names, versions string) {
	t.Helper()
	get := func(args ...string) string {
		output, err := exec.CommandContext(t.Context(), "env", append([]string{
			"PATH=" + r.path, "KUBECONFIG=" + r.cluster.Kubeconfig(), "kubectl", "get",
		}, args...)...).Output()
		if err != nil {
			t.Fatalf("kubectl get %s: %v", strings.Join(args, " "), err)
		}
		return string(output)
	}
	const written = "grids,deployments,statefulsets,daemonsets,services"
	names = get("-A", "-o", "name", written+",namespaces,roles,clusterroles,validatingadmissionpolicies") +
		get("nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.labels}{"\n"}{end}`)
	versions = get("-A", written, "-o", `jsonpath={range .items[*]}{.metadata.uid} {.metadata.resourceVersion}{"\n"}{end}`)
	return names, versions
}

// run runs a block, as a reader would who pastes it into a shell in the repository's directory.
func (r *reader) run(t *testing.T, b Block) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	directory, err := filepath.Abs(root)
	suite.Must(t, err)
	command := []string{"env", "-C", directory, "PATH=" + r.path, "KUBECONFIG=" + r.cluster.Kubeconfig(), "bash",
		"-euo", "pipefail", "-c", b.Script}
	begin := time.Now()
	var output string
	if b.OnNode {
		node, findErr := r.cluster.Node("node0")
		if findErr != nil {
			t.Fatal(findErr)
		}
		output, err = node.Run(ctx, command[0], command[1:]...)
	} else {
		var both []byte
		both, err = exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		output = string(both)
	}
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err != nil || code != b.Exit {
		t.Errorf("%s: exit code %d, not %d (%v):\n%s\n%s", b.Name(), code, b.Exit, err, b.Script, output)
		return
	}
	t.Logf("%s (%s)\n%s\n%s", b.Name(), time.Since(begin).Round(time.Millisecond), b.Script, output)
}
