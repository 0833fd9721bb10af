package lite

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/application-grid/application-grid/pkg/serve/quota"
)

// Further is an address in addition to the loopback's, for pods that reach kube-apiserver by the ClusterIP of
// default/kubernetes.
type Further struct {
	// Address is a host:port of the node; "" for none.
	Address string
	// CertFile and KeyFile are the serving certificate there, of a CA that pods trust.
	CertFile, KeyFile string
}

// listenInterval is the time between two attempts to listen on the further address, which may appear late after a boot.
const listenInterval = 2 * time.Second

// certificate reads the serving certificate for each connection; there are few. While it cannot be read, the last one
// is used.
func (f Further) certificate() func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	var last atomic.Pointer[tls.Certificate]
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err == nil {
			last.Store(&pair)
		}
		if known := last.Load(); known != nil {
			return known, nil
		}
		return nil, err
	}
}

// serveOtherAddresses serves the further address and that of /readyz until ctx is done, once the node has them. The
// kubelet does not wait for them.
func (s *Server) serveOtherAddresses(ctx context.Context) {
	further := s.httpServer(ctx, s.config.Further.Address, s.config.Further.certificate())
	state := &http.Server{Addr: s.config.HealthAddress, Handler: s.healthHandler(), IdleTimeout: time.Minute,
		ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, address := range []quota.Address{
		{Server: further, Flag: "--bind-address", Connections: maxRequests, Retry: listenInterval},
		{Server: state, Flag: "--health-bind-address", Connections: healthConnections, Retry: listenInterval},
	} {
		if address.Server.Addr != "" {
			wg.Go(func() { address.Run(ctx) })
		}
	}
}
