package proxy

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestNamesNearTheHostname are told a minute after the start, if it is no node's by then.
func TestNamesNearTheHostname(t *testing.T) {
	reason := func(hostname string, ago time.Duration) string {
		t.Helper()
		p := newProxy(t, Config{NodeName: hostname})
		p.started = time.Now().Add(-ago)
		var nodes []*wire.Object
		for _, name := range []string{"edge-1", "edge-2", "cloud"} {
			nodes = append(nodes, wiretest.Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		}
		p.facts.Input("nodes").Replace(nodes)
		return p.unknownNode()
	}
	const tells = "; nodes with names near it: "
	if got := reason("edge-1.example.com", 30*time.Second); strings.Contains(got, tells) ||
		!strings.Contains(got, "wait for the node to register") {
		t.Errorf("after half a minute: %s", got)
	}
	if got := reason("edge-1.example.com", 2*time.Minute); !strings.HasSuffix(got, tells+"edge-1") {
		t.Errorf("with a domain: %s", got)
	}
	if got := reason("warehouse", 2*time.Minute); strings.Contains(got, tells) {
		t.Errorf("with nothing near: %s", got)
	}
}
