package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the commands as they are. Their flags are left to --help and the man pages.
func TestFlagsReference(t *testing.T) {
	root := newRoot(&command{stdout: io.Discard, stderr: io.Discard})
	var b strings.Builder
	for _, c := range root.Commands() {
		if c.Name() == "completion" || c.Name() == "help" {
			continue
		}
		if !c.HasSubCommands() {
			fmt.Fprintf(&b, "- `%s`: %s\n", docstest.Line(c.Use), c.Short)
		}
		for _, sub := range c.Commands() {
			fmt.Fprintf(&b, "- `%s %s`: %s\n", c.Name(), docstest.Line(sub.Use), sub.Short)
		}
	}
	docstest.CompareGenerated(t, docstest.ReferencePage, "commands of kubectl-grid", b.String())
}

// TestPersistentFlags: all commands take kubectl's flags for the connection, and no other ones.
func TestPersistentFlags(t *testing.T) {
	kubectls := pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	kubectls.String("kubeconfig", "", "")
	clientcmd.BindOverrideFlags(&clientcmd.ConfigOverrides{}, kubectls, clientcmd.RecommendedConfigOverrideFlags(""))
	newRoot(&command{stdout: io.Discard, stderr: io.Discard}).PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if kubectls.Lookup(f.Name) == nil {
			t.Errorf("--%s is not kubectl's", f.Name)
		}
	})
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) {
	docstest.CompareManual(t, "kubectl-grid", newRoot(&command{stdout: io.Discard, stderr: io.Discard}))
}
