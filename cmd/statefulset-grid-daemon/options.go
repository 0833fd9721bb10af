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

// What --help and the man page begin with.
// wrapper is where the node's wrapper listens by default. It needs no credentials.
const wrapper = "http://127.0.0.1:51006"

const (
	short        = "Keeps the hosts file from which a node's CoreDNS answers the names of StatefulSetGrids"
	introduction = "statefulset-grid-daemon runs on every node and keeps the hosts file from which the node's " +
		"CoreDNS " +
		"answers\n" +
		"{grid}-{ordinal}.{service}.{namespace}.svc.cluster.local with that pod of the node's own site, for every\n" +
		"StatefulSetGrid. docs/install.md says how CoreDNS reads the file."
)

// options are the flags. Names and defaults are those of SuperEdge's daemon.
type options struct {
	master     string
	kubeconfig string
	kubeQPS    float32
	kubeBurst  int

	hostname      string
	hostPath      string
	clusterDomain string
	wholeSync     seconds

	bindAddress string

	worker       int
	syncPeriod   int
	featureGates string
	election     struct {
		enabled                                   bool
		leaseDuration, renewDeadline, retryPeriod time.Duration
		lock, name, namespace                     string
	}

	version bool

	flags *flags.Set
}

// seconds is a time that is given as a number of seconds, or as a duration with its unit.
type seconds time.Duration

var _ pflag.Value = new(seconds)

// String implements pflag.Value.
func (s *seconds) String() string {
	return strconv.FormatFloat(time.Duration(*s).Seconds(), 'f', -1, 64)
}

// Type implements pflag.Value.
func (s *seconds) Type() string { return "seconds" }

// Set implements pflag.Value.
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

// ignoredFlags have no meaning any more.
var ignoredFlags = []string{
	"worker", "sync-period", "feature-gates", "leader-elect", "leader-elect-lease-duration",
	"leader-elect-renew-deadline",
	"leader-elect-retry-period", "leader-elect-resource-lock", "leader-elect-resource-name",
	"leader-elect-resource-namespace",
}

func newOptions() *options {
	o := &options{flags: flags.New(program), wholeSync: seconds(30 * time.Second)}

	f := o.flags.Section("API server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "File that leads to an API server, for a daemon that does not "+
		"ask the node's wrapper.")
	f.StringVar(&o.master, "master", "", "URL of the API server, instead of the one in --kubeconfig. If both are "+
		"empty, the daemon asks the node's wrapper: "+wrapper+".")
	f.Float32Var(&o.kubeQPS, "kube-qps", 1000, "Limit of requests per second to the API server.")
	f.IntVar(&o.kubeBurst, "kube-burst", 1000, "How many of these requests may be sent at once.")

	f = o.flags.Section("Node")
	f.StringVar(&o.hostname, "hostname", "", "Name of this node in the cluster, as kube-proxy's --hostname-override. "+
		"It is read in lower case. Empty: the host's own name.")
	f.StringVar(&o.hostPath, "hostpath", "/data/edge/hosts", "The hosts file. Its directory has to exist. Mount the "+
		"directory, never the file alone, because the daemon replaces the file. Lines outside of the marked block "+
		"are kept.")
	f.StringVar(&o.clusterDomain, "cluster-domain", "cluster.local",
		"The cluster's DNS domain, as the kubelet's clusterDomain has it.")
	f.Var(&o.wholeSync, "sync-period-as-whole", "How often the daemon compares the whole file, in seconds, besides "+
		"following changes as they happen.")

	f = o.flags.Section("Serving")
	f.StringVar(&o.bindAddress, "bind-address", "localhost:51007",
		"host:port of /healthz, /readyz and /metrics, plain HTTP for anyone; 0 for none.")

	o.flags.Logging()

	f = o.flags.Section("Ignored")
	const noLeader = "Ignored: every node's daemon works, there is no leader."
	f.IntVar(&o.worker, "worker", runtime.NumCPU(), "Ignored: one goroutine writes the file.")
	f.IntVar(&o.syncPeriod, "sync-period", 30, "Ignored: changes are followed as they happen.")
	f.StringVar(&o.featureGates, "feature-gates", "", "Ignored: there are no feature gates.")
	f.BoolVar(&o.election.enabled, "leader-elect", false, noLeader)
	f.DurationVar(&o.election.leaseDuration, "leader-elect-lease-duration", 15*time.Second, noLeader)
	f.DurationVar(&o.election.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, noLeader)
	f.DurationVar(&o.election.retryPeriod, "leader-elect-retry-period", 2*time.Second, noLeader)
	f.StringVar(&o.election.lock, "leader-elect-resource-lock", "leases", noLeader)
	f.StringVar(&o.election.name, "leader-elect-resource-name", program, noLeader)
	f.StringVar(&o.election.namespace, "leader-elect-resource-namespace", "kube-system", noLeader)

	f = o.flags.Section("Other")
	f.BoolVar(&o.version, "version", false, "Print the version and exit.")
	return o
}

func (o *options) ignored() []string { return o.flags.Ignored(ignoredFlags...) }

// config turns the flags into the configuration of a daemon. The error says what to change.
func (o *options) config() (dnshosts.Config, error) {
	var none dnshosts.Config
	node, err := nodename.Of(o.hostname)
	if err != nil {
		return none, fmt.Errorf("--hostname: %w", err)
	}
	if !filepath.IsAbs(o.hostPath) {
		return none, fmt.Errorf("--hostpath %q is not an absolute path", o.hostPath)
	}
	domain := strings.ToLower(strings.Trim(o.clusterDomain, "."))
	if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 {
		return none, fmt.Errorf("--cluster-domain %q is not a domain name: %s", o.clusterDomain, problems[0])
	}
	if o.wholeSync <= 0 {
		return none, errors.New("--sync-period-as-whole must be greater than 0")
	}
	config := dnshosts.Config{
		NodeName:    node,
		Path:        filepath.Clean(o.hostPath),
		Domain:      domain,
		WholeSync:   time.Duration(o.wholeSync),
		BindAddress: o.bindAddress,
	}
	if o.bindAddress == "0" {
		config.BindAddress = ""
	} else if _, _, err := net.SplitHostPort(o.bindAddress); err != nil {
		return none, fmt.Errorf("--bind-address %q is not host:port, nor 0: %w", o.bindAddress, err)
	}
	master := o.master
	if master == "" && o.kubeconfig == "" {
		master = wrapper
	}
	config.Connection, err = apiclient.Options{
		Program: program, Kubeconfig: o.kubeconfig, Master: master, QPS: o.kubeQPS, Burst: o.kubeBurst,
	}.Connect()
	if err != nil {
		return none, err
	}
	return config, nil
}
