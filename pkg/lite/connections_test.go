package lite

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// TestErrorLog has few messages, however many connections end before their handshake.
func TestErrorLog(t *testing.T) {
	t.Parallel()
	var lines atomic.Int64
	f := newFixture(t)
	server, err := New(f.config, klog.Background())
	f.must(err)
	defer server.disk.Close()
	https := server.httpServer(t.Context(), "", func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return server.pair.Load(), nil
	})
	logged, ok := https.ErrorLog.Writer().(*errorLog)
	if !ok {
		t.Fatalf("it writes to %T", https.ErrorLog.Writer())
	}
	logged.to = func(...any) { lines.Add(1) }
	began := time.Now()
	go func() { _ = https.ServeTLS(server.listener, "", "") }()
	defer https.Close()
	for range 500 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.config.Address)
		f.must(err)
		f.must(c.Close())
	}
	patience.Until(t, "the first is logged", func() error {
		if lines.Load() == 0 {
			return errors.New("none is")
		}
		return nil
	})
	if n, most := lines.Load(), int64(time.Since(began).Seconds())+1; n > most {
		t.Errorf("%d messages, want at most %d", n, most)
	}
}

// TestWatchOfAnAccountSurvivesAFlood: connections of the same user that say nothing do not end the watch of an account.
func TestWatchOfAnAccountSurvivesAFlood(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start()
	f.followed()
	config := rest.AnonymousClientConfig(f.kubelet())
	config.BearerToken = "x"
	config.Dial = (&net.Dialer{}).DialContext
	watch, err := f.clientFor(config).CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	f.must(err)
	defer watch.Stop()
	for range maxRequests {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.config.Address)
		f.must(err)
		t.Cleanup(func() { _ = c.Close() })
	}
	select {
	case event, ok := <-watch.ResultChan():
		t.Errorf("the watch has ended: %v, %v", event, ok)
	case <-time.After(2 * time.Second): // it would end as soon as the connections are accepted
	}
}
