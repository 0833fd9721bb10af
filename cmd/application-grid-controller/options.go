package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/manager"

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
	api apiclient.Options

	worker           int
	siteRemovalGrace time.Duration
	manageCRDs       string
	namespaces       string
	allowedSiteKeys  string
	maxSitesPerGrid  int
	moveKubeProxy    bool

	leaderElect bool
	election    gridcontroller.LeaderElection

	healthAddress  string
	metricsAddress string

	flags *flags.Set

	// connection is made by config, and looked after while the controller runs.
	connection *apiclient.Connection
}

func newOptions() *options {
	o := &options{flags: flags.New(program), api: apiclient.Options{Program: program}}

	f := o.flags.Section("API server")
	f.StringVar(&o.api.Kubeconfig, "kubeconfig", "", "Kubeconfig of the API server, with the controller's "+
		"credentials. Empty: the service account of the pod.")
	f.StringVar(&o.api.Master, "master", "", "URL of the API server, instead of the one in --kubeconfig.")
	f.Float32Var(&o.api.QPS, "kube-qps", 1000, "Limit of requests per second to the API server.")
	f.IntVar(&o.api.Burst, "kube-burst", 1000, "Limit of these requests that are sent at once.")

	f = o.flags.Section("Grids")
	f.IntVar(&o.worker, "worker", runtime.NumCPU(), "Number of grids of a kind that are worked on at once.")
	f.DurationVar(&o.siteRemovalGrace, "site-removal-grace", 5*time.Minute,
		"Time for which a site's workload outlives the last node of the site. A node may return, or register again "+
			"without its labels.")
	f.StringVar(&o.manageCRDs, "manage-crds", "auto", "auto: the controller installs missing CRDs, and "+
		"replaces older ones, but neither newer ones nor those that GitOps tools or Helm keep. off: it waits until "+
		"somebody has installed them.")
	f.StringVar(&o.namespaces, "namespaces", "", "Namespaces whose grids are worked on, comma-separated. Empty: "+
		"all. Otherwise the controller needs its rights only there, and those to nodes.")
	f.StringVar(&o.allowedSiteKeys, "allowed-site-keys", "", "Keys of node labels that grids may use as gridUniqKey, "+
		"comma-separated. Empty: any.")
	f.IntVar(&o.maxSitesPerGrid, "max-sites-per-grid", 0, "Limit of the sites of one grid. The controller does "+
		"not work on a grid with more. 0: no limit.")

	f = o.flags.Section("Nodes")
	f.BoolVar(&o.moveKubeProxy, "move-kube-proxy", false, "Label an edge node superedge.io/kube-proxy=edge once its "+
		"wrapper is ready. The manifests for kubeadm move kube-proxy by that label.")

	f = o.flags.Section("Leader election")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "Let only one of several replicas work, the holder of a Lease. "+
		"The others wait.")
	f.DurationVar(&o.election.LeaseDuration, "leader-elect-lease-duration", 15*time.Second,
		"Time for which the others wait after the leader last renewed its Lease.")
	f.DurationVar(&o.election.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second,
		"Time for which the leader tries to renew its Lease before it exits.")
	f.DurationVar(&o.election.RetryPeriod, "leader-elect-retry-period", 2*time.Second,
		"Pause between attempts to acquire or renew the Lease.")
	f.StringVar(&o.election.Name, "leader-elect-resource-name", program, "Name of the Lease.")
	f.StringVar(&o.election.Namespace, "leader-elect-resource-namespace", "kube-system", "Namespace of the Lease.")

	f = o.flags.Section("Serving")
	f.StringVar(&o.healthAddress, "health-bind-address", ":8081", "host:port of /healthz and /readyz; 0 for none.")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080",
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
	var none gridcontroller.Config
	switch {
	case o.worker <= 0:
		return none, errors.New("--worker must be greater than 0")
	case o.siteRemovalGrace < 0:
		return none, errors.New("--site-removal-grace must not be less than 0")
	case o.maxSitesPerGrid < 0:
		return none, errors.New("--max-sites-per-grid must not be less than 0")
	}
	config := gridcontroller.Config{
		Workers:          o.worker,
		SiteRemovalGrace: o.siteRemovalGrace,
		Limits:           gridcontroller.Limits{SitesPerGrid: o.maxSitesPerGrid},
		HealthAddress:    o.healthAddress,
		MetricsAddress:   o.metricsAddress,
		Also:             func(manager.Manager) error { return nil },
	}
	if o.moveKubeProxy {
		config.Also = kubeproxy.Add
	}
	switch o.manageCRDs {
	case "auto", "true": // true and false are from before there was anything else
		config.ManageCRDs = true
	case "off", "false":
	default:
		return none, fmt.Errorf("--manage-crds: %q is neither auto nor off", o.manageCRDs)
	}
	for namespace := range strings.SplitSeq(o.namespaces, ",") {
		if namespace = strings.TrimSpace(namespace); namespace == "" {
			continue
		}
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return none, fmt.Errorf("--namespaces: %q cannot be a namespace: %s", namespace, problems[0])
		}
		config.Namespaces = append(config.Namespaces, namespace)
	}
	for key := range strings.SplitSeq(o.allowedSiteKeys, ",") {
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return none, fmt.Errorf("--allowed-site-keys: %q cannot be the key of a label: %s", key, problems[0])
		}
		config.Limits.SiteKeys = append(config.Limits.SiteKeys, key)
	}
	addresses := map[string]string{"health-bind-address": o.healthAddress, "metrics-bind-address": o.metricsAddress}
	for name, address := range addresses {
		if _, _, err := net.SplitHostPort(address); address != "0" && err != nil {
			return none, fmt.Errorf("--%s: %q is not host:port, nor 0: %w", name, address, err)
		}
	}
	if o.leaderElect {
		switch e := o.election; {
		case e.Name == "" || e.Namespace == "":
			return none, errors.New("--leader-elect-resource-name and --leader-elect-resource-namespace must not be " +
				"empty; --leader-elect=false works without a Lease")
		case e.RetryPeriod <= 0 || e.RenewDeadline <= e.RetryPeriod || e.LeaseDuration <= e.RenewDeadline:
			return none, errors.New("--leader-elect-lease-duration must be greater than " +
				"--leader-elect-renew-deadline, and that greater than --leader-elect-retry-period")
		}
		config.LeaderElection = &o.election
	}
	var err error
	if o.connection, err = o.api.Connect(); err != nil {
		return none, err
	}
	config.API, err = o.connection.Config()
	return config, err
}
