package metricsport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/await"
)

func metrics(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "some_metric 1\n") }

// begin serves on a port of the loopback until the test ends.
func begin(t *testing.T) (address string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.Background()))
	p := Port{Address: listener.Addr().String(), Metrics: http.HandlerFunc(metrics)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	patience.Until(t, "the port is served", func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return p.Address
}

var patience = await.Patience{Within: 20 * time.Second, Between: 5 * time.Millisecond}

// TestOnlyMetricsAreServed: whatever else the program knows is not for anyone who gets there.
func TestOnlyMetricsAreServed(t *testing.T) {
	t.Parallel()
	address := begin(t)
	for _, test := range []struct {
		method, path string
		code         int
	}{
		{http.MethodGet, "/metrics", http.StatusOK},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/readyz", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
		{http.MethodPost, "/metrics", http.StatusMethodNotAllowed},
	} {
		r, err := http.NewRequestWithContext(t.Context(), test.method, "http://"+address+test.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != test.code {
			t.Errorf("%s %s: %d, want %d", test.method, test.path, response.StatusCode, test.code)
		}
	}
}

// TestAPortThatIsTaken is logged, and tried again.
func TestAPortThatIsTaken(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) {
		select {
		case said <- line:
		default:
		}
	}, funcr.Options{}))
	p := Port{Address: taken.Addr().String(), Metrics: http.HandlerFunc(metrics), Retry: 5 * time.Millisecond}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	t.Cleanup(func() { <-ended })
	if line := <-said; !strings.Contains(line, "Cannot serve an address") {
		t.Errorf("the log says %s", line)
	}
	taken.Close()
	patience.Until(t, "the port that is free now is served", func() error {
		response, err := http.Get("http://" + p.Address + "/metrics")
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
}

// TestConnectionsAreBounded: half of the places are one caller's at most, so that another gets one.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	address := begin(t)
	open := 0
	for range 2 * maxScrapers {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", address)
		if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil && strings.Contains(line, "200 OK") {
			open++
		}
	}
	if open == 0 || open > maxScrapers {
		t.Errorf("%d connections are served", open)
	}
}

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	if err := CheckAddress(":8080"); err != nil {
		t.Errorf("got %v", err)
	}
	err := CheckAddress("8080")
	if addressError := (*net.AddrError)(nil); !errors.As(err, &addressError) ||
		!strings.Contains(err.Error(), "--metrics-bind-address") {
		t.Errorf("got %v", err)
	}
}
