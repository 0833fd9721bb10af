package lite

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/listen"
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
		if err != nil {
			if known := last.Load(); known != nil {
				return known, nil
			}
			return nil, err
		}
		last.Store(&pair)
		return &pair, nil
	}
}

// serveFurther serves the further address until ctx is done, once the node has it. The kubelet does not wait for it.
func (s *Server) serveFurther(ctx context.Context) {
	if s.config.Further.Address == "" {
		return
	}
	logger := klog.FromContext(ctx).WithValues("address", s.config.Further.Address)
	server := s.httpServer(ctx, s.tlsConfig(s.config.Further.certificate()))
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	said := false
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		err := s.config.Further.serve(ctx, server)
		if ctx.Err() == nil && !said {
			logger.Error(err, "Cannot serve pods, trying again")
		}
		said = true
	}, listenInterval)
}

func (f Further) serve(ctx context.Context, server *http.Server) error {
	if _, err := server.TLSConfig.GetCertificate(nil); err != nil {
		return err
	}
	listener, err := listen.TCP(ctx, "--bind-address", f.Address)
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	logger.Info("Serving pods", "address", f.Address)
	bounded := &quota.Listener{Listener: listener, Quota: quota.New(maxRequests), Logger: logger}
	return server.ServeTLS(bounded, "", "")
}

// httpServer makes the server of an address.
func (s *Server) httpServer(ctx context.Context, config *tls.Config) *http.Server {
	return &http.Server{Handler: s, TLSConfig: config, ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout: 3 * time.Minute, ErrorLog: klog.NewStandardLogger("INFO"), ConnContext: quota.WithCaller,
		BaseContext: func(net.Listener) context.Context {
			return klog.NewContext(context.WithoutCancel(ctx), klog.FromContext(ctx))
		}}
}
