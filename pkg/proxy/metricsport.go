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
	// maxScrapers bounds the connections to the metrics' own address. A Prometheus keeps one.
	maxScrapers = 20
	// defaultMetricsRetry is how long after a failure the metrics' own address is tried again.
	defaultMetricsRetry = 10 * time.Second
)

// metricsHandler answers with the wrapper's metrics. A compressor is a megabyte of garbage with every scrape, and the
// answer is small.
func (p *Proxy) metricsHandler() http.Handler {
	return promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// serveMetrics serves /metrics on an address of its own, and nothing else, until ctx is done: for a Prometheus that is
// not on this node. A port that is taken does not keep kube-proxy from being served; it is tried again.
func (p *Proxy) serveMetrics(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for {
		err := p.serveMetricsOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		logger.Error(err, "Cannot serve metrics on their own address, trying again", "address", p.config.MetricsAddress, "after", p.metricsRetry)
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

// serveMetricsOn is serveMetricsOnce on a listener, which it closes.
func (p *Proxy) serveMetricsOn(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metricsHandler())
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 3 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: klog.NewStandardLogger("INFO"),
	}
	stop := context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot close the metrics' own address", "address", p.config.MetricsAddress)
		}
	})
	defer stop()
	return server.Serve(&quota.Listener{Listener: listener, Quota: quota.New(maxScrapers), Logger: klog.FromContext(ctx)})
}
