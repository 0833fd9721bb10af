// Command application-grid-controller makes one workload per site of every grid, and one site-local Service.
package main

import (
	"context"
	"os"

	"github.com/application-grid/application-grid/pkg/gridcontroller"
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
			go o.connection.Run(ctx)
			return gridcontroller.Run(ctx, config)
		},
	}
}
