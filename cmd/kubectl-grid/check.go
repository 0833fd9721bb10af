package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
	"github.com/application-grid/application-grid/pkg/program/version"
)

// checkOptions are the flags of `kubectl grid check`.
type checkOptions struct {
	*command

	pre    bool
	images setup.Images
}

func newCheckCommand(c *command) *cobra.Command {
	o := &checkOptions{command: c}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a cluster before an installation, or an installation",
		Long: "Looks at every edge node's wrapper and kube-proxy, at versions, credentials, CRDs and grids, and\n" +
			"prints what it finds, with what to do. With --pre it looks at a cluster before application-grid is\n" +
			"installed, and prints how to install it there: a kustomization, or with -o values the values of the\n" +
			"chart. It changes nothing.\n" + exitCodes + " Warnings change no exit code.",
		Example: "  kubectl grid check --pre\n" +
			"  kubectl grid check --pre --registry registry.example.org --tag v1 -o kustomization > " +
			"edge/kustomization.yaml\n" +
			"  kubectl grid check -o json",
		Args: o.parse,
		RunE: c.asking(o.run),
	}
	f := cmd.Flags()
	f.BoolVar(&o.pre, "pre", false, "Look at a cluster before application-grid is installed on it")
	f.StringVar(&o.images.Registry, "registry", "registry.example.org",
		"With --pre: the registry that the images are to come from")
	f.StringVar(&o.images.Tag, "tag", imageTag(), "With --pre: the tag of the images")
	c.bindOutput(cmd, output.Table, output.Wide, output.JSON, output.YAML, formatKustomization, formatValues)
	return cmd
}

// imageTag is the tag of the images that belong to this program, if it was released.
func imageTag() string {
	if tag := strings.Fields(version.String())[0]; strings.HasPrefix(tag, "v") && !strings.ContainsAny(tag, "-+") {
		return tag
	}
	return "v1"
}

func (o *checkOptions) parse(cmd *cobra.Command, args []string) error {
	if (o.output == formatKustomization || o.output == formatValues) && !o.pre {
		return fmt.Errorf("-o %s goes with --pre", o.output)
	}
	return cobra.NoArgs(cmd, args)
}

func (o *checkOptions) run(ctx context.Context) error {
	// Whoever cannot ask at all gets an error, not a list of things that could not be read.
	source, err := o.Source(ctx)
	if err != nil {
		return fmt.Errorf("asking the API server for its version: %w", err)
	}
	var report *check.Report
	if o.pre {
		report = check.Before(ctx, source, o.images)
	} else {
		report = check.After(ctx, source)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("interrupted: %w", err)
	}
	install := report.Install
	switch o.output {
	case output.JSON, output.YAML:
		if err := output.Encode(o.stdout, report, o.output); err != nil {
			return err
		}
	case formatKustomization, formatValues: // the file is for a pipe
		report.Print(o.stderr, o.output)
		if install != nil {
			files := map[output.Format]string{formatKustomization: install.Kustomization, formatValues: install.Values}
			fmt.Fprint(o.stdout, files[o.output])
		}
	default:
		report.Print(o.stdout, o.output)
		report.PrintInstall(o.stdout)
	}
	return ending(report.Failed(), !report.Incomplete())
}
