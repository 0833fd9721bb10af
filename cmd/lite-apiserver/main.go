// Command lite-apiserver is a node's own API server for its kubelet: it passes requests on to kube-apiserver, and
// answers them from what kube-apiserver said last while that is away, so that the node's pods start again after a loss
// of power.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/application-grid/application-grid/pkg/lite"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// gcPercent is the GOGC. What passes through becomes garbage at once, and a node has no memory to spare for it.
const gcPercent = 50

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction,
		Commands:  []*cobra.Command{newExplainCommand()},
		GCPercent: gcPercent,
		Run:       flags.Serve(o.config, lite.New),
	}
}
