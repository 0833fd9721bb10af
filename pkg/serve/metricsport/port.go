package metricsport

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

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
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.Metrics)
	quota.Address{Flag: "--metrics-bind-address", Connections: maxScrapers, Retry: cmp.Or(p.Retry, defaultRetry),
		Server: &http.Server{
			Addr: p.Address, Handler: mux, ReadHeaderTimeout: 30 * time.Second, WriteTimeout: time.Minute,
			IdleTimeout: 3 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: klog.NewStandardLogger("INFO"),
		}}.Run(ctx)
}
