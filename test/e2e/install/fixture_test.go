package install

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	// deadline is how long a change may take to get where it should, on a busy machine.
	deadline = 60 * time.Second
	// between is the pause between two looks.
	between = 50 * time.Millisecond
)

// variables name binaries that are not where `make build` writes them.
var variables = map[string]string{
	"components": "COMPONENTS_BIN", "application-grid-wrapper": "WRAPPER_BIN",
	"application-grid-controller": "CONTROLLER_BIN", "statefulset-grid-daemon": "DNS_DAEMON_BIN",
	"helm":         "HELM_BIN",
	"kubectl-grid": "KUBECTL_GRID_BIN",
}

func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := suite.Program(variables[name], name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// fixture is a cluster of the test's own.
type fixture struct {
	*testing.T
	ctx     context.Context
	cluster *cluster.Cluster
	client  kubernetes.Interface
}

func start(t *testing.T, options cluster.Options) *fixture {
	t.Helper()
	options.Components = binary(t, "components")
	options.Progress = os.Stdout
	c := suite.Start(t, options)
	return &fixture{T: t, ctx: t.Context(), cluster: c, client: c.Client()}
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// eventually asks until there is no error.
func (f *fixture) eventually(what string, ask func() error) {
	f.Helper()
	begin := time.Now()
	for {
		err := ask()
		if err == nil {
			f.Logf("%-60s %dms", what, time.Since(begin).Milliseconds())
			return
		}
		if time.Since(begin) > deadline {
			f.Fatalf("not within %s: %s: %v", deadline, what, err)
		}
		time.Sleep(between)
	}
}

// kubectl runs the real kubectl as an administrator and returns what it prints.
func (f *fixture) kubectl(args ...string) string {
	f.Helper()
	begin := time.Now()
	out, err := f.tryKubectl("", args...)
	f.must(err)
	if took := time.Since(begin); took > 5*time.Second {
		f.Logf("kubectl %s took %s:\n%s", strings.Join(args, " "), took, out)
	}
	return out
}

// tryKubectl is kubectl with something on its standard input.
func (f *fixture) tryKubectl(input string, args ...string) (string, error) {
	cmd := exec.CommandContext(f.ctx, binary(f.T, "components"),
		append([]string{"kubectl", "--kubeconfig=" + f.cluster.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+f.cluster.Dir())
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out), nil
}
