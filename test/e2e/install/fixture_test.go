package install

import (
	"context"
	"fmt"
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

// fixture is a cluster of the test's own.
type fixture struct {
	suite.Test
	ctx    context.Context
	client kubernetes.Interface
}

func start(t *testing.T, options cluster.Options, programs ...string) *fixture {
	t.Helper()
	c := suite.Start(t, options, programs...)
	return &fixture{Test: suite.NewTest(t, c, deadline, between), ctx: t.Context(), client: c.Client()}
}

// kubectl runs the real kubectl as an administrator and returns what it prints.
func (f *fixture) kubectl(args ...string) string {
	f.Helper()
	begin := time.Now()
	out, err := f.tryKubectl("", args...)
	f.Must(err)
	if took := time.Since(begin); took > 5*time.Second {
		f.Logf("kubectl %s took %s:\n%s", strings.Join(args, " "), took, out)
	}
	return out
}

// tryKubectl is kubectl with something on its standard input.
func (f *fixture) tryKubectl(input string, args ...string) (string, error) {
	command := f.Kubectl(f.ctx, args...)
	command.Stdin = strings.NewReader(input)
	return suite.Output(command)
}

// prints is a question to wait for: whether kubectl prints something that is this, of an object by a JSONPath.
func (f *fixture) prints(want, object, path string) func() error {
	return func() error {
		out, err := f.tryKubectl("", "get", object, "-o", "jsonpath="+path)
		if err == nil && out != want {
			err = fmt.Errorf("%s has %q, not %q", object, out, want)
		}
		return err
	}
}

// noWarnings waits until kube-apiserver has checked the expressions of these policies, and fails on its warnings.
func (f *fixture) noWarnings(policies ...string) {
	f.Helper()
	for _, policy := range policies {
		f.Eventually(policy+" is checked, without warnings", f.prints("1 ", "validatingadmissionpolicy/"+policy,
			"{.status.observedGeneration} {.status.typeChecking.expressionWarnings}"))
	}
}
