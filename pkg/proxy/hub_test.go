package proxy

import (
	"net/http"
	"strings"
	"testing"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

// TestBehindAHub: what is served and said where the share of this node is followed.
func TestBehindAHub(t *testing.T) {
	t.Parallel()
	cluster := smallCluster()
	w := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, hubv1alpha1.GroupVersionPath) {
			cluster.ServeShare(w, r)
			return
		}
		if !strings.Contains(r.URL.Path, "endpoints") && r.Method != http.MethodPost { // a probe
			t.Errorf("the API server is asked for %s", r.URL.Path)
		}
		cluster.ServeHTTP(w, r)
	}), func(c *Config) { c.Hub = true })
	w.expectReady()
	w.expectReadyz(http.StatusOK, "[+] share: ok")
	w.expect(http.StatusOK, "/api/v1/services", "ServiceList")
	// What a hub does not give is not told as if there were none.
	for _, path := range []string{
		"/superedge-ingress/b/apis/discovery.k8s.io/v1/endpointslices", "/debug/explain/default/a?node=node1",
	} {
		w.expect(http.StatusServiceUnavailable, path, "own node's share only")
	}
	w.expect(http.StatusOK, "/metrics", "application_grid_wrapper_upstream_up{source=\"share\"} 1\n")
}
