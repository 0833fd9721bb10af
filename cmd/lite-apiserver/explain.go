package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/pkg/lite"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

const explainIntroduction = `lite-apiserver explain asks the lite-apiserver of this node, for each pod of the
node, whether it would start now without kube-apiserver, and if not, what is missing. It needs the node's certificate,
so run it as root.

Exit codes: 0 lite-apiserver answered; 1 it did not, because it does not run or its kubeconfig cannot be read; 2 the
command line is wrong.`

type explainOptions struct {
	kubeconfig, output string
	timeout            time.Duration
}

func newExplainCommand() *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Says which of the node's pods would start now without kube-apiserver",
		Long:  explainIntroduction,
		Args: flags.UsageArgs(func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 0:
				return fmt.Errorf("unexpected argument %q: only flags are taken", args[0])
			case o.output != "table" && o.output != "json":
				return fmt.Errorf("--output %q is neither table nor json", o.output)
			}
			return nil
		}),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			explanation, err := o.ask(cmd.Context())
			if err != nil {
				return err
			}
			if o.output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(explanation)
			}
			return printExplanation(cmd.OutOrStdout(), &explanation)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.kubeconfig, "kubeconfig", defaultDir+"/"+lite.KubeletFile,
		"The kubeconfig that lite-apiserver has written for the kubelet, in its --file-cache-path.")
	f.StringVarP(&o.output, "output", "o", "table", "table or json.")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "How long the answer may take.")
	flags.AddHelp(f)
	flags.CompleteWith(cmd, "output", "table", "json")
	flags.CompleteWith(cmd, "timeout")
	return cmd
}

func (o *explainOptions) ask(ctx context.Context) (answer lite.Explanation, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return answer, fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)
	}
	config.Timeout = o.timeout
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return answer, fmt.Errorf("--kubeconfig %s: %w", o.kubeconfig, err)
	}
	body, err := client.Get().AbsPath(lite.ExplainPath).MaxRetries(0).DoRaw(ctx)
	if err != nil {
		return answer, fmt.Errorf("no answer from lite-apiserver at %s; does it run, and is --kubeconfig its own? %w",
			config.Host, cmp.Or(lite.CheckCertificate(o.kubeconfig, time.Now(), nil), err))
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Node == "" {
		return answer, errors.New(config.Host + " did not answer like lite-apiserver")
	}
	return answer, nil
}

func printExplanation(out io.Writer, e *lite.Explanation) error {
	fmt.Fprintf(out, "Node %s: %s\n", e.Node, e.Summary())
	if e.NotOnDisk != "" {
		fmt.Fprintln(out, e.NotOnDisk)
	}
	if len(e.Pods) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tPOD\tSTARTS\tWHY NOT")
	for _, p := range e.Pods {
		starts := "yes"
		if len(p.Missing) > 0 || len(e.Nothing()) > 0 {
			starts = "no"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Namespace, p.Name, starts, strings.Join(p.Missing, "; "))
	}
	return w.Flush()
}
