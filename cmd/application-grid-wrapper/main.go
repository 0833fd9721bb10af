// Command application-grid-wrapper runs between kube-proxy and the API server of an edge node, and shows
// kube-proxy the endpoints that the node's site may see.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/proxy"
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction, Without: o.withoutEffect,
		Commands:  []*cobra.Command{newExplainCommand(), newProbeCommand()},
		GCPercent: proxy.GCPercent,
		Run:       flags.Serve(o.config, proxy.New),
	}
}
