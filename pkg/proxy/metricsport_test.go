package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// status asks for a path on an address, and returns the code and the body, or an error.
func status(ctx context.Context, address, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// TestMetricsAddress: a port that is taken keeps nobody from being served; when it is free there are metrics on it, and
// nothing else of the wrapper's.
func TestMetricsAddress(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	p, err := New(Config{
		Upstream: &rest.Config{Host: "http://127.0.0.1:1"}, BindAddress: "127.0.0.1:0", MetricsAddress: address,
	}, klog.Background())
	if err != nil {
		t.Fatal(err)
	}
	p.metricsPort.Retry = 5 * time.Millisecond
	said := &logBuffer{}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), said.logger()))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	soon.UntilQuiet(t, func() string {
		if log := said.String(); !strings.Contains(log, "Cannot serve metrics on their own address") {
			return "the log does not say that the port is taken: " + log
		}
		return ""
	})
	if code, _, err := status(t.Context(), listener.Addr().String(), "/livez"); err != nil || code != http.StatusOK {
		t.Errorf("the wrapper itself: %d, %v", code, err)
	}
	taken.Close()
	soon.UntilQuiet(t, func() string {
		code, body, err := status(t.Context(), address, "/metrics")
		if err != nil || code != http.StatusOK || !strings.Contains(body, "application_grid_wrapper_nodes") {
			return fmt.Sprintf("no metrics on the port that is free now: %d, %v", code, err)
		}
		return ""
	})
	for _, path := range []string{"/", "/readyz", "/livez", "/api/v1/services", "/debug/explain/default/kubernetes"} {
		if code, _, err := status(t.Context(), address, path); err != nil || code != http.StatusNotFound {
			t.Errorf("%s on the metrics' address: %d, %v", path, code, err)
		}
	}
}

func TestBadMetricsAddress(t *testing.T) {
	_, err := New(Config{Upstream: &rest.Config{}, BindAddress: "127.0.0.1:0", MetricsAddress: "51008"},
		klog.Background())
	if addressError := (*net.AddrError)(nil); !errors.As(err, &addressError) ||
		!strings.Contains(err.Error(), "--metrics-bind-address") {
		t.Errorf("got %v", err)
	}
}
