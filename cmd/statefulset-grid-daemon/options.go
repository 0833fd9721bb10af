package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/application-grid/application-grid/pkg/dnshosts"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/program/nodename"
)

const program = "statefulset-grid-daemon"

// wrapper is where the node's wrapper listens by default. It needs no credentials.
const wrapper = "http://127.0.0.1:51006"

// What --help and the man page begin with.
const (
	short        = "Keeps the hosts file from which a node's CoreDNS answers the names of StatefulSetGrids"
	introduction = "statefulset-grid-daemon runs on every node and keeps the hosts file from which the node's " +
		"CoreDNS answers\n" +
		"{grid}-{ordinal}.{service}.{namespace}.svc.cluster.local with that pod of the node's own site, for every\n" +
		"StatefulSetGrid. docs/coredns.md says how CoreDNS reads the file."
)

// options are the flags. Names and defaults are those of SuperEdge's daemon.
type options struct {
	api      apiclient.Options
	hostname string
	// daemon has what is taken as it is given.
	daemon dnshosts.Config

	flags *flags.Set
}

// seconds is a time that is given as a number of seconds, or as a duration with its unit.
type seconds time.Duration

var _ pflag.Value = new(seconds)

func (s *seconds) String() string {
	return strconv.FormatFloat(time.Duration(*s).Seconds(), 'f', -1, 64)
}

func (s *seconds) Type() string { return "seconds" }

func (s *seconds) Set(text string) error {
	if n, err := strconv.Atoi(text); err == nil {
		*s = seconds(time.Duration(n) * time.Second)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is neither a number of seconds nor a duration like 30s", text)
	}
	*s = seconds(d)
	return nil
}

func newOptions() *options {
	o := &options{
		flags: flags.New(program), api: apiclient.Options{Program: program},
		daemon: dnshosts.Config{WholeSync: 30 * time.Second},
	}

	f := o.flags.Section("API server")
	f.StringVar(&o.api.Kubeconfig, "kubeconfig", "", "Kubeconfig of an API server, for a daemon that does not ask "+
		"the node's wrapper.")
	f.StringVar(&o.api.Master, "master", "", "URL of the API server, instead of the one in --kubeconfig. If both are "+
		"empty, the daemon asks the node's wrapper: "+wrapper+".")
	f.Float32Var(&o.api.QPS, "kube-qps", 1000, "Limit of requests per second to the API server.")
	f.IntVar(&o.api.Burst, "kube-burst", 1000, "Limit of these requests that are sent at once.")

	f = o.flags.Section("Node")
	f.StringVar(&o.hostname, "hostname", "", "Name of this node in the cluster, as kube-proxy's --hostname-override. "+
		"It is read in lower case. Empty: the host's own name.")
	f.StringVar(&o.daemon.Path, "hostpath", "/data/edge/hosts", "The hosts file. Its directory has to exist. Mount "+
		"the directory, not the file alone, because the daemon replaces the file. Lines outside of the marked block "+
		"are kept.")
	f.StringVar(&o.daemon.Domain, "cluster-domain", "cluster.local",
		"The cluster's DNS domain, as the kubelet's clusterDomain has it.")
	f.Var((*seconds)(&o.daemon.WholeSync), "sync-period-as-whole", "Seconds between two comparisons of the whole "+
		"file. Besides that the daemon follows changes as they happen.")

	f = o.flags.Section("Serving")
	f.StringVar(&o.daemon.BindAddress, "bind-address", "localhost:51007",
		"host:port of /healthz, /readyz and /metrics, plain HTTP for anyone; 0 for none.")

	o.flags.Logging()

	f = o.flags.Section("Ignored")
	const noLeader = "Ignored: every node's daemon works, without a leader."
	f.Int("worker", runtime.NumCPU(), "Ignored: one goroutine writes the file.")
	f.Int("sync-period", 30, "Ignored: changes are followed as they happen.")
	f.String("feature-gates", "", "Ignored: there are no feature gates.")
	f.Bool("leader-elect", false, noLeader)
	f.Duration("leader-elect-lease-duration", 15*time.Second, noLeader)
	f.Duration("leader-elect-renew-deadline", 10*time.Second, noLeader)
	f.Duration("leader-elect-retry-period", 2*time.Second, noLeader)
	f.String("leader-elect-resource-lock", "leases", noLeader)
	f.String("leader-elect-resource-name", program, noLeader)
	f.String("leader-elect-resource-namespace", "kube-system", noLeader)
	return o
}

// config turns the flags into the configuration of a daemon. The error says what to change.
func (o *options) config() (dnshosts.Config, error) {
	config := o.daemon
	var err error
	if config.NodeName, err = nodename.Of(o.hostname); err != nil {
		return config, fmt.Errorf("--hostname: %w", err)
	}
	if config.Path = filepath.Clean(config.Path); !filepath.IsAbs(config.Path) {
		return config, fmt.Errorf("--hostpath %q is not an absolute path", o.daemon.Path)
	}
	config.Domain = strings.ToLower(strings.Trim(config.Domain, "."))
	if problems := validation.IsDNS1123Subdomain(config.Domain); len(problems) > 0 {
		return config, fmt.Errorf("--cluster-domain %q is not a domain name: %s", o.daemon.Domain, problems[0])
	}
	if config.WholeSync <= 0 {
		return config, errors.New("--sync-period-as-whole must be greater than 0")
	}
	if config.BindAddress == "0" {
		config.BindAddress = ""
	} else if _, _, err := net.SplitHostPort(config.BindAddress); err != nil {
		return config, fmt.Errorf("--bind-address %q is not host:port, nor 0: %w", config.BindAddress, err)
	}
	api := o.api
	if api.Master == "" && api.Kubeconfig == "" {
		api.Master = wrapper
	}
	config.Connection, err = api.Connect()
	return config, err
}
