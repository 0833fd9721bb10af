package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	// deadline is how long something may take, on a busy machine.
	deadline = 2 * time.Minute
	// between is the pause between two looks.
	between = 20 * time.Millisecond
)

// fixture is a namespace of the shared cluster, with a site label of its own.
type fixture struct {
	suite.Test
	ctx            context.Context
	client         kubernetes.Interface
	namespace, key string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Test: suite.NewTest(t, shared, deadline, between), ctx: t.Context(), client: shared.Client(),
		namespace: suite.Namespace(t, shared, "page-")}
	f.key = "site." + f.namespace
	return f
}

// settle takes a namespace and a site label with names that a picture can show.
func (f *fixture) settle(namespace, key string) {
	f.Helper()
	f.namespace, f.key = namespace, key
	wanted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	_, err := f.client.CoreV1().Namespaces().Create(f.ctx, wanted, metav1.CreateOptions{})
	f.Must(err)
	f.Eventually("the default service account exists", func() error {
		_, err := f.client.CoreV1().ServiceAccounts(namespace).Get(f.ctx, "default", metav1.GetOptions{})
		return err
	})
}

// node adds an edge node of a site, on which pods run, and the wrapper as edge says.
func (f *fixture) node(name, site, edge string) {
	f.Helper()
	f.AddNode(cluster.NodeSpec{Name: name, Labels: map[string]string{f.key: site, v1.LabelEdgeNode: edge}})
}

// apply applies manifests, in which KEY stands for the site label.
func (f *fixture) apply(manifests string) {
	f.Helper()
	f.kubectl(f.ctx, strings.ReplaceAll(manifests, "KEY", f.key), "apply", "--namespace="+f.namespace)
}

// run applies manifests of programs, until the test ends.
func (f *fixture) run(manifests string) {
	f.Helper()
	f.kubectl(f.ctx, manifests, "apply")
	f.Cleanup(func() { f.kubectl(context.WithoutCancel(f.ctx), manifests, "delete", "--wait=false") })
}

func (f *fixture) kubectl(ctx context.Context, manifests string, args ...string) {
	f.Helper()
	command := f.Kubectl(ctx, append(args, "--filename=-")...)
	command.Stdin = strings.NewReader(manifests)
	_, err := suite.Output(command)
	f.Must(err)
}

// prints is what a command of kubectl grid prints.
func (f *fixture) prints(args ...string) string {
	f.Helper()
	stdout, stderr, code := suite.Run(f, f.Plugin(f.ctx, append(args, "--namespace="+f.namespace)...))
	if code != 0 && code != 3 && code != 4 {
		f.Fatalf("kubectl grid %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

var gap = regexp.MustCompile(` {3,}`)

// rows are the rows of a table that a command has printed, below the header that begins so, sorted.
func rows(text, header string) []string {
	var found []string
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, header):
			inside = true
		case line == "":
			inside = false
		case inside:
			found = append(found, strings.Join(gap.Split(line, -1), " | "))
		}
	}
	slices.Sort(found)
	return found
}

// dashboard is a running kubectl grid dashboard.
type dashboard struct {
	f       *fixture
	url     string
	command *exec.Cmd
	stderr  *bytes.Buffer
	ended   bool
}

// dashboard starts kubectl grid dashboard, which the test ends.
func (f *fixture) dashboard(args ...string) *dashboard {
	f.Helper()
	d := &dashboard{f: f, command: f.Plugin(f.ctx, append([]string{"dashboard"}, args...)...), stderr: &bytes.Buffer{}}
	d.command.Stderr = d.stderr
	stdout, err := d.command.StdoutPipe()
	f.Must(err)
	f.Must(d.command.Start())
	f.Cleanup(d.end)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		f.Fatalf("it prints no URL: %v: %s", err, d.stderr)
	}
	d.url = strings.TrimSpace(line)
	return d
}

// end interrupts the dashboard, as Ctrl-C does, and expects that this is no error.
func (d *dashboard) end() {
	if d.ended {
		return
	}
	d.ended = true
	_ = d.command.Process.Signal(os.Interrupt) // it has ended, if it could not be sent; Wait says how
	if err := d.command.Wait(); err != nil && d.f.ctx.Err() == nil {
		d.f.Errorf("interrupted, it ended with %v: %s", err, d.stderr)
	}
}

// origin is the URL without the token.
func (d *dashboard) origin() string {
	origin, _, _ := strings.Cut(d.url, "/#")
	return origin
}

// usage is the resident memory of the dashboard in MiB, and the CPU time that it has taken.
func (d *dashboard) usage() (resident int, cpu time.Duration) {
	d.f.Helper()
	memory, _, err := cluster.ResidentMemory(d.command.Process.Pid)
	d.f.Must(err)
	cpu, err = cluster.ProcessorTime(d.command.Process.Pid)
	d.f.Must(err)
	return int(memory) >> 20, cpu
}
