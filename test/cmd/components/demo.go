//go:build demo

package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd/apply"
	"k8s.io/kubectl/pkg/cmd/delete"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/patch"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/wait"
)

// runKubectl is kubectl with the commands that the demonstration shows and invites to.
func runKubectl() int {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	config := genericclioptions.NewConfigFlags(true)
	factory := kubectlutil.NewFactory(kubectlutil.NewMatchVersionFlags(config))
	command := &cobra.Command{Use: "kubectl", Short: "The part of kubectl that the demonstration needs"}
	config.AddFlags(command.PersistentFlags())
	command.AddCommand(
		apply.NewCmdApply("kubectl", factory, streams), delete.NewCmdDelete(factory, streams),
		get.NewCmdGet("kubectl", factory, streams), label.NewCmdLabel(factory, streams),
		patch.NewCmdPatch(factory, streams), wait.NewCmdWait(config, streams),
	)
	if err := cli.RunNoErrOutput(command); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}
