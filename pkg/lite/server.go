package lite

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/health"
	"github.com/application-grid/application-grid/pkg/program/listen"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/program/systemd"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
)

// Config configures a Server.
type Config struct {
	// Kubeconfig is the kubelet's own kubeconfig for kube-apiserver, with the node's certificate.
	Kubeconfig string
	// Address is where the kubelet is served, a host:port of the loopback. HealthAddress is that of /readyz and the
	// others, over plain HTTP; "" for none.
	Address, HealthAddress string
	// Dir has the store, the certificate and the kubelet's new kubeconfig.
	Dir string
	// SealKey is the key of 32 bytes with which the store is sealed; nil for none.
	SealKey []byte
	// MaxOfflineAge is how long after the last contact with kube-apiserver the kubelet is answered; 0 for no limit.
	MaxOfflineAge time.Duration
	// Accounts are ServiceAccounts that are also answered without kube-apiserver.
	Accounts []types.NamespacedName
	// Further is another address at which clients are served.
	Further Further
}

const (
	// gracePeriod is how long running requests may take when the process stops.
	gracePeriod = 2 * time.Second
	// maxRequests is how many requests of clients other than the kubelet may run at once, most of them watches, and how
	// many connections they may have at the further address.
	maxRequests = 1000
	// answersBytes is how many bytes of objects may be in answers to accounts that are not written yet. They are in
	// memory about three times.
	answersBytes = 8 << 20
	// recordsDir is in the kubelet's own directory (its --root-dir).
	recordsDir = "/var/lib/kubelet/image_manager/pulled"
	// healthConnections is how many connections the health address accepts.
	healthConnections = 50
)

// Server serves a kubelet. It passes requests to kube-apiserver, or answers them from a Store while that is away.
type Server struct {
	config     Config
	connection *apiclient.Connection
	listener   net.Listener
	// pair is the serving certificate, clientCAs are the CAs of clients' certificates.
	pair      atomic.Pointer[tls.Certificate]
	clientCAs atomic.Pointer[x509.CertPool]
	store     *Store
	follower  *follower
	link      *apiclient.Link
	metrics   *metrics
	// kubeletSeenAt is when the kubelet last sent a request, in seconds since 1970.
	kubeletSeenAt atomic.Int64
	// callers and tokens limit the requests of clients other than the kubelet: by the user or address that a request
	// comes from, who may make up any number of tokens, and by the token, as one user may run several accounts.
	callers, tokens *quota.Quota
	// answerBytes limits the bytes of the answers to accounts that are not written yet.
	answerBytes *quota.Quota
	// writeTimeout is how long an account may take to read such an answer.
	writeTimeout time.Duration
	// asKubelet and asCaller pass requests on with the node's certificate, and with the caller's own token.
	asKubelet, asCaller http.Handler
	// stop ends the context stopping when the process is about to end.
	stopping context.Context //nolint:containedctx // an event to react to, not the context of a call
	stop     context.CancelFunc

	// explained is the last result of explain.
	explained atomic.Pointer[Explanation]

	// mu guards the fields below.
	mu   sync.Mutex
	disk *store.Store
	// diskErr is why the disk does not have the newest state; nil if it has. unwritten is why the kubelet's files could
	// not be written.
	diskErr, unwritten error
}

// New makes a Server, and reads its store. Its errors say what to change.
func New(config Config, logger klog.Logger) (*Server, error) {
	connection, err := apiclient.Options{Program: "lite-apiserver", Kubeconfig: config.Kubeconfig, QPS: 50, Burst: 100,
		PassesOn: true}.Connect()
	if err != nil {
		return nil, err
	}
	certificate, err := kubeletCertificate(config.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", config.Kubeconfig, err)
	}
	if connection.Server().Host == config.Address {
		return nil, fmt.Errorf("--kubeconfig %s names this server: give the kubelet's own, from before it was pointed "+
			"here", config.Kubeconfig)
	}
	s := &Server{config: config, connection: connection, link: connection.Link(),
		callers: quota.New(maxRequests), tokens: quota.New(maxRequests), answerBytes: quota.New(answersBytes),
		writeTimeout: serve.DefaultWriteTimeout, store: newStore(nodeOf(certificate.Subject))}
	s.link.RequireNode(s.store.node)
	s.store.allow(config.Accounts)
	if config.MaxOfflineAge > 0 {
		s.store.contactPrecision = min(maxContactPrecision, config.MaxOfflineAge/10)
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	if err := s.useCA(); err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", config.Kubeconfig, err)
	}
	connection.OnChange(func() {
		if err := s.useCA(); err != nil {
			logger.Error(err, "Cannot use the new CA of the kubeconfig, continuing with the last one")
		}
		s.writeKubeletFiles(logger) // a certificate in the kubeconfig may be new
	})
	if s.listener, err = listen.TCP(context.Background(), "--port", config.Address); err != nil {
		return nil, err
	}
	if err = s.openDisk(logger); err == nil {
		err = s.makeUpstreamClients()
	}
	if err != nil {
		return nil, errors.Join(err, s.disk.Close(), s.listener.Close())
	}
	s.metrics = newMetrics(s)
	return s, nil
}

// makeUpstreamClients makes what asks kube-apiserver.
func (s *Server) makeUpstreamClients() (err error) {
	if s.follower, err = newFollower(s.store, s.connection); err != nil {
		return err
	}
	if s.asKubelet, err = s.forward(rest.CopyConfig, s.settleRemoval); err != nil {
		return err
	}
	s.asCaller, err = s.forward(rest.AnonymousClientConfig, s.noteRead)
	return err
}

// forward makes a handler that passes requests on. variant selects which of the node's own credentials it uses.
func (s *Server) forward(
	variant func(*rest.Config) *rest.Config, answered func(asked *http.Request, answer *http.Response),
) (http.Handler, error) {
	ordinary, upgrade, err := s.connection.Transports(variant)
	if err != nil {
		return nil, err
	}
	forward := filters.Forward(filters.Target{URL: s.connection.Server(), Transport: ordinary,
		UpgradeTransport: upgrade, Link: s.link, Stopping: s.stopping,
		Answered: func(asked *http.Request, answer *http.Response) error {
			if s.isGateways(asked, answer) { // the link is suspected by now
				return errors.New("what answers is not kube-apiserver")
			}
			answered(asked, answer)
			return nil
		}})
	return filters.WithoutFalseUpgrades()(forward), nil
}

// isGateways reports whether a client would take the answer of a gateway for kube-apiserver's word on objects. An empty
// list would remove the node's pods, and a page with 404 would say that a Secret does not exist. (With such a page
// kube-apiserver says only that it does not serve a resource.)
func (s *Server) isGateways(asked *http.Request, answer *http.Response) bool {
	info, code := serve.ParseRequest(asked), answer.StatusCode
	return info.Resource != "" && slices.Contains([]string{"", "status", "token"}, info.Subresource) &&
		(code < http.StatusBadRequest || code == http.StatusNotFound && s.store.kindOf(info, kind{}) != nil) &&
		apiclient.MayBeGateways(answer)
}

// httpServer makes the server of a TLS address.
func (s *Server) httpServer(
	ctx context.Context, address string, get func(*tls.ClientHelloInfo) (*tls.Certificate, error),
) *http.Server {
	return &http.Server{Addr: address, Handler: s, TLSConfig: s.tlsConfig(get), ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout: 3 * time.Minute, ErrorLog: newErrorLog(klog.Info), ConnContext: quota.WithCaller,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) }}
}

// errorLog passes on the first of the messages of each second: each connection that ends before its handshake causes
// one, and who opens thousands of them should not wear out flash.
type errorLog struct {
	rate.Sometimes

	to func(...any)
}

func newErrorLog(to func(...any)) *log.Logger {
	return log.New(&errorLog{rate.Sometimes{Interval: time.Second}, to}, "", 0)
}

// Write implements io.Writer.
func (l *errorLog) Write(message []byte) (int, error) {
	l.Do(func() { l.to(string(message)) })
	return len(message), nil
}

// ServeHTTP implements http.Handler. The kubelet is the client with a certificate of the cluster's CA for this node.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var chains [][]*x509.Certificate
	if r.TLS != nil {
		chains = r.TLS.VerifiedChains
	}
	isKubelet := len(chains) > 0 && nodeOf(chains[0][0].Subject) == s.store.node
	if isKubelet {
		quota.Keep(r.Context())
	}
	switch {
	case isKubelet && r.URL.Path == ExplainPath:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.explained.Load()) //nolint:errchkjson // it has texts; the client may be gone
	case isKubelet:
		s.serveKubelet(w, r)
	case r.TLS == nil || len(chains) > 0 || bearerOf(r) == "":
		serve.WriteError(w, r, apierrors.NewUnauthorized("this is the API server of node "+s.store.node+"'s kubelet: "+
			"show the node's certificate, or a token"))
	default: // kube-apiserver judges the token
		s.serveCaller(w, r)
	}
}

func (s *Server) serveKubelet(w http.ResponseWriter, r *http.Request) {
	s.kubeletSeenAt.Store(time.Now().Unix())
	noted, err := s.noteDelete(w, r)
	if err != nil {
		serve.WriteError(w, r, err)
		return
	}
	if back := s.link.AwayUntil(); back != nil {
		s.answerAway(w, noted, "", nil, back)
		return
	}
	if s.store.mustListAgain(noted) {
		serve.WriteError(w, r, apierrors.NewResourceExpired("a pod was left out of the last answers: list again"))
		return
	}
	s.asKubelet.ServeHTTP(w, noted)
}

// serveCaller serves a client other than the kubelet, if it has not too many requests already.
func (s *Server) serveCaller(w http.ResponseWriter, r *http.Request) {
	for places, key := range map[*quota.Quota]string{s.callers: quota.Caller(r.Context()), s.tokens: bearerOf(r)} {
		release, ok := places.Acquire(key)
		if !ok {
			serve.WriteError(w, r, apierrors.NewTooManyRequests("too many requests of this caller, or of all callers, "+
				"are under way", 1))
			return
		}
		defer release()
	}
	if back := s.link.AwayUntil(); back != nil {
		// Everyone but the holder of an account's token gets 503: a token that is not known here may be valid, and some
		// clients exit after a 401.
		account, err := s.store.authenticate(bearerOf(r))
		if err != nil {
			err = fmt.Errorf("kube-apiserver is away, and the token is not one that is answered without it: %w", err)
		} else {
			quota.Prefer(r.Context())
		}
		s.answerAway(w, r, account, err, back)
		return
	}
	s.asCaller.ServeHTTP(w, r)
}

// Run serves until ctx is done, or fails.
func (s *Server) Run(ctx context.Context) error {
	defer s.disk.Close()     // every commit was synced
	defer s.listener.Close() // if it is not served yet
	background, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	s.link.ProbeOnce(ctx) // before the kubelet asks
	for _, run := range []func(context.Context){
		s.serveOtherAddresses, s.link.Run, s.connection.Run, s.follower.Run, s.commitChanges, s.notify,
		s.updateCondition,
	} {
		wg.Go(func() { run(background) })
	}
	server := s.httpServer(ctx, s.config.Address, func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return s.pair.Load(), nil
	})
	klog.FromContext(ctx).Info("Serving the kubelet", "node", s.store.node, "address", s.listener.Addr().String(),
		"kubeconfig", filepath.Join(s.config.Dir, KubeletFile), "upstream", s.connection.Server().Redacted())
	served := make(chan error, 1)
	// Any number of connections that do not show the node's certificate must not keep the kubelet's out: they may be of
	// the same user.
	bounded := &quota.Listener{Listener: s.listener, Quota: quota.New(maxRequests), Logger: klog.FromContext(ctx),
		Replaces: true}
	go func() { served <- server.ServeTLS(bounded, "", "") }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.stop()
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), gracePeriod)
	defer done()
	if err := server.Shutdown(grace); err != nil {
		return server.Close()
	}
	return nil
}

// notify reports the state of the server to systemd.
func (s *Server) notify(ctx context.Context) {
	systemd.Notify(ctx, systemd.Program{
		Alive:  func(context.Context) error { return nil },
		Status: func() string { report := s.report(); return report.Summary() },
	})
}

// report returns whether the kubelet could start now without kube-apiserver.
func (s *Server) report() health.Report {
	var report health.Report
	if s.link.AwayUntil() == nil {
		report.Note("kube-apiserver answers")
	} else {
		report.Note("kube-apiserver is away, and the kubelet is answered from what is kept")
	}
	e := s.explained.Load()
	report.Reasons = e.Missing
	if e.NotOnDisk != "" {
		report.Note("%s", e.NotOnDisk)
	}
	if len(e.Missing) == 0 {
		report.Note("%s", e.Summary())
	}
	s.reportAccounts(&report)
	return report
}

// checkAge returns why the kubelet is not answered while kube-apiserver is away; nil if it is.
func (s *Server) checkAge() error {
	if s.config.MaxOfflineAge == 0 || s.link.AwayUntil() == nil {
		return nil
	}
	s.store.mu.Lock()
	age := time.Since(s.store.lastContact)
	s.store.mu.Unlock()
	switch {
	case age < 0:
		return errors.New("the clock is behind the time of the last contact with kube-apiserver, so that how long it " +
			"has been away is not known")
	case age > s.config.MaxOfflineAge:
		return fmt.Errorf("the last contact with kube-apiserver was %s ago, and after --max-offline-age=%s it may "+
			"have given the pods to other nodes", age.Round(time.Second), s.config.MaxOfflineAge)
	default:
		return nil
	}
}

// healthHandler serves /readyz and the others. On the loopback the Host header must name the loopback: otherwise a web
// page whose name resolves to the loopback could read the answers.
func (s *Server) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", health.Alive)
	mux.HandleFunc("GET /livez", health.Alive)
	mux.Handle("GET /readyz", health.Ready(s.report))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	loopback, err := filters.NewHosts(nil)
	if err != nil || !loopback.Contain(s.config.HealthAddress) {
		return mux
	}
	return filters.WithAllowedHosts(loopback)(mux)
}
