package main

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/application-grid/application-grid/docs/docstest"
)

// generic are the sections with the flags of k8s.io/apiserver, which docs/reference.md leaves to --help.
var generic = []string{"Secure serving", "Authentication", "Authorization", "Audit"}

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) {
	docstest.CompareFlags(t, program, newOptions().flags, generic...)
}

// TestGenericFlags: the sections that the page leaves to --help have no flag of the hub's own.
func TestGenericFlags(t *testing.T) {
	theirs := pflag.NewFlagSet("k8s.io/apiserver", pflag.ContinueOnError)
	genericoptions.NewSecureServingOptions().AddFlags(theirs)
	genericoptions.NewDelegatingAuthenticationOptions().AddFlags(theirs)
	genericoptions.NewDelegatingAuthorizationOptions().AddFlags(theirs)
	genericoptions.NewAuditOptions().AddFlags(theirs)
	newOptions().flags.VisitSections(func(title string, f *pflag.FlagSet) {
		if !slices.Contains(generic, title) {
			return
		}
		f.VisitAll(func(f *pflag.Flag) {
			if theirs.Lookup(f.Name) == nil {
				t.Errorf("--%s is in the section %s, and not of k8s.io/apiserver", f.Name, title)
			}
		})
	})
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) { docstest.CompareManual(t, program, newOptions().program().Command()) }
