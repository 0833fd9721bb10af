package view_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// changed is a version of an upstream object whose metadata was changed.
func changed(tb testing.TB, r *served.Resource, o *wire.Object, change func(metav1.Object)) *wire.Object {
	tb.Helper()
	typed := r.New()
	if err := typed.Unmarshal(wire.AppendObject(nil, o.Meta, o.Body, 0)); err != nil {
		tb.Fatal(err)
	}
	change(typed.(metav1.Object))
	return wiretest.Object(typed)
}

// touch changes what is written with every change of an object, or by whoever writes it, and nothing that a client has
// a use for.
func touch(n int) func(metav1.Object) {
	return func(o metav1.Object) {
		o.SetGeneration(int64(n))
		o.SetResourceVersion(fmt.Sprint(1000 + n))
		o.SetManagedFields([]metav1.ManagedFieldsEntry{
			{Manager: fmt.Sprint("manager-", n), Operation: metav1.ManagedFieldsOperationUpdate},
		})
		annotations := map[string]string{
			corev1.EndpointsLastChangeTriggerTime: metav1.Unix(int64(n), 0).UTC().Format("2006-01-02T15:04:05Z"),
		}
		for key, value := range o.GetAnnotations() {
			if key != corev1.EndpointsLastChangeTriggerTime {
				annotations[key] = value
			}
		}
		o.SetAnnotations(annotations)
	}
}

// touched is an object of a served resource after touch.
func touched(tb testing.TB, o *wire.Object, n int) *wire.Object {
	tb.Helper()
	// Only the metadata is read and written, and that is of one form for all.
	meta := changed(tb, served.Nodes, &wire.Object{Meta: o.Meta}, touch(n))
	both, err := wire.ParseObject(wire.AppendObject(nil, meta.Meta, o.Body, 0))
	if err != nil {
		tb.Fatal(err)
	}
	return both
}

// TestWhatNoClientHasAUseForIsNoEvent: generation, resourceVersion, managedFields and the time of the last change of
// any endpoint change with what happens in other sites, too. kube-proxy would run a sync for each.
func TestWhatNoClientHasAUseForIsNoEvent(t *testing.T) {
	legacy := wiretest.Endpoints("svc", "node-a1", "node-b1")
	for _, keys := range []string{"", `["zone"]`, `["zone","*"]`} {
		s := syncedStore(t, storagetest.Options{})
		s.Endpoints().Replace(nil)
		s.OwnNode().Replace(nil)
		objects := map[*served.Resource]*wire.Object{
			served.Services:       wiretest.Service("svc", keys),
			served.EndpointSlices: wiretest.Slice("svc", "svc", "node-a1", "node-b1"),
			served.Endpoints:      legacy,
			served.Nodes:          wiretest.Node("node-a1", "a"),
		}
		inputs := map[*served.Resource]*facts.Input{
			served.Services: s.Services(), served.EndpointSlices: s.EndpointSlices(),
			served.Endpoints: s.Endpoints(), served.Nodes: s.OwnNode(),
		}
		for r, o := range objects {
			inputs[r].Apply(touched(t, o, 1))
		}
		for r, o := range objects {
			key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
			was, err := s.History.Get(r, key, 0)
			if err != nil || was == nil {
				t.Fatalf("keys %s: %s: %v, %v", keys, r.Resource, was, err)
			}
			cursor := watchFrom(t, s.History, r, s.History.Revision())
			_, woken := next(t, cursor)
			revision, past := s.History.Revision(), statsOf(t, s, r)
			for n := range 10 {
				inputs[r].Apply(touched(t, o, n+2))
			}
			inputs[r].Replace([]*wire.Object{touched(t, o, 12)})
			inputs[r].Replace([]*wire.Object{o}) // the annotation is gone altogether
			expectWoken(t, fmt.Sprint("keys ", keys, ": ", r.Resource), woken, false)
			if s.History.Revision() != revision {
				t.Errorf("keys %s: %s: revisions went from %d to %d", keys, r.Resource, revision, s.History.Revision())
			}
			if is, err := s.History.Get(r, key, 0); err != nil || is != was {
				t.Errorf("keys %s: %s: it is shown again: %v, %v", keys, r.Resource, is, err)
			}
			if now := statsOf(t, s, r); now != past {
				t.Errorf("keys %s: %s: its past went from %+v to %+v", keys, r.Resource, past, now)
			}

			// What comes next is an event like any other, and brings all of it.
			inputs[r].Apply(changed(t, r, touched(t, o, 77), func(m metav1.Object) {
				m.SetLabels(withLabel(m.GetLabels()))
			}))
			events, _, err := cursor.Next(10)
			if err != nil || len(events) != 1 || events[0].Object.Revision <= revision ||
				events[0].Object.Labels["another"] != "one" {
				t.Fatalf("keys %s: %s: got %v, %v", keys, r.Resource, events, err)
			}
			typed, err := events[0].Object.Decode()
			if err != nil {
				t.Fatal(err)
			}
			m := typed.(metav1.Object)
			if m.GetGeneration() != 77 || m.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime] == "" ||
				m.GetManagedFields() != nil {
				t.Errorf("keys %s: %s: got %+v", keys, r.Resource, m)
			}
		}
	}
}

func withLabel(labels map[string]string) map[string]string {
	with := map[string]string{"another": "one"}
	for key, value := range labels {
		with[key] = value
	}
	return with
}
