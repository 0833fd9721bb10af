package snapshot

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage"
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func node(tb testing.TB, name, zone, heartbeat string) *wire.Object {
	tb.Helper()
	return wiretest.Object(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Message: heartbeat}}},
	})
}

// slice has an endpoint on each of node0 and node1.
func slice(tb testing.TB, service, address string) *wire.Object {
	tb.Helper()
	return wiretest.Object(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: service + "-1", UID: types.UID(service), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{address}, NodeName: ptr.To("node0")}, {Addresses: []string{"10.1.1.1"}, NodeName: ptr.To("node1")},
		},
	})
}

// liveStore is node0's, with that many governed Services.
func liveStore(tb testing.TB, services int) *storage.Store {
	tb.Helper()
	s := storage.New(storage.Options{NodeName: "node0", KeepKubernetesEndpoint: true})
	fill(tb, s, services)
	return s
}

func fill(tb testing.TB, s *storage.Store, services int) {
	tb.Helper()
	var svcs, slices []*wire.Object
	for i := range services {
		name := fmt.Sprintf("s%03d", i)
		svcs = append(svcs, wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Annotations: map[string]string{"topologyKeys": `["zone"]`},
		}}))
		slices = append(slices, slice(tb, name, fmt.Sprintf("10.0.%d.%d", i>>8, i&255)))
	}
	s.NodeLabels().Replace([]*wire.Object{node(tb, "node0", "a", ""), node(tb, "node1", "b", "")})
	s.Node().Replace([]*wire.Object{node(tb, "node0", "a", "")})
	s.Services().Replace(svcs)
	s.EndpointSlices().Replace(slices)
}

// largeStore is one whose snapshot has about 1 MiB.
func largeStore(tb testing.TB) *storage.Store {
	tb.Helper()
	s := liveStore(tb, 3)
	random := rand.NewChaCha8([32]byte{})
	for i := range 16 {
		incompressible := make([]byte, 64<<10)
		_, _ = random.Read(incompressible)
		s.Services().Apply(wiretest.Object(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("large", i), Annotations: map[string]string{"large": string(incompressible)}},
		}))
	}
	return s
}

func state(tb testing.TB, s *storage.Store) *storage.State {
	tb.Helper()
	state, err := s.State(epoch, false)
	if err != nil {
		tb.Fatal(err)
	}
	return state
}

// shown is what a Store serves, as text.
func shown(tb testing.TB, s *storage.Store) string {
	tb.Helper()
	text := ""
	for _, r := range []*storage.Resource{storage.Services, storage.EndpointSlices, storage.Nodes} {
		objects, _, err := s.List(r, "")
		if err != nil {
			tb.Fatalf("%s: %v", r.Resource, err)
		}
		for _, o := range objects {
			typed, err := o.Decode()
			if err != nil {
				tb.Fatal(err)
			}
			typed.(metav1.Object).SetResourceVersion("")
			text += fmt.Sprintf("%v\n", typed)
		}
	}
	return text
}

func open(tb testing.TB, path string) *Dir {
	tb.Helper()
	d, err := Open(path, "node0", logr.Discard())
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// saved is a directory with a snapshot of a Store.
func saved(tb testing.TB, s *storage.Store) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "state")
	d := open(tb, path)
	d.Load()
	if _, err := d.Save(state(tb, s), s.Revision(), epoch); err != nil {
		tb.Fatal(err)
	}
	return path
}

func names(tb testing.TB, path string) []string {
	tb.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		tb.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
