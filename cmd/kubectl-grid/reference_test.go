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

// TestFlagsReference: docs/reference.md has the commands and flags as they are.
func TestFlagsReference(t *testing.T) {
	root := newRoot(io.Discard, io.Discard)
	var b strings.Builder
	for _, c := range root.Commands() {
		if c.Name() == "completion" || c.Name() == "help" {
			continue
		}
		fmt.Fprintf(&b, "**`kubectl grid %s`**: %s\n\n%s\n", docstest.Line(c.Use), c.Short,
			docstest.FlagList(c.LocalNonPersistentFlags()))
		for _, sub := range c.Commands() {
			fmt.Fprintf(&b, "**`kubectl grid %s %s`**: %s\n\n%s\n", c.Name(), docstest.Line(sub.Use), sub.Short,
				docstest.FlagList(sub.LocalNonPersistentFlags()))
		}
	}
	b.WriteString("All commands take kubectl's flags for the connection, as `kubectl options` lists them.\n")
	docstest.CompareGenerated(t, docstest.ReferencePage, "flags of kubectl-grid", b.String())
}

// TestPersistentFlags: all commands take kubectl's flags for the connection, which docs/reference.md does not list, and
// no other ones.
func TestPersistentFlags(t *testing.T) {
	kubectls := pflag.NewFlagSet("kubectl", pflag.ContinueOnError)
	kubectls.String("kubeconfig", "", "")
	clientcmd.BindOverrideFlags(&clientcmd.ConfigOverrides{}, kubectls, clientcmd.RecommendedConfigOverrideFlags(""))
	newRoot(io.Discard, io.Discard).PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if kubectls.Lookup(f.Name) == nil {
			t.Errorf("--%s is not kubectl's: docs/reference.md has to list it", f.Name)
		}
	})
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) {
	docstest.CompareManual(t, "kubectl-grid", newRoot(io.Discard, io.Discard))
}
