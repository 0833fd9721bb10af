package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/autonomy/deadnodes"
	"github.com/application-grid/application-grid/pkg/autonomy/exchange"
	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/program/nodename"
	"github.com/application-grid/application-grid/pkg/proxy"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// options are the flags. Names and defaults are those of SuperEdge's wrapper.
type options struct {
	// proxy has what is taken as it is given.
	proxy proxy.Config

	api           apiclient.Options
	hostname      string
	localEndpoint string
	localPort     string
	autonomy      string
	hubKubeconfig string
	cri           string

	siteExchange string
	exchange     proxy.SiteExchange

	insecure bool
	tls      proxy.TLSFiles

	flags *flags.Set
}

// What --help and the man page begin with.
const (
	short        = "Shows kube-proxy the endpoints of the node's own site"
	introduction = "application-grid-wrapper runs between kube-proxy and the API server of an edge node (kube-proxy\n" +
		"--master=http://localhost:51006). Of each Service with the annotation topologyKeys it shows kube-proxy\n" +
		"only the endpoints on nodes of this node's own site. application-grid-wrapper explain NAMESPACE/SERVICE\n" +
		"says which endpoints these are, and why."
)

const (
	program         = "application-grid-wrapper"
	defaultStateDir = "/var/lib/application-grid-wrapper"
	defaultCertDir  = defaultStateDir + "/tls"
)

// criOff is the value of --cri with which no container runtime is asked.
const criOff = "off"

// The values of --site-exchange.
const exchangeOff, exchangeOn = "off", "on"

const defaultAutonomy = "enabled=false,interval=30,address=http://localhost:51005/localinfo"

func newOptions() *options {
	// Package upstream guards the wrapper's own requests.
	o := &options{flags: flags.New(program), api: apiclient.Options{Program: program, PassesOn: true}}
	o.upstreamFlags()
	o.siteFlags()
	o.servingFlags()
	o.flags.Logging()

	f := o.flags.Section("Ignored")
	f.Int("notify-channel-size", 100, "Ignored: watchers read from a log, which has no channels to size.")
	f.Bool("support-endpointslice", false, "Ignored: EndpointSlices are always served.")
	return o
}

// upstreamFlags are those of whom the wrapper follows, and for which node.
func (o *options) upstreamFlags() {
	f := o.flags.Section("Upstream")
	f.StringVar(&o.api.Kubeconfig, "kubeconfig", "", "Kubeconfig of the API server or lite-apiserver, with the "+
		"wrapper's own credentials. Empty: the service account of the pod.")
	f.Float32Var(&o.api.QPS, "kube-qps", 1000, "Limit of the wrapper's own requests per second to the upstream.")
	f.IntVar(&o.api.Burst, "kube-burst", 1000, "Limit of these requests that are sent at once.")

	f = o.flags.Section("Hub")
	f.BoolVar(&o.proxy.Hub, "hub", false, "Follow only this node's share of the cluster, from application-grid-hub.")
	f.StringVar(&o.hubKubeconfig, "hub-kubeconfig", "",
		"Kubeconfig of the API server that the hub is behind, where --kubeconfig is that of a lite-apiserver, which "+
			"does not know the hub. Empty: that of --kubeconfig.")

	f = o.flags.Section("Node")
	f.StringVar(&o.hostname, "hostname", "", "Name of this node in the cluster, as kube-proxy's --hostname-override. "+
		"It is read in lower case. Empty: the host's own name. If no node has this name, Services with topologyKeys "+
		"have no endpoints here.")
	f.BoolVar(&o.proxy.RewriteKubernetes, "wrapper-in-cluster", true,
		"Show this node's API server as the endpoint of default/kubernetes, if the annotations "+
			"superedge.io/local-endpoint and superedge.io/local-port, or --local-endpoint, give its address.")
	f.StringVar(&o.localEndpoint, "local-endpoint", "", "IP address that replaces default/kubernetes' endpoints, "+
		"whatever the annotations say.")
	f.StringVar(&o.localPort, "local-port", "", "TCP port that goes with --local-endpoint.")
	f.StringVar(&o.autonomy, "service-autonomy-enhancement", defaultAutonomy,
		"With enabled=true the wrapper hides endpoints on neighbours that a health service on this node calls dead. "+
			"Every interval (seconds) it asks the service with GET address for {\"NODE\": {\"normal\": false}, ...}, "+
			"where NODE is a node's name or IP address. Without a good answer it hides nothing. It never hides "+
			"this node's endpoints or those of default/kubernetes.")
}

// siteFlags are those of a site on its own.
func (o *options) siteFlags() {
	f := o.flags.Section("Offline")
	f.StringVar(&o.proxy.StateDir, "state-dir", defaultStateDir, "Directory of the snapshot. A wrapper that starts "+
		"while the upstream is away serves it. Empty: the wrapper keeps no snapshot.")
	f.DurationVar(&o.proxy.StateWriteDelay, "state-write-delay", snapshot.DefaultDelay,
		"Time for which changes are collected before the snapshot is written. The wrapper writes at most 32 MiB an "+
			"hour on average in any case.")

	f.StringSliceVar(&o.proxy.KeepAnswersFor, "keep-answers-for", nil, "Names of clients, comma-separated, with which "+
		"their User-Agents begin (cilium-agent). In --state-dir the wrapper keeps what they read, without Secrets, "+
		"and gives it to them when they start while the upstream is away. Every process that can reach the wrapper "+
		"can read it then.")
	f.StringVar(&o.cri, "cri", criOff,
		"Address of this node's container runtime (unix:///run/containerd/containerd.sock), or auto for the first "+
			"usual one. While the upstream is away, the wrapper shows those pods of this node that have changed as "+
			"the runtime has them. A process that may connect to that socket is root on the node. off: the wrapper "+
			"does not ask the runtime.")
	f.DurationVar(&o.proxy.ReturnGrace, "return-grace", livepods.DefaultReturnGrace,
		"Time after an outage of 10 s or more for which pods that the upstream knew before may be shown as their "+
			"nodes have them. For a pod it ends earlier, but not within 30 s, when the upstream reports the same.")

	f = o.flags.Section("Neighbours")
	f.StringVar(&o.siteExchange, "site-exchange", exchangeOff,
		"on: while the upstream is away, the wrapper asks the nodes of its site for the state of their pods, and "+
			"shows it. It hides endpoints on neighbours that no longer answer, unless no other endpoint of the "+
			"Service is ready. It needs --site-exchange-key-file.")
	f.StringSliceVar(&o.proxy.SiteKeys, "site-keys", nil,
		"Label keys, comma-separated, that make neighbours: nodes with the same value of any of them. Empty: the "+
			"topology keys of all Services, so that one Service may change which nodes are neighbours.")
	f.Uint16Var(&o.exchange.Port, "site-exchange-port", exchange.DefaultPort,
		"TCP port of the exchange on this node's InternalIPs. It has to be the same on all nodes of a site.")
	f.StringVar(&o.exchange.KeyFile, "site-exchange-key-file", "",
		"File with the keys that all nodes of a site share, base64 of 32 bytes, one per line. This node asks with "+
			"the first key, accepts all, and reads the file again when it changes.")
}

// servingFlags are those of how clients reach the wrapper.
func (o *options) servingFlags() {
	f := o.flags.Section("Serving")
	f.StringVar(&o.proxy.BindAddress, "bind-address", "localhost:51006",
		"host:port to serve on. Without TLS it has to be a loopback address.")
	f.StringVar(&o.proxy.MetricsAddress, "metrics-bind-address", "",
		"Second host:port of /metrics, over plain HTTP for anyone, for a Prometheus that is not on this node. "+
			"Empty: none.")
	f.StringSliceVar(&o.proxy.AllowedHosts, "allowed-hosts", nil, "Names and IP addresses, comma-separated, that "+
		"clients may use as the host besides localhost, 127.0.0.0/8 and ::1. Other hosts are refused, because a web "+
		"page may use them (DNS rebinding). On an address that is not loopback, empty means any.")
	f.BoolVar(&o.insecure, "insecure", true, "Serve plain HTTP. With false the wrapper serves TLS with the files "+
		"below, which it reads again when they change.")
	f.StringVar(&o.tls.Dir, "cert-dir", defaultCertDir, "Directory of the serving certificate that the wrapper gets "+
		"for itself, unless --cert-file names one. It is of the signer kubernetes.io/kubelet-serving once its "+
		"request is approved, and until then of a CA of its own. Clients find ca.crt and kubeconfig there.")
	f.StringVar(&o.tls.Cert, "cert-file", "", "PEM file of the serving certificate.")
	f.StringVar(&o.tls.Key, "key-file", "", "PEM file of the certificate's key.")
	f.StringVar(&o.tls.ClientCA, "ca-file", "",
		"PEM file of the CAs that sign clients' certificates. Clients must present one.")
	f.IntVar(&o.proxy.MaxConnections, "max-connections", proxy.DefaultMaxConnections,
		"Limit of clients' connections. Beyond it, new ones are closed. One caller (a user of this node, or an "+
			"address) gets at most half of them, so that it cannot lock kube-proxy out.")
	f.IntVar(&o.proxy.MaxWatches, "max-watches", proxy.DefaultMaxWatches,
		"Limit of watches. Beyond it, new ones are answered 429. One caller (a user, an address or a certificate) "+
			"gets at most half of them.")
	f.IntVar(&o.proxy.MaxListBytes, "max-list-bytes", proxy.DefaultMaxListBytes,
		"Limit of the bytes of lists under way. Beyond it, new ones are answered 429. One caller gets at most half "+
			"of that, but always one list of any size.")
	f.BoolVar(&o.proxy.Debug, "debug", false, "Serve /debug/pprof.")
}

// withoutEffect says which flags were given that have no effect without another one.
func (o *options) withoutEffect() []string {
	var notices []string
	without := func(missing bool, why string, names ...string) {
		for _, name := range names {
			if missing && o.flags.Lookup(name).Changed {
				notices = append(notices, fmt.Sprintf("Ignoring --%s: %s", name, why))
			}
		}
	}
	without((o.cri == criOff || o.cri == "") && o.siteExchange != exchangeOn,
		"no container runtime is asked; --cri names one", "return-grace")
	without(o.siteExchange != exchangeOn, "nothing is exchanged without --site-exchange=on",
		"site-exchange-port", "site-exchange-key-file", "site-keys")
	without(!o.proxy.Hub, "no hub is used; --hub uses it", "hub-kubeconfig")
	without(o.insecure, "plain HTTP is served; --insecure=false serves TLS",
		"cert-dir", "cert-file", "key-file", "ca-file")
	return notices
}

// config turns the flags into the configuration of a proxy. The error says what to change.
func (o *options) config() (proxy.Config, error) {
	config := o.proxy
	if config.StateWriteDelay <= 0 {
		return config, errors.New("--state-write-delay must be greater than 0")
	}
	if config.MaxConnections <= 0 || config.MaxWatches <= 0 || config.MaxListBytes <= 0 {
		return config, errors.New("--max-connections, --max-watches and --max-list-bytes must be greater than 0")
	}
	if !o.insecure {
		config.TLS = &o.tls
	}
	for _, read := range []func(*proxy.Config) error{
		o.readAutonomy, o.readNode, o.readRuntime, o.readExchange, o.readHub,
	} {
		if err := read(&config); err != nil {
			return config, err
		}
	}
	var err error
	config.Connection, err = o.api.Connect()
	return config, err
}

// readNode reads the flags of this node, and of its API server.
func (o *options) readNode(config *proxy.Config) (err error) {
	if config.NodeName, err = nodename.Of(o.hostname); err != nil {
		return fmt.Errorf("--hostname: %w", err)
	}
	if o.localEndpoint == "" && o.localPort == "" {
		return nil
	}
	local, err := view.ParseLocalEndpoint(o.localEndpoint, o.localPort)
	if err != nil {
		return fmt.Errorf("--local-endpoint, --local-port: %w", err)
	}
	if !config.RewriteKubernetes {
		return errors.New("--local-endpoint has no effect with --wrapper-in-cluster=false: leave out one of them")
	}
	config.LocalEndpoint = local
	return nil
}

func (o *options) readExchange(config *proxy.Config) error {
	switch {
	case o.siteExchange == exchangeOff:
		return nil
	case o.siteExchange != exchangeOn:
		return fmt.Errorf("--site-exchange %q is neither %s nor %s", o.siteExchange, exchangeOff, exchangeOn)
	case o.exchange.KeyFile == "":
		return errors.New("--site-exchange=on needs --site-exchange-key-file: nothing is exchanged in plain text")
	case o.exchange.Port == 0:
		return errors.New("--site-exchange-port must be greater than 0")
	}
	for _, key := range config.SiteKeys {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return fmt.Errorf("--site-keys %q is not a label key: %s", key, strings.Join(wrong, ", "))
		}
	}
	config.SiteExchange = &o.exchange
	return nil
}

func (o *options) readRuntime(config *proxy.Config) error {
	if config.ReturnGrace < 0 {
		return errors.New("--return-grace must not be negative")
	}
	if o.cri == criOff || o.cri == "" {
		return nil
	}
	runtime, err := cri.New(o.cri)
	if err != nil {
		return fmt.Errorf("--cri: %w", err)
	}
	config.Runtime = runtime
	return nil
}

func (o *options) readHub(config *proxy.Config) (err error) {
	if o.hubKubeconfig == "" || !config.Hub {
		return nil
	}
	hub := o.api
	hub.Kubeconfig = o.hubKubeconfig
	if config.HubConnection, err = hub.Connect(); err != nil {
		return fmt.Errorf("--hub-kubeconfig: %w", err)
	}
	return nil
}

// readAutonomy reads the value of --service-autonomy-enhancement: comma-separated name=value. What is left out is as in
// the default. Without enabled=true it does not matter where the address leads.
func (o *options) readAutonomy(config *proxy.Config) error {
	const flagName = "--service-autonomy-enhancement"
	enabled := false
	var parsed deadnodes.Options
	for _, value := range []string{defaultAutonomy, o.autonomy} {
		for pair := range strings.SplitSeq(value, ",") {
			name, value, found := strings.Cut(strings.TrimSpace(pair), "=")
			if !found {
				return fmt.Errorf("%s: %q is not name=value, as in %s", flagName, pair, defaultAutonomy)
			}
			var err error
			switch name {
			case "enabled":
				if enabled, err = strconv.ParseBool(value); err != nil {
					return fmt.Errorf("%s: enabled=%q is neither true nor false", flagName, value)
				}
			case "interval":
				seconds, err := strconv.Atoi(value)
				longest := int(deadnodes.MaxInterval / time.Second)
				if err != nil || seconds <= 0 || seconds > longest {
					return fmt.Errorf("%s: interval=%q is not a number of seconds from 1 to %d",
						flagName, value, longest)
				}
				parsed.Interval = time.Duration(seconds) * time.Second
			case "address":
				parsed.Address = value
			default:
				return fmt.Errorf("%s: unknown name %q: there are enabled, interval and address", flagName, name)
			}
		}
	}
	if !enabled {
		return nil
	}
	if err := parsed.Validate(); err != nil {
		return fmt.Errorf("%s: %w", flagName, err)
	}
	config.Autonomy = &parsed
	return nil
}
