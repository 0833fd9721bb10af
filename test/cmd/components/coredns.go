package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind" // the plugins that a cluster's DNS needs, and no more
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

// runCoreDNS is CoreDNS' main function in short. Its own, in package coremain, puts flags (-p, -version) into
// flag.CommandLine, where kube-proxy and the kubelet would take them for theirs.
func runCoreDNS() int {
	flags := flag.NewFlagSet("coredns", flag.ExitOnError) // with one dash or two: kubeadm's pods have -conf
	conf := flags.String("conf", "Corefile", "Corefile to load")
	_ = flags.Parse(os.Args[1:]) // it exits on errors
	if err := serveDNS(*conf); err != nil {
		fmt.Fprintf(os.Stderr, "coredns: %v\n", err)
		return 1
	}
	return 0
}

func serveDNS(conf string) error {
	caddy.Quiet = true
	if err := dnsserver.Register(); err != nil {
		return fmt.Errorf("registering the server: %w", err)
	}
	caddy.AppName = "CoreDNS"
	caddy.RegisterCaddyfileLoader("flag", caddy.LoaderFunc(func(serverType string) (caddy.Input, error) {
		contents, err := os.ReadFile(conf) //nolint:gosec // what the caller names
		if err != nil {
			return nil, err
		}
		return caddy.CaddyfileInput{Contents: contents, Filepath: conf, ServerTypeName: serverType}, nil
	}))
	caddy.TrapSignals()
	input, err := caddy.LoadCaddyfile("dns")
	if err != nil {
		return err
	}
	instance, err := caddy.Start(input)
	if err != nil {
		return err
	}
	instance.Wait()
	return nil
}
