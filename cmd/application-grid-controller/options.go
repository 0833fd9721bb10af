package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/gridcontroller"
	"github.com/application-grid/application-grid/pkg/gridcontroller/kubeproxy"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

const program = "application-grid-controller"

// What --help and the man page begin with.
const (
	short        = "Makes one workload per site of every grid, and one site-local Service"
	introduction = "application-grid-controller makes, of every DeploymentGrid, StatefulSetGrid and DaemonSetGrid, " +
		"one workload\n" +
		"per site (the nodes with one value of the grid's label), and of every ServiceGrid one Service that " +
		"reaches,\n" +
		"on every node, its own site only. It creates them, follows every change, and removes what has no site any " +
		"more."
)

// options are the flags. Names and defaults are those of SuperEdge's controller, except that the leader
// election is on.
type options struct {
	api    apiclient.Options
	flags  *flags.Set
	result gridcontroller.Config // most flags set it, config completes it

	manageCRDs                  string
	namespaces, allowedSiteKeys string
	moveKubeProxy               bool

	// connection is made by config, and looked after while the controller runs.
	connection *apiclient.Connection
}

func newOptions() *options {
	o := &options{flags: flags.New(program), api: apiclient.Options{Program: program}}
	c, m := &o.result, &o.result.Manager
	m.LeaseDuration, m.RenewDeadline, m.RetryPeriod = new(time.Duration), new(time.Duration), new(time.Duration)

	f := o.flags.Section("API server")
	f.StringVar(&o.api.Kubeconfig, "kubeconfig", "", "Kubeconfig of the API server, with the controller's "+
		"credentials. Empty: the service account of the pod.")
	f.StringVar(&o.api.Master, "master", "", "URL of the API server, instead of the one in --kubeconfig.")
	f.Float32Var(&o.api.QPS, "kube-qps", 1000, "Limit of requests per second to the API server.")
	f.IntVar(&o.api.Burst, "kube-burst", 1000, "Limit of these requests that are sent at once.")

	f = o.flags.Section("Grids")
	f.IntVar(&m.Controller.MaxConcurrentReconciles, "worker", runtime.NumCPU(),
		"Number of grids of a kind that are worked on at once.")
	f.DurationVar(&c.SiteRemovalGrace, "site-removal-grace", 5*time.Minute,
		"Time for which a site's workload outlives the last node of the site. A node may return, or register again "+
			"without its labels.")
	f.StringVar(&o.manageCRDs, "manage-crds", "auto", "auto: the controller installs missing CRDs, and "+
		"replaces older ones, but neither newer ones nor those that GitOps tools or Helm keep. off: it waits until "+
		"somebody has installed them.")
	f.StringVar(&o.namespaces, "namespaces", "", "Namespaces whose grids are worked on, comma-separated. Empty: "+
		"all. Otherwise the controller needs its rights only there, and those to nodes.")
	f.StringVar(&o.allowedSiteKeys, "allowed-site-keys", "", "Keys of node labels that grids may use as gridUniqKey, "+
		"comma-separated. Empty: any.")
	f.IntVar(&c.Limits.SitesPerGrid, "max-sites-per-grid", 0, "Limit of the sites of one grid. The controller does "+
		"not work on a grid with more. 0: no limit.")

	f = o.flags.Section("Nodes")
	f.BoolVar(&o.moveKubeProxy, "move-kube-proxy", false, "Label an edge node superedge.io/kube-proxy=edge once its "+
		"wrapper is ready. The manifests for kubeadm move kube-proxy by that label.")

	f = o.flags.Section("Leader election")
	f.BoolVar(&m.LeaderElection, "leader-elect", true, "Let only one of several replicas work, the holder of a Lease. "+
		"The others wait.")
	f.DurationVar(m.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"Time for which the others wait after the leader last renewed its Lease.")
	f.DurationVar(m.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"Time for which the leader tries to renew its Lease before it exits.")
	f.DurationVar(m.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
		"Pause between attempts to acquire or renew the Lease.")
	f.StringVar(&m.LeaderElectionID, "leader-elect-resource-name", program, "Name of the Lease.")
	f.StringVar(&m.LeaderElectionNamespace, "leader-elect-resource-namespace", "kube-system", "Namespace of the Lease.")

	f = o.flags.Section("Serving")
	f.StringVar(&m.HealthProbeBindAddress, "health-bind-address", ":8081",
		"host:port of /healthz and /readyz; 0 for none.")
	f.StringVar(&m.Metrics.BindAddress, "metrics-bind-address", ":8080",
		"host:port of /metrics, plain HTTP for anyone; 0 for none.")

	o.flags.Logging()

	f = o.flags.Section("Ignored")
	f.String("feature-gates", "", "Ignored: there are no feature gates.")
	f.Int("sync-period", 30, "Ignored: changes are followed as they happen.")
	f.String("leader-elect-resource-lock", "leases", "Ignored: the lock is always a Lease.")
	return o
}

// config turns the flags into the configuration of the controller. The error says what to change.
func (o *options) config() (gridcontroller.Config, error) {
	c, m := o.result, &o.result.Manager
	switch {
	case m.Controller.MaxConcurrentReconciles <= 0:
		return c, errors.New("--worker must be greater than 0")
	case c.SiteRemovalGrace < 0:
		return c, errors.New("--site-removal-grace must not be less than 0")
	case c.Limits.SitesPerGrid < 0:
		return c, errors.New("--max-sites-per-grid must not be less than 0")
	case !m.LeaderElection:
	case m.LeaderElectionID == "" || m.LeaderElectionNamespace == "":
		return c, errors.New("--leader-elect-resource-name and --leader-elect-resource-namespace must not be " +
			"empty; --leader-elect=false works without a Lease")
	case *m.RetryPeriod <= 0 || *m.RenewDeadline <= *m.RetryPeriod || *m.LeaseDuration <= *m.RenewDeadline:
		return c, errors.New("--leader-elect-lease-duration must be greater than " +
			"--leader-elect-renew-deadline, and that greater than --leader-elect-retry-period")
	}
	if o.moveKubeProxy {
		c.Also = kubeproxy.Add
	}
	switch o.manageCRDs {
	case "auto", "true": // true and false are from before there was anything else
		c.ManageCRDs = true
	case "off", "false":
	default:
		return c, fmt.Errorf("--manage-crds: %q is neither auto nor off", o.manageCRDs)
	}
	for name, address := range map[string]string{
		"health-bind-address": m.HealthProbeBindAddress, "metrics-bind-address": m.Metrics.BindAddress,
	} {
		if _, _, err := net.SplitHostPort(address); address != "0" && err != nil {
			return c, fmt.Errorf("--%s: %q is not host:port, nor 0: %w", name, address, err)
		}
	}
	var namespaces, keys error
	c.Namespaces, namespaces = list("--namespaces", o.namespaces, "a namespace", validation.IsDNS1123Label)
	c.Limits.SiteKeys, keys = list("--allowed-site-keys", o.allowedSiteKeys, "the key of a label",
		validation.IsQualifiedName)
	if err := cmp.Or(namespaces, keys); err != nil {
		return c, err
	}
	var err error
	if o.connection, err = o.api.Connect(); err != nil {
		return c, err
	}
	c.API, err = o.connection.Config()
	return c, err
}

// list reads a comma-separated list. problems returns why a value cannot be one of these things.
func list(flag, values, thing string, problems func(string) []string) (all []string, err error) {
	for value := range strings.SplitSeq(values, ",") {
		if value = strings.TrimSpace(value); value == "" {
			continue
		}
		if found := problems(value); len(found) > 0 {
			return nil, fmt.Errorf("%s: %q cannot be %s: %s", flag, value, thing, found[0])
		}
		all = append(all, value)
	}
	return all, nil
}
