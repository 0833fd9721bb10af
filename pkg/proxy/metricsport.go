package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/quota"
)

const (
	// maxScrapers is the most connections to the metrics' own address. A Prometheus keeps one.
	maxScrapers = 20
	// defaultMetricsRetry is how long after a failure the wrapper tries again to listen on the metrics' own address.
	defaultMetricsRetry = 10 * time.Second
)

// metricsHandler returns the handler of /metrics. It does not compress: a compressor makes a megabyte of garbage at
// every scrape, and the response is small.
func (p *Proxy) metricsHandler() http.Handler {
	return promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// serveMetrics serves only /metrics, on an address of its own, until ctx is done. It is for a Prometheus on another
// node. If the port is taken, the wrapper serves kube-proxy nevertheless, and tries again.
func (p *Proxy) serveMetrics(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for {
		err := p.serveMetricsOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Cannot serve metrics on their own address, trying again",
			"address", p.config.MetricsAddress, "after", p.metricsRetry)
		select {
		case <-ctx.Done():
			return
		case <-time.After(p.metricsRetry):
		}
	}
}

func (p *Proxy) serveMetricsOnce(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.config.MetricsAddress)
	if err != nil {
		return fmt.Errorf("--metrics-bind-address %s: %w", p.config.MetricsAddress, err)
	}
	return p.serveMetricsOn(ctx, listener)
}

// serveMetricsOn does what serveMetricsOnce does, on a listener, which it closes.
func (p *Proxy) serveMetricsOn(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metricsHandler())
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 3 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: klog.NewStandardLogger("INFO"),
	}
	stop := context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot close the metrics' own address",
				"address", p.config.MetricsAddress)
		}
	})
	defer stop()
	return server.Serve(&quota.Listener{
		Listener: listener,
		Quota:    quota.New(maxScrapers),
		Logger:   klog.FromContext(ctx),
	})
}
