// Command statefulset-grid-daemon keeps, on every node, the hosts file from which the node's CoreDNS answers the
// names of StatefulSetGrids with the pods of the node's own unit.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/dnshosts"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction, Version: &o.version, Ignored: o.ignored,
		Run: func(ctx context.Context) error {
			config, err := o.config()
			if err != nil {
				return err
			}
			daemon, err := dnshosts.New(config, klog.FromContext(ctx))
			if err != nil {
				return err
			}
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(dnshosts.GCPercent)
			}
			return daemon.Run(ctx)
		},
	}
}
