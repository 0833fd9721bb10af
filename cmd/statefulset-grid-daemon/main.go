// Command statefulset-grid-daemon keeps, on every node, the hosts file from which the node's CoreDNS answers the
// names of StatefulSetGrids with the pods of the node's own site.
package main

import (
	"os"

	"github.com/application-grid/application-grid/pkg/dnshosts"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

func main() {
	os.Exit(newOptions().program().Main(os.Args[1:], os.Stdout, os.Stderr))
}

// program is the command line, and what it starts.
func (o *options) program() flags.Program {
	return flags.Program{
		Flags: o.flags, Short: short, Introduction: introduction,
		GCPercent: dnshosts.GCPercent,
		Run:       flags.Serve(o.config, dnshosts.New),
	}
}
