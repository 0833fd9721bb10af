package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/follow/upstream"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/program/nodename"
	"github.com/application-grid/application-grid/pkg/proxy"
	"github.com/application-grid/application-grid/pkg/site/cri"
	"github.com/application-grid/application-grid/pkg/site/deadnodes"
	"github.com/application-grid/application-grid/pkg/site/exchange"
	"github.com/application-grid/application-grid/pkg/site/livepods"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// options are the flags. Names and defaults are those of SuperEdge's wrapper.
type options struct {
	kubeconfig    string
	kubeQPS       float32
	kubeBurst     int
	hostname      string
	inCluster     bool
	localEndpoint string
	localPort     string
	autonomy      string

	hub              string
	hubKubeconfig    string
	hubFallbackAfter time.Duration

	stateDir        string
	stateWriteDelay time.Duration
	keepAnswersFor  []string
	cri             string
	returnGrace     time.Duration

	siteExchange        string
	siteLabels          []string
	siteExchangePort    uint16
	siteExchangeKeyFile string

	bindAddress    string
	metricsAddress string
	allowedHosts   []string
	insecure       bool
	certDir        string
	certFile       string
	keyFile        string
	caFile         string
	maxConnections int
	maxWatches     int
	maxListBytes   int
	debug          bool

	notifyChannelSize    int
	supportEndpointSlice bool

	version bool

	flags *flags.Set
}

// What --help and the man page begin with.
const (
	short        = "Shows kube-proxy the endpoints of the node's own site"
	introduction = "application-grid-wrapper runs between kube-proxy and the API server of an edge node (kube-proxy\n" +
		"--master=http://localhost:51006) and shows kube-proxy, of every Service with the annotation\n" +
		"topologyKeys, only the endpoints on nodes of this node's own site. application-grid-wrapper explain\n" +
		"NAMESPACE/SERVICE says which they are, and why."
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
	o := &options{flags: flags.New(program)}
	o.upstreamFlags()
	o.siteFlags()
	o.servingFlags()
	o.flags.Logging()

	f := o.flags.Section("Ignored")
	f.IntVar(&o.notifyChannelSize, "notify-channel-size", 100,
		"Ignored: watchers read from a log, which has no channels to size.")
	f.BoolVar(&o.supportEndpointSlice, "support-endpointslice", false, "Ignored: EndpointSlices are always served.")

	f = o.flags.Section("Other")
	f.BoolVar(&o.version, "version", false, "Print the version and exit.")
	return o
}

// upstreamFlags are those of whom the wrapper follows, and for which node.
func (o *options) upstreamFlags() {
	f := o.flags.Section("Upstream")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "File that leads to the API server or lite-apiserver, with the "+
		"wrapper's own credentials. Empty: the service account of the pod.")
	f.Float32Var(&o.kubeQPS, "kube-qps", 1000, "Limit of the wrapper's own requests per second to the upstream.")
	f.IntVar(&o.kubeBurst, "kube-burst", 1000, "How many of these requests may be sent at once.")

	f = o.flags.Section("Hub")
	f.StringVar(&o.hub, "hub", string(upstream.HubOff),
		"off: the wrapper follows the whole cluster. auto: it follows this node's share, from application-grid-hub, "+
			"if there is one. require: it follows only the share.")
	f.StringVar(&o.hubKubeconfig, "hub-kubeconfig", "",
		"File that leads to the API server behind which the hub is, because a lite-apiserver does not know the "+
			"hub. Empty: that of --kubeconfig.")
	f.DurationVar(&o.hubFallbackAfter, "hub-fallback-after", upstream.DefaultHubFallback,
		"How long the hub may be away, with --hub=auto, before the wrapper follows the whole cluster. The time is "+
			"up to twice that, at random. A wrapper that has nothing to serve does not wait.")

	f = o.flags.Section("Node")
	f.StringVar(&o.hostname, "hostname", "", "Name of this node in the cluster, as kube-proxy's --hostname-override. "+
		"It is read in lower case. Empty: the host's own name. If there is no such node, Services with topologyKeys "+
		"have no endpoints here.")
	f.BoolVar(&o.inCluster, "wrapper-in-cluster", true,
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
	f.StringVar(&o.stateDir, "state-dir", defaultStateDir, "Directory of the snapshot, which a wrapper serves "+
		"that starts while the upstream is away. Empty: there is no snapshot.")
	f.DurationVar(&o.stateWriteDelay, "state-write-delay", snapshot.DefaultDelay,
		"How long changes are collected before the snapshot is written. The wrapper writes at most 32 MiB an hour "+
			"on average in any case.")

	f.StringSliceVar(&o.keepAnswersFor, "keep-answers-for", nil, "Names of clients, comma-separated, as their "+
		"User-Agents begin (cilium-agent). In --state-dir the wrapper keeps what they read, but for Secrets, and "+
		"gives it to them when they start while the upstream is away. Every process that can reach the wrapper can "+
		"read it then.")
	f.StringVar(&o.cri, "cri", criOff,
		"Address of this node's container runtime (unix:///run/containerd/containerd.sock), or auto for the first "+
			"usual one. While the upstream is away, the wrapper shows pods of this node that have changed as the "+
			"runtime has them. A process that may connect to that socket is root on the node. off: the runtime is not "+
			"asked.")
	f.DurationVar(&o.returnGrace, "return-grace", livepods.DefaultReturnGrace,
		"How long, after an outage of 10 s or more, pods that the upstream knew before may be shown as their nodes "+
			"have them. For each pod that ends when the upstream says the same, but not within the first 30 s.")

	f = o.flags.Section("Neighbours")
	f.StringVar(&o.siteExchange, "site-exchange", exchangeOff,
		"on: while the upstream is away, the wrapper asks the nodes of its site how their pods are, and shows these "+
			"so. It hides endpoints on neighbours that do not answer any more, unless no other endpoint of the "+
			"Service is ready. It needs --site-exchange-key-file.")
	f.StringSliceVar(&o.siteLabels, "site-label", nil,
		"Keys of labels, comma-separated. Nodes with the same value of any of them are neighbours. Empty: the "+
			"topology keys of all Services, so that one Service may change who is whose neighbour.")
	f.Uint16Var(&o.siteExchangePort, "site-exchange-port", exchange.DefaultPort,
		"TCP port of the exchange on this node's InternalIPs. It has to be the same on all nodes of a site.")
	f.StringVar(&o.siteExchangeKeyFile, "site-exchange-key-file", "",
		"File with the keys that all nodes of a site have, base64 of 32 bytes, one per line. This node asks with the "+
			"first key, answers to all, and reads the file again when it changes.")
}

// servingFlags are those of how clients reach the wrapper.
func (o *options) servingFlags() {
	f := o.flags.Section("Serving")
	f.StringVar(&o.bindAddress, "bind-address", "localhost:51006",
		"host:port to serve on. Without TLS it has to be a loopback address.")
	f.StringVar(&o.metricsAddress, "metrics-bind-address", "",
		"host:port on which /metrics is served as well, over plain HTTP for anyone, for a Prometheus that is not on "+
			"this node. Empty: none.")
	f.StringSliceVar(&o.allowedHosts, "allowed-hosts", nil, "Names and IP addresses, comma-separated, that clients "+
		"may use as the host besides localhost, 127.0.0.0/8 and ::1. Others are refused, because a web page may be "+
		"behind them (DNS rebinding). On an address that is not loopback, empty means any.")
	f.BoolVar(&o.insecure, "insecure", true, "Serve plain HTTP. With false the wrapper serves TLS with the files "+
		"below, which it reads again when they change.")
	f.StringVar(&o.certDir, "cert-dir", defaultCertDir, "Directory in which the wrapper keeps a serving certificate "+
		"that it gets for itself, unless --cert-file names one: of the signer kubernetes.io/kubelet-serving, once "+
		"its request is approved, and until then of a CA of its own. Clients find ca.crt and kubeconfig there.")
	f.StringVar(&o.certFile, "cert-file", "", "PEM file of the serving certificate.")
	f.StringVar(&o.keyFile, "key-file", "", "PEM file of the certificate's key.")
	f.StringVar(&o.caFile, "ca-file", "",
		"PEM file of CAs. Clients must present a certificate that one of them signed.")
	f.IntVar(&o.maxConnections, "max-connections", proxy.DefaultMaxConnections,
		"Limit of clients' connections. One more is closed. One caller (a user of this node, or an address) gets at "+
			"most half of them, so that it cannot lock kube-proxy out.")
	f.IntVar(&o.maxWatches, "max-watches", proxy.DefaultMaxWatches,
		"Limit of watches. One more is answered 429. One caller (a user, an address or a certificate) gets at most "+
			"half of them.")
	f.IntVar(&o.maxListBytes, "max-list-bytes", proxy.DefaultMaxListBytes,
		"Limit of the bytes of lists under way and of bodies of writes. One more is answered 429. One caller gets at "+
			"most half of that, but always one list of any size.")
	f.BoolVar(&o.debug, "debug", false, "Serve /debug/pprof.")
}

// ignored says which flags were given that have no meaning any more.
func (o *options) ignored() []string {
	notices := o.flags.Ignored("notify-channel-size", "support-endpointslice")
	if (o.cri == criOff || o.cri == "") && o.siteExchange != exchangeOn && o.flags.Lookup("return-grace").Changed {
		notices = append(notices, "Ignoring --return-grace: no container runtime is asked; --cri names one")
	}
	if o.siteExchange != exchangeOn {
		for _, name := range []string{"site-exchange-port", "site-exchange-key-file", "site-label"} {
			if o.flags.Lookup(name).Changed {
				notices = append(notices, fmt.Sprintf(
					"Ignoring --%s: nothing is exchanged without --site-exchange=on", name))
			}
		}
	}
	if o.hub == string(upstream.HubOff) && o.hubKubeconfig != "" {
		notices = append(notices, "Ignoring --hub-kubeconfig: no hub is used; --hub=auto uses it")
	}
	if o.insecure {
		for _, name := range []string{"cert-dir", "cert-file", "key-file", "ca-file"} {
			if o.flags.Lookup(name).Changed {
				notices = append(notices, fmt.Sprintf(
					"Ignoring --%s: plain HTTP is served; --insecure=false serves TLS", name))
			}
		}
	}
	return notices
}

// config turns the flags into the configuration of a proxy. The error says what to change.
func (o *options) config() (proxy.Config, error) {
	neighbours, err := o.parseAutonomy()
	if err != nil {
		return proxy.Config{}, err
	}
	if o.stateWriteDelay <= 0 {
		return proxy.Config{}, errors.New("--state-write-delay must be greater than 0")
	}
	if o.maxConnections <= 0 || o.maxWatches <= 0 || o.maxListBytes <= 0 {
		return proxy.Config{}, errors.New("--max-connections, --max-watches and --max-list-bytes must be greater " +
			"than 0")
	}
	node, err := nodename.Of(o.hostname)
	if err != nil {
		return proxy.Config{}, fmt.Errorf("--hostname: %w", err)
	}
	config := proxy.Config{
		NodeName:          node,
		BindAddress:       o.bindAddress,
		MetricsAddress:    o.metricsAddress,
		AllowedHosts:      o.allowedHosts,
		MaxConnections:    o.maxConnections,
		MaxWatches:        o.maxWatches,
		MaxListBytes:      o.maxListBytes,
		Debug:             o.debug,
		RewriteKubernetes: o.inCluster,
		StateDir:          o.stateDir,
		StateWriteDelay:   o.stateWriteDelay,
		KeepAnswersFor:    o.keepAnswersFor,
		Autonomy:          neighbours,
	}
	if o.localEndpoint != "" || o.localPort != "" {
		local, err := view.ParseLocalEndpoint(o.localEndpoint, o.localPort)
		if err != nil {
			return proxy.Config{}, fmt.Errorf("--local-endpoint, --local-port: %w", err)
		}
		if !o.inCluster {
			return proxy.Config{}, errors.New("--local-endpoint has no effect with --wrapper-in-cluster=false: leave " +
				"out one of them")
		}
		config.LocalEndpoint = &local
	}
	if err := o.configureRuntime(&config); err != nil {
		return proxy.Config{}, err
	}
	if config.SiteExchange, err = o.exchangeConfig(); err != nil {
		return proxy.Config{}, err
	}
	config.SiteLabels = o.siteLabels
	if config.Hub, err = o.hubConfig(); err != nil {
		return proxy.Config{}, err
	}
	if !o.insecure {
		config.TLS = &proxy.TLSFiles{Cert: o.certFile, Key: o.keyFile, Dir: o.certDir, ClientCA: o.caFile}
	}
	config.Connection, err = apiclient.Options{
		Program: program, Kubeconfig: o.kubeconfig, QPS: o.kubeQPS, Burst: o.kubeBurst,
		PassesOn: true, // package upstream guards the wrapper's own requests
	}.Connect()
	if err != nil {
		return proxy.Config{}, err
	}
	return config, nil
}

// exchangeConfig returns what the flags say of the exchange with neighbours; nil if there is none.
func (o *options) exchangeConfig() (*proxy.SiteExchange, error) {
	switch {
	case o.siteExchange == exchangeOff:
		return nil, nil //nolint:nilnil // there is none
	case o.siteExchange != exchangeOn:
		return nil, fmt.Errorf("--site-exchange %q is neither %s nor %s", o.siteExchange, exchangeOff, exchangeOn)
	case o.siteExchangeKeyFile == "":
		return nil, errors.New("--site-exchange=on needs --site-exchange-key-file: nothing is exchanged in plain text")
	case o.siteExchangePort == 0:
		return nil, errors.New("--site-exchange-port must be greater than 0")
	}
	for _, key := range o.siteLabels {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return nil, fmt.Errorf("--site-label %q is no key of a label: %s", key, strings.Join(wrong, ", "))
		}
	}
	return &proxy.SiteExchange{Port: o.siteExchangePort, KeyFile: o.siteExchangeKeyFile}, nil
}

// configureRuntime sets what the flags say of the container runtime.
func (o *options) configureRuntime(config *proxy.Config) error {
	if o.returnGrace < 0 {
		return errors.New("--return-grace must not be negative")
	}
	config.ReturnGrace = o.returnGrace
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

// hubConfig is what the flags say of the hub.
func (o *options) hubConfig() (proxy.HubConfig, error) {
	config := proxy.HubConfig{Mode: upstream.HubMode(o.hub), FallbackAfter: o.hubFallbackAfter}
	switch config.Mode {
	case upstream.HubOff, upstream.HubAuto, upstream.HubRequire:
	default:
		return config, fmt.Errorf("--hub %q is none of off, auto and require", o.hub)
	}
	if o.hubFallbackAfter <= 0 {
		return config, errors.New("--hub-fallback-after must be greater than 0")
	}
	if o.hubKubeconfig == "" || config.Mode == upstream.HubOff {
		return config, nil
	}
	var err error
	config.Connection, err = apiclient.Options{
		Program: program, Kubeconfig: o.hubKubeconfig, QPS: o.kubeQPS, Burst: o.kubeBurst, PassesOn: true,
	}.Connect()
	if err != nil {
		return config, fmt.Errorf("--hub-kubeconfig: %w", err)
	}
	return config, nil
}

// parseAutonomy reads the value of --service-autonomy-enhancement: comma-separated name=value. What is left out
// is as in the default. It is nil without enabled=true; then it does not matter where the address leads.
func (o *options) parseAutonomy() (*deadnodes.Options, error) {
	const flagName = "--service-autonomy-enhancement"
	enabled := false
	var parsed deadnodes.Options
	for _, value := range []string{defaultAutonomy, o.autonomy} {
		for pair := range strings.SplitSeq(value, ",") {
			name, value, found := strings.Cut(strings.TrimSpace(pair), "=")
			if !found {
				return nil, fmt.Errorf("%s: %q is not name=value, as in %s", flagName, pair, defaultAutonomy)
			}
			var err error
			switch name {
			case "enabled":
				if enabled, err = strconv.ParseBool(value); err != nil {
					return nil, fmt.Errorf("%s: enabled=%q is neither true nor false", flagName, value)
				}
			case "interval":
				seconds, err := strconv.Atoi(value)
				longest := int(deadnodes.MaxInterval / time.Second)
				if err != nil || seconds <= 0 || seconds > longest {
					return nil, fmt.Errorf("%s: interval=%q is not a number of seconds from 1 to %d",
						flagName, value, longest)
				}
				parsed.Interval = time.Duration(seconds) * time.Second
			case "address":
				parsed.Address = value
			default:
				return nil, fmt.Errorf("%s: unknown name %q: there are enabled, interval and address", flagName, name)
			}
		}
	}
	if !enabled {
		return nil, nil //nolint:nilnil // the option is off, and nothing is wrong
	}
	if err := parsed.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", flagName, err)
	}
	return &parsed, nil
}
