package quota

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/listen"
)

// Address is an address that a program serves besides its most important one. Another program may have it, or the node
// may get it only later.
type Address struct {
	// Server has the address. With a TLSConfig it is served once GetCertificate has a certificate.
	Server *http.Server
	// Flag is the flag that gives the address.
	Flag string
	// Connections is the largest number of connections.
	Connections int
	// Retry is the time between two attempts.
	Retry time.Duration
}

// Run serves the address until ctx is done. If it cannot, it logs that once, and tries again.
func (a Address) Run(ctx context.Context) {
	logger := klog.FromContext(ctx).WithValues("flag", a.Flag, "address", a.Server.Addr)
	defer context.AfterFunc(ctx, func() { _ = a.Server.Close() })()
	said := false
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		err := a.serve(ctx, logger)
		if ctx.Err() == nil && !said {
			logger.Error(err, "Cannot serve an address, trying again")
		}
		said = true
	}, a.Retry)
}

func (a Address) serve(ctx context.Context, logger klog.Logger) error {
	secure := a.Server.TLSConfig != nil
	if secure {
		if _, err := a.Server.TLSConfig.GetCertificate(nil); err != nil {
			return err
		}
	}
	listener, err := listen.TCP(ctx, a.Flag+" "+a.Server.Addr, a.Server.Addr)
	if err != nil {
		return err
	}
	logger.Info("Serving an address")
	bounded := &Listener{Listener: listener, Quota: New(a.Connections), Logger: logger}
	if secure {
		return a.Server.ServeTLS(bounded, "", "")
	}
	return a.Server.Serve(bounded)
}
