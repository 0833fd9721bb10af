package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
	"github.com/application-grid/application-grid/pkg/version"
)

// checkOptions are the flags of `kubectl grid check`.
type checkOptions struct {
	pre    bool
	images setup.Images
	output format
}

func newCheckCommand(c *command) *cobra.Command {
	o := &checkOptions{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Whether the cluster can take application-grid, and whether an installation holds",
		Long: "Looks at every edge node's wrapper and kube-proxy, at versions, credentials, CRDs and grids, and prints what it\n" +
			"finds, with what to do. With --pre it looks at a cluster before application-grid is installed, and prints how to\n" +
			"install it there: a kustomization, or with -o values the values of the chart. It changes nothing.\n\n" +
			"Exit codes: 0 there is no failure; 1 there is none, but something could not be read; 2 the command line is\n" +
			"wrong; 3 there is a failure. Warnings, and what no API server can tell, do not count.",
		Example: "  kubectl grid check --pre\n" +
			"  kubectl grid check --pre --registry registry.example.org --tag v1 -o kustomization > edge/kustomization.yaml\n" +
			"  kubectl grid check -o json",
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              usageArgs(cobra.NoArgs),
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), c) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.pre, "pre", false, "Look at a cluster before application-grid is installed on it")
	f.StringVar(&o.images.Registry, "registry", "registry.example.org", "With --pre: the registry that the images are to come from")
	f.StringVar(&o.images.Tag, "tag", imageTag(), "With --pre: the tag of the images")
	for _, name := range []string{"registry", "tag"} {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions); err != nil {
			panic(err) // the flag is bound above
		}
	}
	bindOutput(cmd, &o.output, formatTable, formatWide, formatJSON, formatYAML, formatKustomization, formatValues)
	return cmd
}

// imageTag is the tag of the images that belong to this program, if it was released.
func imageTag() string {
	if tag := strings.Fields(version.String())[0]; strings.HasPrefix(tag, "v") && !strings.ContainsAny(tag, "-+") {
		return tag
	}
	return "v1"
}

func (o *checkOptions) run(ctx context.Context, c *command) error {
	file := o.output == formatKustomization || o.output == formatValues
	if file && !o.pre {
		return usageError{fmt.Errorf("-o %s goes with --pre", o.output)}
	}
	cluster, _, err := c.connect()
	if err != nil {
		return err
	}
	source := check.Source{API: cluster.api, Server: cluster.server, Now: time.Now()}
	// Whoever cannot ask at all gets an error, not a list of things that could not be read.
	if _, err := cluster.server(ctx); err != nil {
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
	findings := c.stdout
	if file {
		findings = c.stderr // the file is for a pipe
	}
	if err := printReport(findings, report, o.output); err != nil {
		return err
	}
	if file && report.Install != nil {
		text := report.Install.Kustomization
		if o.output == formatValues {
			text = report.Install.Values
		}
		fmt.Fprint(c.stdout, text)
	}
	switch {
	case report.Failed():
		return errProblems
	case report.Incomplete():
		return errUnanswered
	}
	return nil
}

// server asks the API server for its version, and looks at the certificate that it shows.
func (c cluster) server(ctx context.Context) (check.Server, error) {
	config := rest.CopyConfig(c.config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return check.Server{}, err
	}
	var answer check.Server
	seen := &http.Client{Timeout: client.Timeout, Transport: certificateWatcher{client.Transport, &answer}}
	api, err := rest.UnversionedRESTClientForConfigAndClient(config, seen)
	if err != nil {
		return check.Server{}, err
	}
	var info struct {
		GitVersion string `json:"gitVersion"`
	}
	data, err := api.Get().AbsPath("/version").DoRaw(ctx)
	if err != nil {
		return check.Server{}, err
	}
	if err := json.Unmarshal(data, &info); err != nil || info.GitVersion == "" {
		return check.Server{}, errors.Join(errors.New("/version has no gitVersion"), err)
	}
	answer.Version = info.GitVersion
	return answer, nil
}

// certificateWatcher notes when the certificate ends that a server shows.
type certificateWatcher struct {
	http.RoundTripper

	to *check.Server
}

// RoundTrip implements http.RoundTripper.
func (w certificateWatcher) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.RoundTripper.RoundTrip(request)
	if err == nil && response.TLS != nil && len(response.TLS.PeerCertificates) > 0 {
		w.to.CertificateEnd = response.TLS.PeerCertificates[0].NotAfter
	}
	return response, err
}

// namedFindings is how many findings of one check and severity a table has; the others are counted.
const namedFindings = 10

// printReport prints the answer of check. A table is for reading: of many findings that are alike it has the first.
func printReport(out io.Writer, report *check.Report, output format) error {
	if done, err := printEncoded(out, report, output); done {
		return err
	}
	type alike struct {
		severity check.Severity
		check    string
	}
	seen, left := map[alike]int{}, 0
	for _, f := range report.Findings {
		if f.Severity == check.OK {
			fmt.Fprintf(out, "%-9s%s: %s\n", "ok", f.Object, f.Message)
			continue
		}
		if seen[alike{f.Severity, f.Check}]++; seen[alike{f.Severity, f.Check}] > namedFindings && output != formatWide {
			left++
			continue
		}
		fmt.Fprintf(out, "%-9s%s: %s\n", strings.ToUpper(string(f.Severity)), f.Object, oneLine(f.Message))
		fmt.Fprintf(out, "         → %s\n", oneLine(f.Action))
	}
	if left > 0 {
		fmt.Fprintf(out, "\n%s like the ones above: -o wide has all.\n", count(left, "more finding"))
	}
	fmt.Fprintf(out, "\n%s, %s, %d unknown, %d ok\n", count(report.Summary[check.Failure], "failure"), count(report.Summary[check.Warning], "warning"),
		report.Summary[check.Unknown], report.Summary[check.OK])
	install := report.Install
	if install == nil || output == formatKustomization || output == formatValues {
		return nil
	}
	fmt.Fprintf(out, "\nInstall it here with this (docs/install.md; -o values prints values of the chart):\n\n%s", install.Kustomization)
	if install.Kubeconfig != "" {
		fmt.Fprintf(out, "\n# edge/kubeconfig.conf\n%s", install.Kubeconfig)
	}
	fmt.Fprintln(out)
	for _, note := range install.Notes {
		fmt.Fprintln(out, "- "+note)
	}
	return nil
}

// oneLine is a text without line breaks: what an API server says may have some.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
