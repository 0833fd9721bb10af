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

const (
	// gcPercent is the GOGC. What passes through becomes garbage at once, and a node has little memory to spare for it.
	// With 50 every hundredth request would wait for the garbage collection.
	gcPercent = 75
	// processors is the GOMAXPROCS. A request passes through several goroutines; on several processors each wakes
	// another thread, which takes a third more processor time, and longer.
	processors = 1
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction,
		Commands:  []*cobra.Command{newExplainCommand()},
		GCPercent: gcPercent, Processors: processors,
		Run: flags.Serve(o.config, lite.New),
	}
}
