// Command application-grid-wrapper stands between kube-proxy and the API server of an edge node, and shows it
// the endpoints that the node's unit may see.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/flags"
	"github.com/application-grid/application-grid/pkg/proxy"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) > 0 && args[0] == "explain" {
		return runExplain(args[1:], os.Stdout, os.Stderr)
	}
	if len(args) > 0 && args[0] == "probe" {
		return runProbe(args[1:], os.Stdout, os.Stderr)
	}
	o := newOptions()
	return flags.Program{
		Flags: o.flags, Usage: func() string { return o.flags.Usage(introduction) }, Version: &o.version, Ignored: o.ignored,
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
	}.Main(args)
}
