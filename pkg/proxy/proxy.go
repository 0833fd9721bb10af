package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/autonomy/deadnodes"
	"github.com/application-grid/application-grid/pkg/autonomy/exchange"
	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/follow/upstream"
	"github.com/application-grid/application-grid/pkg/program/listen"
	"github.com/application-grid/application-grid/pkg/program/systemd"
	"github.com/application-grid/application-grid/pkg/serve/metricsport"
	"github.com/application-grid/application-grid/pkg/serve/quota"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// Config configures a Proxy.
type Config struct {
	// Connection is the connection to kube-apiserver or lite-apiserver, with the wrapper's own credentials.
	Connection *apiclient.Connection
	// Hub is set if Services, slices and nodes are taken from a hub, as this node's share. HubConnection is the
	// connection to the API server that the hub is behind; nil for Connection.
	Hub           bool
	HubConnection *apiclient.Connection
	// NodeName is this node's name. It may be empty; then the node belongs to no site.
	NodeName string
	// BindAddress is host:port. A host that is not loopback needs TLS.
	BindAddress string
	// MetricsAddress is the host:port of a listener for /metrics alone, plain HTTP for anyone; "" for none.
	MetricsAddress string
	// AllowedHosts are names and IP addresses that requests may use as their host, in addition to those of the
	// loopback. If it is empty, an address that is not loopback accepts any host.
	AllowedHosts []string
	// TLS is nil for plain HTTP.
	TLS *TLSFiles
	// MaxConnections and MaxWatches limit what clients may have open at once; 0 means the default.
	MaxConnections, MaxWatches int
	// MaxListBytes limits the memory that lists take at once; 0 means the default.
	MaxListBytes int
	// Debug serves /debug/pprof.
	Debug bool
	// RewriteKubernetes rewrites default/kubernetes to the local API server, which its annotations or LocalEndpoint
	// name.
	RewriteKubernetes bool
	LocalEndpoint     *view.LocalEndpoint
	// StateDir is the directory of the snapshot; "" for none. StateWriteDelay is snapshot.Writer's Delay.
	StateDir        string
	StateWriteDelay time.Duration
	// KeepAnswersFor are the clients whose answers filters.KeptAnswers keeps, in StateDir.
	KeepAnswersFor []string
	// Runtime, if set, is this node's container runtime, which is asked for the node's pods while the upstream is away.
	// ReturnGrace limits how long after that its answers, and the neighbours' reports, are used.
	Runtime     livepods.Runtime
	ReturnGrace time.Duration
	// SiteKeys are the keys of labels. Nodes with the same value of any of them belong to one site. If empty, the
	// topology keys of all Services are used.
	SiteKeys []string
	// SiteExchange, if set, exchanges facts with the neighbours while the upstream is away.
	SiteExchange *SiteExchange
	// Autonomy, if set, names the health service that knows which neighbouring nodes are dead.
	Autonomy *deadnodes.Options
}

// Defaults for what clients may have open at once. One client can take half of that at most (see package quota).
// kube-proxy has one connection and four watches, CoreDNS two and three. An idle connection takes 19 KB, and one with a
// quiet watch 37 KB; both figures include the client's side in the same process.
const (
	DefaultMaxConnections = 1000
	DefaultMaxWatches     = 500
	// DefaultMaxListBytes is enough for two callers that list, at the same time, all slices of 100,000 endpoints
	// unpruned (12 MB each in protobuf).
	DefaultMaxListBytes = 32 << 20
)

// GCPercent is the GOGC for the wrapper's process. Data from the upstream and to clients becomes garbage at once. With
// Go's default of 100 that garbage may take as much memory as the cache, which is too much on a small node.
const GCPercent = 50

// gracePeriod is how long running requests may take when the process is stopped.
const gracePeriod = 10 * time.Second

// Proxy is the wrapper.
type Proxy struct {
	config    Config
	revisions *history.Revisions
	facts     *facts.Facts
	panicked  *panickedSteps
	view      *view.View
	sites     *view.Sites
	upstream  *upstream.Upstream
	// link knows whether kube-apiserver or lite-apiserver is away, stateLink whether the server is from which Services,
	// slices and nodes come.
	link, stateLink *apiclient.Link
	demand          *demands
	metrics         *metrics
	// autonomy is nil without Config.Autonomy.
	autonomy *deadnodes.Poller
	// livePods is nil without Config.Runtime and Config.SiteExchange.
	livePods *livepods.Keeper
	// exchange is nil without Config.SiteExchange.
	exchange *exchange.Exchange
	// addressUnknown has a value when an address of a neighbour may have changed.
	addressUnknown chan struct{}
	tls            *reloadingTLS
	// certificate is nil unless Config.TLS has a Dir, and no files.
	certificate *servingCertificate
	// snapshots is nil without a state directory, and until it was opened.
	snapshots atomic.Pointer[snapshot.Writer]
	// stateErr is why the state directory cannot be used. It is set once, before anything is served.
	stateErr error
	// keptAnswers is nil without KeepAnswersFor, and until the state directory was opened.
	keptAnswers *filters.KeptAnswers
	// loopback is set if only processes of this host can reach the wrapper. hosts are the hosts that requests may name.
	loopback bool
	hosts    filters.Hosts
	// connections and watches have one place for each connection and watch, and listBytes has one for each byte of a
	// list.
	connections, watches, listBytes *quota.Quota
	// delegatesIdentity is set if the wrapper may delegate its identity to all who can reach it, because they are
	// processes of this node or have a client certificate.
	delegatesIdentity bool
	// asCaller passes requests on with the caller's credentials, asWrapper with the wrapper's.
	asCaller, asWrapper filters.Target
	// started is when the Proxy was made.
	started time.Time
	// stopping is done when the process is stopped. stop cancels it.
	stopping context.Context //nolint:containedctx // an event to react to, not the context of a call
	stop     context.CancelFunc
}

// New makes a Proxy. It does not listen and sends no request before Run. It returns an error for an invalid
// configuration.
func New(config Config, logger klog.Logger) (*Proxy, error) {
	p := &Proxy{config: config, started: time.Now()}
	p.stopping, p.stop = context.WithCancel(context.Background())
	for _, step := range []func(klog.Logger) error{
		p.configureAccess, p.makeTLS, p.makeCache, p.makeTargets, p.makeLimits, p.makeAutonomy,
	} {
		if err := step(logger); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// configureAccess decides who can reach the wrapper, and to whom it delegates its identity.
func (p *Proxy) configureAccess(logger klog.Logger) error {
	host, _, err := net.SplitHostPort(p.config.BindAddress)
	if err != nil {
		return fmt.Errorf("--bind-address %q is not host:port: %w", p.config.BindAddress, err)
	}
	if p.hosts, err = filters.NewHosts(p.config.AllowedHosts); err != nil {
		return fmt.Errorf("--allowed-hosts: %w", err)
	}
	if p.config.MetricsAddress != "" {
		if err := metricsport.CheckAddress(p.config.MetricsAddress); err != nil {
			return err
		}
	}
	ip, err := netip.ParseAddr(host)
	p.loopback = host == "localhost" || (err == nil && ip.IsLoopback())
	switch {
	case p.loopback:
		p.delegatesIdentity = true
	case p.config.TLS == nil:
		// Everyone who can reach the wrapper could read the cluster's Services, and tokens would cross the network in
		// plain text.
		return fmt.Errorf(
			"--bind-address %q is not a loopback address: serve TLS there (--insecure=false --cert-file --key-file), "+
				"or bind to localhost",
			p.config.BindAddress,
		)
	case p.config.TLS.ClientCA == "":
		logger.Info(
			"Whoever reaches this address may read the cluster's Services and their endpoints; --ca-file restricts "+
				"that to clients with a certificate",
			"address", p.config.BindAddress,
		)
	default:
		p.delegatesIdentity = true
	}
	if len(p.config.KeepAnswersFor) > 0 && (!p.delegatesIdentity || p.config.StateDir == "") {
		return errors.New("--keep-answers-for needs --state-dir, and an address that only processes of this node or " +
			"clients with a certificate can reach: a loopback --bind-address, or --ca-file")
	}
	return nil
}

// makeCache makes the facts, and the Upstream that fills them.
func (p *Proxy) makeCache(logger klog.Logger) error {
	// The annotations are needed only if default/kubernetes is rewritten without a LocalEndpoint.
	needsAnnotations := p.config.RewriteKubernetes && p.config.LocalEndpoint == nil
	p.revisions = history.NewRevisions(uint64(max(time.Now().UnixMicro(), 1)))
	p.panicked = newPanickedSteps(logger)
	p.facts = facts.New(facts.Options{
		NodeName: p.config.NodeName, NeedsKubernetesEndpoints: needsAnnotations, SiteKeys: p.config.SiteKeys,
		OnPanic: p.panicked.stepPanicked, Logger: logger.WithName("facts"),
	})
	own, err := p.config.Connection.Config()
	if err != nil {
		return err
	}
	options := upstream.Options{
		Config: own, Facts: p.facts, NodeName: p.config.NodeName, FollowKubernetesEndpoints: needsAnnotations,
	}
	state := cmp.Or(p.config.HubConnection, p.config.Connection)
	if p.config.Hub {
		if options.Hub, err = state.Config(); err != nil {
			return err
		}
	}
	p.link, p.stateLink = p.config.Connection.Link(), state.Link()
	p.upstream, err = upstream.New(options)
	if err != nil {
		return err
	}
	p.panicked.relist = p.upstream.Relist
	for _, c := range p.serverConnections() {
		c.OnChange(p.upstream.Retry)
		c.Link().OnBack(apiclient.Spread, p.upstream.Retry)
	}
	p.demand = &demands{
		facts: p.facts, upstream: p.upstream,
		askers: map[*served.Resource]int{}, idle: map[*served.Resource]*time.Timer{},
	}
	return nil
}

func (p *Proxy) serverConnections() []*apiclient.Connection {
	if p.config.HubConnection == nil {
		return []*apiclient.Connection{p.config.Connection}
	}
	return []*apiclient.Connection{p.config.Connection, p.config.HubConnection}
}

// makeTargets makes the targets to which requests are passed on.
func (p *Proxy) makeTargets(klog.Logger) error {
	for target, variant := range map[*filters.Target]func(own *rest.Config) *rest.Config{
		&p.asWrapper: rest.CopyConfig, &p.asCaller: rest.AnonymousClientConfig,
	} {
		ordinary, upgrade, err := p.config.Connection.Transports(variant)
		if err != nil {
			return err
		}
		*target = filters.Target{
			URL: p.config.Connection.Server(), Transport: ordinary, UpgradeTransport: upgrade,
			Link: p.link, Stopping: p.stopping,
		}
	}
	return nil
}

// makeLimits makes the limits of clients, and the metrics.
func (p *Proxy) makeLimits(klog.Logger) error {
	p.connections = quota.New(cmp.Or(p.config.MaxConnections, DefaultMaxConnections))
	p.watches = quota.New(cmp.Or(p.config.MaxWatches, DefaultMaxWatches))
	p.listBytes = quota.New(cmp.Or(p.config.MaxListBytes, DefaultMaxListBytes))
	p.metrics = newMetrics(p)
	p.metrics.registerQuotas(p)
	return nil
}

// makeAutonomy makes the parts that watch nodes and pods of the site without the upstream.
func (p *Proxy) makeAutonomy(klog.Logger) error {
	if p.config.Autonomy != nil {
		p.autonomy = deadnodes.New(deadnodes.Config{
			Options:       *p.config.Autonomy,
			NodeName:      p.config.NodeName,
			Nodes:         p.facts,
			ListAddresses: p.upstream.ListAddresses,
			PollDone:      func(err error) { countAnswer(p.metrics.autonomyPolls, err) },
		})
	}
	if p.config.NodeName != "" {
		p.makeExchange()
		p.makeLivePods()
	}
	return nil
}

// memoryInterval is how often returnMemory checks whether the process is idle: it is if there was no garbage collection
// in that time.
const memoryInterval = 15 * time.Second

// returnMemory returns memory to the operating system after the cache was filled, and later after bursts. The lists
// that fill the cache are several times as large as the cache, and a small node needs the memory. Go itself returns it
// only in the course of further allocations, which may never happen.
func (p *Proxy) returnMemory(ctx context.Context) {
	select {
	case <-p.facts.Live():
		debug.FreeOSMemory()
	case <-ctx.Done():
		return
	}
	collections := []runtimemetrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	var before, given uint64
	wait.UntilWithContext(ctx, func(context.Context) {
		runtimemetrics.Read(collections)
		now := collections[0].Value.Uint64()
		if now == before && now != given {
			debug.FreeOSMemory()
			runtimemetrics.Read(collections)
			now = collections[0].Value.Uint64()
			given = now
		}
		before = now
	}, memoryInterval)
}

// checkAlive fails if the facts are deadlocked, or if the listener does not answer. The listener is not tried if it
// requires client certificates, because the wrapper has none.
func (p *Proxy) checkAlive(ctx context.Context, address net.Addr) error {
	p.facts.NodeExists(p.config.NodeName)
	if p.config.TLS != nil && p.config.TLS.ClientCA != "" {
		return nil
	}
	scheme := "http"
	if p.config.TLS != nil {
		scheme = "https"
	}
	return systemd.CheckAnswer(ctx, scheme+"://"+address.String()+"/livez")
}

// Run serves until ctx is done, and then lets running requests end. It returns an error if it cannot listen or serve.
func (p *Proxy) Run(ctx context.Context) error {
	listener, err := listen.TCP(ctx, "--bind-address "+p.config.BindAddress, p.config.BindAddress)
	if err != nil {
		return err
	}
	return p.serve(ctx, listener)
}

// serve does what Run does, on a listener, which it closes.
func (p *Proxy) serve(ctx context.Context, listener net.Listener) error {
	logger := klog.FromContext(ctx)
	if p.config.NodeName == "" {
		logger.Info("No --hostname: this node belongs to no site, Services with topologyKeys will have no " +
			"endpoints here")
	}
	// This process has the port, so no other one uses the state directory.
	p.openStateDir(logger)
	p.openViews(logger)
	background, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		wg.Wait()
		p.closeStateDir(logger)
	}()
	for _, run := range p.runners(listener.Addr()) {
		wg.Go(func() { run(background) })
	}
	server := p.makeServer(klog.NewContext(context.WithoutCancel(ctx), logger))
	logger.Info("Serving", "address", listener.Addr().String(), "tls", p.tls != nil, "node", p.config.NodeName,
		"upstream", p.asWrapper.URL.Redacted())
	bounded := &quota.Listener{Listener: listener, Quota: p.connections, Logger: logger}
	served := make(chan error, 1)
	go func() {
		if p.tls != nil {
			served <- server.ServeTLS(bounded, "", "")
		} else {
			served <- server.Serve(bounded)
		}
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serving on %s: %w", p.config.BindAddress, err)
	case <-ctx.Done():
	}
	logger.Info("Stopping: watches end, requests under way may finish", "atMost", gracePeriod)
	p.stop()
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), gracePeriod)
	defer done()
	if err := server.Shutdown(grace); err != nil {
		logger.Info("Cutting off requests that did not end in time", "reason", err)
		err = server.Close()
		if err != nil && !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("stopping: %w", err)
		}
	}
	return nil
}

// runners returns the functions that run next to the server, each until its context is done. address is that of the
// server.
func (p *Proxy) runners(address net.Addr) []func(context.Context) {
	runners := []func(context.Context){p.upstream.Run, p.returnMemory, p.serveSnapshot}
	for _, c := range p.serverConnections() {
		runners = append(runners, c.Run, c.Link().Run)
	}
	if snapshots := p.snapshots.Load(); snapshots != nil {
		runners = append(runners, snapshots.Run)
	}
	if p.keptAnswers != nil {
		runners = append(runners, p.keptAnswers.Run)
	}
	if p.autonomy != nil {
		runners = append(runners, p.autonomy.Run)
	}
	if p.livePods != nil {
		runners = append(runners, p.livePods.Run)
	}
	if p.config.Runtime == nil {
		runners = append(runners, p.noteBoot)
	}
	if p.exchange != nil {
		runners = append(runners, p.exchange.Run,
			func(ctx context.Context) { p.upstream.FollowSite(ctx, p.addressUnknown) })
	}
	if address := p.config.MetricsAddress; address != "" {
		runners = append(runners, metricsport.Port{Address: address, Metrics: p.metrics.handler()}.Run)
	}
	if p.certificate != nil {
		runners = append(runners, func(ctx context.Context) {
			wait.NonSlidingUntilWithContext(ctx, p.certificate.advance, certificateInterval)
		})
	}
	return append(runners, func(ctx context.Context) {
		systemd.Notify(ctx, systemd.Program{
			Alive: func(ctx context.Context) error { return p.checkAlive(ctx, address) },
			Status: func() string {
				report := p.report()
				return report.Summary()
			},
		})
	})
}

// openViews makes the views from which clients are served. Their histories begin above every revision of an earlier
// process.
func (p *Proxy) openViews(logger klog.Logger) {
	options := view.Options{
		Facts: p.facts, Viewer: view.Node(p.config.NodeName),
		History:       history.Options{Revisions: p.revisions, JSON: history.NewJSONCache(history.DefaultJSONBytes)},
		LocalEndpoint: p.config.LocalEndpoint, KeepKubernetesEndpoint: !p.config.RewriteKubernetes,
		Logger: logger.WithName("view"),
	}
	p.view = view.New(options)
	p.sites = view.NewSites(options)
	if snapshots := p.snapshots.Load(); snapshots != nil {
		snapshots.Source = p.view
	}
}

// makeServer makes the server of requests, whose contexts come from base.
func (p *Proxy) makeServer(base context.Context) *http.Server {
	server := &http.Server{
		Handler: p.chain(),
		// OPTIONS * passes the filters like all other requests.
		DisableGeneralOptionsHandler: true,
		ConnContext:                  quota.WithCaller,
		// A client that sends its request byte by byte occupies a connection no longer than this.
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          klog.NewStandardLogger("INFO"),
		BaseContext:       func(net.Listener) context.Context { return base },
	}
	if p.tls != nil {
		server.TLSConfig = p.tls.config()
	}
	return server
}
