package snapshot

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
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
	return sliceOf(service, address, "10.1.1.1", 0)
}

// sliceOf has an endpoint with each of the addresses.
func sliceOf(service, here, elsewhere string, generation int64) *wire.Object {
	s := wiretest.SliceOf(service+"-1", service, "node0", "node1")
	s.Generation = generation
	s.Endpoints[0].Addresses, s.Endpoints[1].Addresses = []string{here}, []string{elsewhere}
	return wiretest.Object(s)
}

// liveStore is node0's, with that many governed Services.
func liveStore(tb testing.TB, services int) *storagetest.Node {
	tb.Helper()
	s := emptyStore(0)
	fill(tb, s, services)
	return s
}

// emptyStore is node0's, which knows nothing yet. Its process begins above the given revision.
func emptyStore(after uint64) *storagetest.Node {
	return storagetest.New(storagetest.Options{NodeName: "node0", KeepKubernetesEndpoint: true, After: after})
}

func fill(tb testing.TB, s *storagetest.Node, services int) {
	tb.Helper()
	svcs, slices := objects(tb, services)
	s.NodeLabels().Replace([]*wire.Object{node(tb, "node0", "a", ""), node(tb, "node1", "b", "")})
	s.OwnNode().Replace([]*wire.Object{node(tb, "node0", "a", "")})
	s.Services().Replace(svcs)
	s.EndpointSlices().Replace(slices)
}

// objects are that many governed Services and their slices.
func objects(tb testing.TB, services int) (svcs, slices []*wire.Object) {
	tb.Helper()
	for i := range services {
		name := fmt.Sprintf("s%03d", i)
		svcs = append(svcs, wiretest.Service(name, `["zone"]`))
		slices = append(slices, slice(tb, name, fmt.Sprintf("10.0.%d.%d", i>>8, i&255)))
	}
	return svcs, slices
}

// largeStore is one whose snapshot has about 1 MiB.
func largeStore(tb testing.TB) *storagetest.Node {
	tb.Helper()
	s := liveStore(tb, 3)
	for i := range 16 {
		s.Services().Apply(large(i, 0))
	}
	return s
}

// large is a Service that does not compress.
func large(i, seed int) *wire.Object {
	incompressible := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(i), byte(seed), byte(seed >> 8)}).Read(incompressible)
	return wiretest.Object(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("large", i),
			Annotations: map[string]string{"large": string(incompressible)},
		},
	})
}

func state(tb testing.TB, s *storagetest.Node) *facts.Snapshot {
	tb.Helper()
	state, err := s.View.Snapshot("node0", epoch)
	if err != nil {
		tb.Fatal(err)
	}
	return state
}

// shown is what a Node serves, as text.
func shown(tb testing.TB, s *storagetest.Node) string {
	tb.Helper()
	text := ""
	for _, r := range []*served.Resource{served.Services, served.EndpointSlices, served.Nodes} {
		objects, _, err := s.History.List(r, "", 0)
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

// open opens a directory for node0 until the test ends, or it is closed.
func open(tb testing.TB, path string) (d *Dir, state *facts.Snapshot, minRevision uint64) {
	tb.Helper()
	return openAs(tb, path, "node0", epoch)
}

func openAs(tb testing.TB, path, nodeName string, now time.Time) (d *Dir, state *facts.Snapshot, minRevision uint64) {
	tb.Helper()
	d, state, minRevision, err := Open(Options{Path: path, NodeName: nodeName, Logger: logr.Discard(),
		Clock: clocktesting.NewFakeClock(now)})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeDir(tb, d) })
	return d, state, minRevision
}

// closeDir lets the next one open the directory. A second time it does nothing.
func closeDir(tb testing.TB, d *Dir) {
	tb.Helper()
	if err := d.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		tb.Fatal(err)
	}
}

// loaded is what a process finds that has node0's directory for a moment.
func loaded(tb testing.TB, path string) *facts.Snapshot {
	tb.Helper()
	d, state, _ := open(tb, path)
	closeDir(tb, d)
	return state
}

// saved is a directory with a snapshot of a Node, which no process has open.
func saved(tb testing.TB, s *storagetest.Node) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "state")
	d, _, _ := open(tb, path)
	save(tb, d, state(tb, s), s.History.Revision())
	closeDir(tb, d)
	return path
}

func save(tb testing.TB, d *Dir, state *facts.Snapshot, revision uint64) {
	tb.Helper()
	if written, err := d.Save(state, revision); err != nil || !written {
		tb.Fatalf("written %v, %v", written, err)
	}
}

func sectionOf(state *facts.Snapshot, input string) *facts.Section {
	for i := range state.Sections {
		if state.Sections[i].Input == input {
			return &state.Sections[i]
		}
	}
	return nil
}

// kept is what the store of a directory has, which another process may have open.
func kept(tb testing.TB, path string) map[string][]byte {
	tb.Helper()
	all, problems := store.Read(path, nil)
	if len(problems) > 0 {
		tb.Fatal(problems)
	}
	return all
}

// change changes what the store of a directory has; a nil value removes a key.
func change(tb testing.TB, path string, changes map[string][]byte) {
	tb.Helper()
	all := kept(tb, path)
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, value []byte) bool { return value == nil })
	s, _, problems := store.Open(store.Options{Dir: path, Lasting: isLasting, HourlyBytes: HourlyBytes,
		State: func() iter.Seq2[string, []byte] { return maps.All(all) }})
	if err := errors.Join(errors.Join(problems...), s.Rewrite(), s.Close()); err != nil {
		tb.Fatal(err)
	}
}
