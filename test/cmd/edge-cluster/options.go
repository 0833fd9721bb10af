package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/test/cluster"
)

// siteLabel is the label whose value is a node's site.
const siteLabel = "zone1"

// options are the paths of programs, and whether missing ones of the system are installed.
type options struct {
	components, wrapper, controller, dnsDaemon, hub string
	install                                         bool
}

// programs are the programs' paths, by their names.
func (o *options) programs() map[string]*string {
	return map[string]*string{
		"components": &o.components, "application-grid-wrapper": &o.wrapper, "application-grid-controller": &o.controller,
		"statefulset-grid-daemon": &o.dnsDaemon, "application-grid-hub": &o.hub,
	}
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	for name, path := range o.programs() {
		flags.StringVar(path, name, beside(name), "path of the program "+name)
	}
	flags.BoolVar(&o.install, "install", false, "install missing Debian packages with apt-get; needs root")
}

// beside is the path of a binary in this program's directory.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return filepath.Join("bin", name)
	}
	return filepath.Join(filepath.Dir(self), name)
}

// clusterOptions are those of the cluster: node0 in the first site, node1 and node2 in the second.
func (o *options) clusterOptions() (cluster.Options, error) {
	for name, path := range o.programs() {
		if _, err := os.Stat(*path); err != nil {
			return cluster.Options{}, fmt.Errorf("there is no %s at %s: build it (make build cluster), or name it with --%[1]s",
				name, *path)
		}
	}
	settings := cluster.Options{Components: o.components, Wrapper: o.wrapper, Hub: o.hub, HubLater: true,
		Progress: indented{os.Stdout}}
	for i, site := range []string{"east", "west", "west"} {
		settings.Nodes = append(settings.Nodes,
			cluster.NodeSpec{Name: fmt.Sprintf("node%d", i), Labels: map[string]string{siteLabel: site}})
	}
	return settings, nil
}

// indented writes every line of progress with two spaces before it.
type indented struct{ out *os.File }

func (w indented) Write(line []byte) (int, error) {
	if _, err := w.out.WriteString("  " + string(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
