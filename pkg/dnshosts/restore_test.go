package dnshosts

import (
	"fmt"
	"net/http/httptest"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestFollowsARestore: the file has the names of an API server that was set back to a backup: that of a pod which the
// backup does not have is gone, and a new one is there, though its version is lower than what the daemon knew.
func TestFollowsARestore(t *testing.T) {
	api := upstreamtest.New()
	server := httptest.NewServer(api)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	labels := map[string]string{v1.LabelGridUniqKey: "zone1", discoveryv1.LabelServiceName: "demo-svc"}
	put := func(ordinal int) {
		pod := fmt.Sprint("demo-east-", ordinal)
		api.Put(&discoveryv1.EndpointSlice{
			ObjectMeta: meta("default", pod, "", labels), AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{fmt.Sprint("10.0.0.", ordinal+1)}, Hostname: &pod,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod},
			}},
		})
	}
	api.Put(&corev1.Node{ObjectMeta: meta("", "node0", "n", map[string]string{"zone1": "east"})})
	api.Put(&corev1.Service{ObjectMeta: meta("default", "demo-svc", "s", labels)})
	put(0)
	path := filepath.Join(t.TempDir(), "hosts")
	startDaemon(t, server.URL, path)
	eventually(t, "the names are there", fileIs(path, block(east0)))

	backup := api.Backup()
	for range 10 {
		api.Put(&corev1.Node{ObjectMeta: meta("", "elsewhere", "e", nil)}) // so that the version is passed late
	}
	put(1)
	eventually(t, "the name that will be lost is there", fileIs(path, block(east0, east1)))
	api.Restore(backup)
	eventually(t, "the lost name is gone", fileIs(path, block(east0)))
	put(1)
	eventually(t, "the new name is there", fileIs(path, block(east0, east1)))
}
