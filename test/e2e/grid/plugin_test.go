package grid

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/suite"
)

// said is what kubectl said.
type said struct {
	code           int
	stdout, stderr string
}

// rows are the lines of a table, its columns separated by one space.
func (s said) rows() string {
	var rows []string
	for line := range strings.Lines(s.stdout) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(rows, "\n")
}

// kubectl runs the real kubectl, and waits for its end.
func (f *fixture) kubectl(args ...string) said {
	f.Helper()
	stdout, stderr, code := suite.Run(f, f.command(args...))
	return said{code, stdout, stderr}
}

// command is kubectl with these arguments, with the plugin and its completion on the PATH.
func (f *fixture) command(args ...string) *exec.Cmd {
	f.Helper()
	dir := suite.Path(f)
	f.Must(os.Symlink(filepath.Join(suite.Repository(f), "hack", "kubectl_complete-grid"),
		filepath.Join(dir, "kubectl_complete-grid")))
	command := f.Kubectl(f.ctx, args...)
	command.Env = append(command.Env, "PATH="+dir+":/usr/bin:/bin", "HOME="+dir)
	return command
}

// expectSaid runs kubectl until it ends with the code, and all of says stands in its output: tables with one space
// between columns, $KEY for the test's site label.
func (f *fixture) expectSaid(line string, code int, says ...string) said {
	f.Helper()
	var last said
	f.Eventually(fmt.Sprintf("kubectl %s: %d", line, code), func() error {
		last = f.kubectl(strings.Fields(line)...)
		text := last.rows() + "\n" + last.stderr
		for _, want := range says {
			if want = strings.ReplaceAll(want, "$KEY", f.key); !strings.Contains(text, want) {
				return fmt.Errorf("it does not say %q, but (%d)\n%s%s", want, last.code, last.stdout, last.stderr)
			}
		}
		if last.code != code {
			return fmt.Errorf("exit code %d\n%s%s", last.code, last.stdout, last.stderr)
		}
		return nil
	})
	f.Logf("$ kubectl %s\n%s%s", line, last.stdout, last.stderr)
	return last
}

// cordon keeps new pods from a node.
func (f *fixture) cordon(node string, cordoned bool) {
	f.Helper()
	_, err := f.client.CoreV1().Nodes().Patch(f.ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, cordoned), metav1.PatchOptions{})
	f.Must(err)
}

// TestPlugin: kubectl grid, in the words of a user's day.
func TestPlugin(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	east, west := f.node("east"), f.node("west")
	in := " -n " + f.namespace
	f.expectSaid("grid status"+in, 0, "No grids found in "+f.namespace+" namespace.")
	f.apply(deploymentGrid("demo"))
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 80}]}}}`)
	f.expectSaid("grid status"+in, 0,
		"KIND GRID KEY SITE DESIRED READY UPDATED STATE\n",
		"DeploymentGrid demo $KEY east 2 2 2 Ready\n", "DeploymentGrid demo $KEY west 2 2 2 Ready\n",
		"ServiceGrid demo $KEY <all> - - - Ready: Service demo-svc for 2 sites\n")
	f.expectSaid("grid view demo-svc"+in, 0,
		"Service "+f.namespace+`/demo-svc of ServiceGrid demo, topologyKeys ["$KEY"]`,
		"east "+east+" unknown $KEY 2/2 10.", "west "+west+" unknown $KEY 2/2 10.",
		"The Service stays in its sites on 0 of 2 edge nodes; 2 cannot be seen from here: static")

	// A site that lacks a pod.
	f.cordon(west, true)
	lost := f.pods("demo-west-")[0].Name
	f.Must(f.client.CoreV1().Pods(f.namespace).Delete(f.ctx, lost, metav1.DeleteOptions{}))
	f.expectSaid("grid status dg/demo -o wide"+in, 3,
		"KIND GRID KEY SITE DESIRED READY UPDATED AVAILABLE NODES TEMPLATE CHILD OTHERS OWN STATE\n",
		"DeploymentGrid demo $KEY west 2 1 2 1 1 default demo-west - Progressing: 1 of 2 pods not ready; pod demo-west-", "Unschedulable: 0/")
	f.expectSaid("grid view sg/demo"+in, 0, "west "+west+" unknown $KEY 1/1 10.",
		"The Service stays in its sites on 0 of 2 edge nodes")
	for _, pod := range f.pods("demo-west-") {
		f.Must(f.client.CoreV1().Pods(f.namespace).Delete(f.ctx, pod.Name, metav1.DeleteOptions{}))
	}
	f.expectSaid("grid view demo"+in, 3, "west "+west+" none $KEY 0/0 <none> - - -\n",
		"1 site without a ready endpoint that it may use: west. The Service stays in its sites on 0 of 2 edge nodes; ")
	var view struct {
		Closed  bool
		Without []string
	}
	f.Must(json.Unmarshal([]byte(f.expectSaid("grid view demo -o json"+in, 3).stdout), &view))
	if view.Closed || len(view.Without) != 1 || view.Without[0] != "west" {
		f.Errorf("got %+v", view)
	}
	f.cordon(west, false)
	f.expectSaid("grid view demo"+in, 0, "The Service stays in its sites on 0 of 2 edge nodes")
	f.expectSaid("grid status"+in, 0)

	// A site that vanishes is told while its workload waits.
	f.Eventually("a site that vanishes is told", func() error {
		f.relabel(west, "")
		defer f.relabel(west, "west")
		var last said
		// On a busy machine it may be gone before it is looked at.
		for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(closely) {
			last = f.kubectl("grid", "status", "--problems", "-n", f.namespace)
			if last.code == 3 && strings.Contains(last.rows(),
				"west 2 2 2 Removing: no node is in this site any more; Deployment demo-west is removed ") {
				return nil
			}
		}
		return fmt.Errorf("got %d\n%s%s", last.code, last.stdout, last.stderr)
	})
	f.expectSaid("grid status"+in, 0)

	f.expectSaid("grid status --as=jane"+in, 1, `User "jane" cannot list resource "deploymentgrids"`)
	f.expectSaid("grid view absent"+in, 1, "no Service and no ServiceGrid absent exists in namespace "+f.namespace)
	f.expectSaid("grid status pods"+in, 2, `"pods" is not a kind of grid`)
	f.expectSaid("grid --version", 0, "kubectl-grid ")
	f.expectSaid("__complete grid st", 0, "status Show the state of the grids")
	f.expectSaid("__complete grid view"+in+" de", 0, "demo-svc")
	f.expectSaid("__complete grid status"+in+" dg/", 0, "dg/demo")
}

// lines is what a command has written so far, for one who reads while it writes.
type lines struct {
	mu   sync.Mutex
	text strings.Builder // guarded by mu
}

func (l *lines) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(data)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// follow runs kubectl until the test ends it, and returns what it writes.
func (f *fixture) follow(line string) (*exec.Cmd, *lines) {
	f.Helper()
	command, written := f.command(strings.Fields(line)...), &lines{}
	command.Stdout, command.Stderr = written, written
	f.Must(command.Start())
	return command, written
}

// TestPluginWatch: kubectl grid status -w prints every row once, and then the rows that change, whoever changes them:
// the controller, the scheduler, and the user who deletes the grid. Ctrl-C ends it, with exit code 0.
func TestPluginWatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	east, west := f.node("east"), f.node("west")
	f.apply(deploymentGrid("demo"))
	in := " -n " + f.namespace
	f.expectSaid("grid status"+in, 0, "DeploymentGrid demo $KEY west 2 2 2 Ready\n")

	command, written := f.follow("grid get --watch" + in)
	encoded, documents := f.follow("grid status -w -o json" + in)
	expect := f.expectRows(written)
	expect("KIND GRID KEY SITE DESIRED READY UPDATED STATE\nDeploymentGrid demo $KEY east 2 2 2 Ready\nDeploymentGrid demo $KEY west 2 2 2 Ready\n")
	// A pod that finds no node, and the reason, which is in no object that is followed.
	f.cordon(west, true)
	f.Must(f.client.CoreV1().Pods(f.namespace).Delete(f.ctx, f.pods("demo-west-")[0].Name, metav1.DeleteOptions{}))
	expect("DeploymentGrid demo $KEY west 2 1 2 Progressing: 1 of 2 pods not ready")
	expect("Unschedulable: 0/")
	f.cordon(west, false)
	expect("DeploymentGrid demo $KEY west 2 2 2 Ready\n")
	// A grid that is new, and a site that is.
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 80}]}}}`)
	expect("ServiceGrid demo $KEY <all> - - - Ready: Service demo-svc for 2 sites\n")
	f.relabel(east, "north")
	expect("DeploymentGrid demo $KEY north 2 2 2 Ready\n")
	f.Must(f.of("DeploymentGrid").Delete(f.ctx, "demo", metav1.DeleteOptions{}))
	expect("DeploymentGrid demo $KEY west - - - Gone: the grid is deleted\n")
	f.Eventually("the documents say so", func() error {
		if text := documents.String(); !strings.Contains(text, `"removed"`) {
			return fmt.Errorf("they are\n%s", text)
		}
		return nil
	})
	text := said{stdout: written.String()}.rows() + "\n"
	if strings.Count(text, "KIND GRID") != 1 || strings.Count(text, "Ready: Service demo-svc for 2 sites\n") != 1 {
		f.Errorf("a row was written that had not changed:\n%s", text)
	}
	for _, watching := range []*exec.Cmd{command, encoded} {
		f.Must(watching.Process.Signal(os.Interrupt))
		if err := watching.Wait(); err != nil {
			f.Errorf("interrupted, it ended with %v", err)
		}
	}
	f.Logf("$ kubectl grid get --watch\n%s", written)
	f.expectDocuments(documents.String())
}

// expectRows returns a function that waits until a row is written, after those that it has waited for before.
func (f *fixture) expectRows(written *lines) func(row string) {
	read := 0
	return func(row string) {
		f.Helper()
		row = strings.ReplaceAll(row, "$KEY", f.key)
		f.Eventually("a row: "+row, func() error {
			text := said{stdout: written.String()}.rows() + "\n"
			i := strings.Index(text[read:], row)
			if i < 0 {
				return fmt.Errorf("it is not in\n%s", text[read:])
			}
			read += i + len(row)
			return nil
		})
	}
}

// expectDocuments checks that every document says what it is, and that one grid was removed.
func (f *fixture) expectDocuments(documents string) {
	f.Helper()
	decoder, removed := json.NewDecoder(strings.NewReader(documents)), 0
	for {
		var document struct {
			APIVersion, Kind string
			Grids, Removed   []struct{ Kind, Name string }
		}
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			f.Fatalf("%v in\n%s", err, documents)
		}
		if document.APIVersion != "kubectl-grid.superedge.io/v1alpha1" || document.Kind != "GridStatusList" ||
			len(document.Grids)+len(document.Removed) == 0 {
			f.Errorf("got %+v", document)
		}
		removed += len(document.Removed)
	}
	if removed != 1 {
		f.Errorf("%d grids were removed:\n%s", removed, documents)
	}
}
