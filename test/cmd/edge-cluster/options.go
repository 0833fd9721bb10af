package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/test/cluster"
)

// options are the flags that up and demo have in common.
type options struct {
	components  string
	wrapper     string
	controller  string
	dnsDaemon   string
	hub         string
	noWrapper   bool
	wrapperArgs []string
	proxyMode   string
	watchList   bool
	unitLabel   string
	dir         string
	audit       bool
	install     bool
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.components, "components", beside("components"), "path of the components binary")
	flags.StringVar(&o.wrapper, "wrapper", beside("application-grid-wrapper"),
		"path of the application-grid-wrapper binary")
	flags.BoolVar(&o.noWrapper, "no-wrapper", false,
		"let every kube-proxy talk to kube-apiserver directly, for comparison")
	flags.StringArrayVar(&o.wrapperArgs, "wrapper-arg", nil,
		"one more argument for every wrapper; may be given several times")
	flags.StringVar(&o.proxyMode, "proxy-mode", string(cluster.NFTables), "kube-proxy's mode: nftables or iptables")
	flags.BoolVar(&o.watchList, "watch-list", true,
		"kube-proxy uses streaming watch-lists; false: the classic list and watch")
	flags.StringVar(&o.unitLabel, "unit-label", "zone1", "label key whose value is a node's unit")
	flags.StringVar(&o.dir, "dir", "", "directory for data, credentials and logs, which stays (default: a temporary one)")
	flags.BoolVar(&o.audit, "audit", false, "write kube-apiserver's audit log to audit.log in the directory")
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

// clusterOptions turns the flags into what the cluster package takes.
func (o *options) clusterOptions(nodes []cluster.NodeSpec) (cluster.Options, error) {
	if _, err := os.Stat(o.components); err != nil {
		return cluster.Options{}, fmt.Errorf("there is no components binary at %s: build it (make build) or name it with --components", o.components)
	}
	if o.noWrapper {
		o.wrapper = ""
	} else if _, err := os.Stat(o.wrapper); err != nil {
		return cluster.Options{}, fmt.Errorf(
			"there is no application-grid-wrapper at %s: build it (make build), name it with --wrapper, or go without with --no-wrapper", o.wrapper)
	}
	if err := o.checkProxyMode(); err != nil {
		return cluster.Options{}, err
	}
	protocol := cluster.WatchList
	if !o.watchList {
		protocol = cluster.ListThenWatch
	}
	return cluster.Options{
		Components:  o.components,
		Wrapper:     o.wrapper,
		WrapperArgs: o.wrapperArgs,
		Nodes:       nodes,
		ProxyMode:   cluster.ProxyMode(o.proxyMode),
		Protocol:    protocol,
		Dir:         o.dir,
		AuditLog:    o.audit,
		Progress:    indented{os.Stdout},
	}, nil
}

func (o *options) checkProxyMode() error {
	switch cluster.ProxyMode(o.proxyMode) {
	case cluster.NFTables, cluster.IPTables:
		return nil
	}
	return fmt.Errorf("--proxy-mode=%s: it is nftables or iptables", o.proxyMode)
}

// parseNodes reads node=unit pairs, separated by commas.
func parseNodes(value, unitLabel string) ([]cluster.NodeSpec, error) {
	var nodes []cluster.NodeSpec
	for pair := range strings.SplitSeq(value, ",") {
		name, unit, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || name == "" || unit == "" {
			return nil, fmt.Errorf("--nodes: %q is not of the form node=unit", pair)
		}
		nodes = append(nodes, cluster.NodeSpec{Name: name, Labels: map[string]string{unitLabel: unit}})
	}
	if len(nodes) == 0 {
		return nil, errors.New("--nodes: there must be at least one node=unit")
	}
	return nodes, nil
}

// indented writes every line of progress with two spaces before it.
type indented struct{ out *os.File }

func (w indented) Write(line []byte) (int, error) {
	if _, err := w.out.WriteString("  " + string(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
