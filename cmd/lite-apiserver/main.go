// Command lite-apiserver is a node's own API server for its kubelet: it passes requests on to kube-apiserver, and
// answers them from what kube-apiserver said last while that is away, so that the node's pods start again after a loss
// of power.
package main

import (
	"context"
	"os"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/lite"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction, Version: &o.version,
		Ignored: func() []string { return nil },
		Run: func(ctx context.Context) error {
			config, err := o.config()
			if err != nil {
				return err
			}
			server, err := lite.New(config, klog.FromContext(ctx))
			if err != nil {
				return err
			}
			return server.Run(ctx)
		},
	}
}
