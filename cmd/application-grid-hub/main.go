// Command application-grid-hub is an aggregated API server that gives every node its share of the cluster's Services
// and endpoints.
package main

import (
	"context"
	"os"

	"github.com/application-grid/application-grid/pkg/hub"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction,
		Run: func(ctx context.Context) error {
			config, err := o.config()
			if err != nil {
				return err
			}
			server, err := hub.NewOnceAnswered(ctx, config)
			if err != nil || server == nil {
				return err
			}
			return server.Run(ctx)
		},
	}
}
