package metricsport

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/listen"
	"github.com/application-grid/application-grid/pkg/serve/quota"
)

const (
	// maxScrapers is the largest number of connections. A Prometheus keeps one.
	maxScrapers = 20
	// defaultRetry is how long after a failure a Port tries again to listen.
	defaultRetry = 10 * time.Second
)

// Port is an address for metrics.
type Port struct {
	// Address is host:port.
	Address string
	// Metrics answers GET /metrics.
	Metrics http.Handler
	// Retry is how long after a failure Run tries again; 0 means 10 seconds.
	Retry time.Duration
}

// CheckAddress returns an error that names the flag if an address is not host:port.
func CheckAddress(address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("--metrics-bind-address %q is not host:port: %w", address, err)
	}
	return nil
}

// Run serves until ctx is done. If the port is taken it logs that and tries again: a program without metrics is better
// than none.
func (p Port) Run(ctx context.Context) {
	p.Retry = cmp.Or(p.Retry, defaultRetry)
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := p.serve(ctx); ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot serve metrics on their own address, trying again",
				"address", p.Address, "after", p.Retry)
		}
	}, p.Retry)
}

func (p Port) serve(ctx context.Context) error {
	listener, err := listen.TCP(ctx, "--metrics-bind-address "+p.Address, p.Address)
	if err != nil {
		return err
	}
	return p.serveOn(ctx, listener)
}

// serveOn serves on a listener, which it closes, until ctx is done.
func (p Port) serveOn(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.Metrics)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 3 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: klog.NewStandardLogger("INFO"),
	}
	stop := context.AfterFunc(ctx, func() {
		if err := server.Close(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot close the metrics' own address", "address", p.Address)
		}
	})
	defer stop()
	return server.Serve(&quota.Listener{
		Listener: listener, Quota: quota.New(maxScrapers), Logger: klog.FromContext(ctx),
	})
}
