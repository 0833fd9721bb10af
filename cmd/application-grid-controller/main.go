// Command application-grid-controller makes one workload per unit of every grid, and one closed-loop Service.
package main

import (
	"context"
	"os"

	"github.com/application-grid/application-grid/pkg/flags"
	"github.com/application-grid/application-grid/pkg/gridcontroller"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	o := newOptions()
	return flags.Program{
		Flags: o.flags, Usage: o.usage, Version: &o.version, Ignored: o.ignored,
		Run: func(ctx context.Context) error {
			config, err := o.config()
			if err != nil {
				return err
			}
			go o.connection.Run(ctx)
			return gridcontroller.Run(ctx, config)
		},
	}.Main(args)
}
