package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/proxy/explain"
)

// explainOptions are the flags of the command explain, and its argument.
type explainOptions struct {
	client  explain.Client
	service types.NamespacedName
	output  string
}

const explainIntroduction = `application-grid-wrapper explain asks the running wrapper of this node which endpoints of a
Service this node sees, which it does not, and why.

Exit codes: 0 the wrapper answered; 1 it did not, because it does not run or does not know the Service; 2 the command
line is wrong.`

func newExplainCommand() *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:               "explain NAMESPACE/SERVICE",
		Short:             "Says which endpoints of a Service this node sees, and why",
		Long:              explainIntroduction,
		Args:              flags.UsageArgs(o.parse),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := o.client.Ask(cmd.Context(), o.service)
			if err != nil {
				return err
			}
			if o.output == "json" {
				_, err := cmd.OutOrStdout().Write(answer.Body)
				return err
			}
			return explain.Print(cmd.OutOrStdout(), &answer.Explanation)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.client.Server, "server", "http://localhost:51006", "URL of the wrapper.")
	f.StringVar(&o.client.AsNode, "as-node", "", "Name of the node whose view is explained. Empty: the wrapper's own.")
	f.StringVarP(&o.output, "output", "o", "table", "table or json.")
	f.StringVar(&o.client.CAFile, "ca-file", "",
		"PEM file of the certificates that sign the wrapper's, if it serves TLS.")
	f.StringVar(&o.client.CertFile, "cert-file", "", "PEM file of a client certificate, if the wrapper wants one.")
	f.StringVar(&o.client.KeyFile, "key-file", "", "PEM file of its key.")
	f.DurationVar(&o.client.Timeout, "timeout", 10*time.Second, "How long an answer may take.")
	flags.AddHelp(f)
	flags.CompleteWith(cmd, "output", "table", "json")
	flags.CompleteWith(cmd, "server")
	flags.CompleteWith(cmd, "as-node")
	flags.CompleteWith(cmd, "timeout")
	return cmd
}

// parse reads the arguments, and checks them and the flags.
func (o *explainOptions) parse(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return errors.New("one argument is needed: NAMESPACE/SERVICE")
	}
	var err error
	if o.service, err = explain.ParseService(args[0]); err != nil {
		return err
	}
	if o.output != "table" && o.output != "json" {
		return fmt.Errorf("--output %q is neither table nor json", o.output)
	}
	return o.client.Validate()
}
