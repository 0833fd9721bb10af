package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Kubectl is a command of the real kubectl, as an administrator of the cluster.
func (t *Test) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	return t.administrator(ctx, "components", append([]string{"kubectl"}, args...)...)
}

// Plugin is a command of kubectl grid, as an administrator of the cluster.
func (t *Test) Plugin(ctx context.Context, args ...string) *exec.Cmd {
	t.Helper()
	return t.administrator(ctx, "kubectl-grid", args...)
}

func (t *Test) administrator(ctx context.Context, program string, args ...string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(ctx, Binary(t.T, program), args...) //nolint:gosec // who runs the tests names it
	command.Env = append(os.Environ(), "HOME="+t.Cluster.Dir(), "KUBECONFIG="+t.Cluster.Kubeconfig())
	return command
}

// Run runs a command and returns what it prints and its exit code. It ends a test whose command cannot be run.
func Run(tb testing.TB, command *exec.Cmd) (stdout, stderr string, code int) {
	tb.Helper()
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatalf("%s: %v", strings.Join(command.Args, " "), err)
	}
	return out.String(), problems.String(), command.ProcessState.ExitCode()
}

// Output runs a command and returns what it prints, or an error if it fails.
func Output(command *exec.Cmd) (string, error) {
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(command.Args, " "), err, out, problems.String())
	}
	return string(out), nil
}
