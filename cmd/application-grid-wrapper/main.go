// Command application-grid-wrapper runs between kube-proxy and the API server of an edge node, and shows
// kube-proxy the endpoints that the node's unit may see.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/proxy"
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction, Version: &o.version, Ignored: o.ignored,
		Commands: []*cobra.Command{newExplainCommand(), newProbeCommand()},
		Run: func(ctx context.Context) error {
			config, err := o.config()
			if err != nil {
				return err
			}
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(proxy.GCPercent)
			}
			p, err := proxy.New(config, klog.FromContext(ctx))
			if err != nil {
				return err
			}
			return p.Run(ctx)
		},
	}
}
