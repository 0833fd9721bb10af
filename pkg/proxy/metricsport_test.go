package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/freeport"
)

// TestMetricsAddress has the wrapper's metrics. What happens to its port is package metricsport's business.
func TestMetricsAddress(t *testing.T) {
	t.Parallel()
	port, err := freeport.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := startReady(t, smallCluster(), func(c *Config) { c.MetricsAddress = fmt.Sprintf("127.0.0.1:%d", port) })
	w.address = w.proxy.config.MetricsAddress
	soon.Until(t, "the address is served", func() error {
		response, err := http.Get("http://" + w.address + "/metrics")
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
	w.expect(http.StatusOK, "/metrics", "application_grid_wrapper_nodes")
	w.expect(http.StatusNotFound, "/api/v1/services")
}

func TestBadMetricsAddress(t *testing.T) {
	_, err := New(Config{BindAddress: "127.0.0.1:0", MetricsAddress: "51008"}, klog.Background())
	if err == nil || !strings.Contains(err.Error(), "--metrics-bind-address") {
		t.Errorf("got %v", err)
	}
}
