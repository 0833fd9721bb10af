package view_test

// Each test begins with a cluster of two zones, gives it nodes, Services and slices as package wiretest writes them,
// and looks at what this node is shown, and told.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// nodesShown is which nodes' endpoints a slice shows.
func nodesShown(t *testing.T, h *history.History, name string) string {
	t.Helper()
	var nodes []string
	for _, e := range shownAs[*discoveryv1.EndpointSlice](t, h, served.EndpointSlices, name).Endpoints {
		nodes = append(nodes, *e.NodeName)
	}
	return strings.Join(nodes, ",")
}

// syncedStore has two nodes per zone, of which node-a1 is this one, and no objects.
func syncedStore(tb testing.TB, options storagetest.Options) *storagetest.Node {
	tb.Helper()
	options.NodeName = "node-a1"
	options.KeepKubernetesEndpoint = true
	s := storagetest.New(options)
	s.NodeLabels().Replace([]*wire.Object{
		wiretest.Node("node-a1", "a"), wiretest.Node("node-a2", "a"), wiretest.Node("node-b1", "b"),
		wiretest.Node("node-b2", "b"),
	})
	s.Services().Replace(nil)
	s.EndpointSlices().Replace(nil)
	return s
}

func statsOf(t *testing.T, s *storagetest.Node, r *served.Resource) history.Stats {
	t.Helper()
	for _, stats := range s.History.Stats() {
		if stats.Resource == r {
			return stats
		}
	}
	t.Fatalf("there are no figures of %s", r.Resource)
	return history.Stats{}
}

func nodeSet(names ...string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, name := range names {
		set[name] = struct{}{}
	}
	return set
}

// addressesShown is which nodes' addresses Endpoints show, those that are not ready in brackets.
func addressesShown(t *testing.T, s *storagetest.Node, name string) string {
	t.Helper()
	var nodes []string
	for _, subset := range shownAs[*corev1.Endpoints](t, s.History, served.Endpoints, name).Subsets {
		for _, a := range subset.Addresses {
			nodes = append(nodes, *a.NodeName)
		}
		for _, a := range subset.NotReadyAddresses {
			nodes = append(nodes, "("+*a.NodeName+")")
		}
	}
	return strings.Join(nodes, ",")
}

// inNS is the name of an object in namespace ns.
func inNS(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

// shownAs is what is shown of an object in namespace ns.
func shownAs[T served.Typed](t *testing.T, h *history.History, r *served.Resource, name string) T {
	t.Helper()
	o, err := h.Get(r, inNS(name), 0)
	if err != nil || o == nil {
		t.Fatalf("%s %s: got %v, %v", r.Resource, name, o, err)
	}
	return decoded[T](t, o)
}

func decoded[T served.Typed](t *testing.T, o *history.Object) T {
	t.Helper()
	typed, err := o.Decode()
	if err != nil {
		t.Fatal(err)
	}
	return typed.(T)
}

// watchFrom begins to watch a resource from a revision, watchNow slices from now on.
func watchFrom(tb testing.TB, h *history.History, r *served.Resource, after uint64) *history.Cursor {
	tb.Helper()
	cursor, err := h.Watch(r, after)
	if err != nil {
		tb.Fatal(err)
	}
	return cursor
}

func watchNow(tb testing.TB, h *history.History) *history.Cursor {
	tb.Helper()
	return watchFrom(tb, h, served.EndpointSlices, h.Revision())
}

// next is what a cursor gets, and what is closed when there is more.
func next(t *testing.T, cursor *history.Cursor) ([]history.Event, <-chan struct{}) {
	t.Helper()
	events, changed, err := cursor.Next(10_000)
	if err != nil {
		t.Fatal(err)
	}
	return events, changed
}

// expectTold checks what cursors get, each event as "TYPE name", in whatever order.
func expectTold(t *testing.T, what string, want []string, cursors ...*history.Cursor) {
	t.Helper()
	var told []string
	for _, cursor := range cursors {
		events, _ := next(t, cursor)
		for _, e := range events {
			told = append(told, fmt.Sprint(e.Type, " ", e.Object.Name))
		}
	}
	slices.Sort(told)
	if !slices.Equal(told, want) {
		t.Fatalf("%s: told %q, want %q", what, told, want)
	}
}

// expectWoken checks that a channel that is closed when something changes is, or is not.
func expectWoken(t *testing.T, what string, changed <-chan struct{}, want bool) {
	t.Helper()
	select {
	case <-changed:
		if !want {
			t.Errorf("%s: watchers are woken", what)
		}
	default:
		if want {
			t.Errorf("%s: no cursor is woken", what)
		}
	}
}

func expectReadable(tb testing.TB, what string, h *history.History, r *served.Resource, want error) {
	tb.Helper()
	if _, err := h.Readable(r); !errors.Is(err, want) {
		tb.Errorf("%s: %s readable: %v, want %v", what, r.Resource, err, want)
	}
}
