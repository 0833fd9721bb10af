package wire

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func exampleSlice(r *rand.Rand, endpoints int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "svc-abcde", UID: "u-1", ResourceVersion: "123", Generation: 7,
			Labels:            map[string]string{"kubernetes.io/service-name": "svc", "a": ""},
			Annotations:       map[string]string{"x": "y"},
			CreationTimestamp: metav1.Unix(1700000000, 0),
			OwnerReferences:   []metav1.OwnerReference{{Kind: "Service", Name: "svc"}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kcm", FieldsV1: metav1.NewFieldsV1(`{"f:x":{}}`)},
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("http"), Port: ptr.To(int32(80)), Protocol: ptr.To(corev1.ProtocolTCP)},
		},
	}
	for i := range endpoints {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)}}
		if r.IntN(8) > 0 {
			e.NodeName = ptr.To(fmt.Sprintf("node-%d", r.IntN(5)))
		}
		if r.IntN(4) > 0 {
			e.Conditions = discoveryv1.EndpointConditions{
				Ready: ptr.To(r.IntN(2) == 0), Serving: ptr.To(true), Terminating: ptr.To(false),
			}
		}
		if r.IntN(2) == 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
			e.Zone = ptr.To("a")
		}
		if r.IntN(2) == 0 {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("p-%d", i)}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func mustMarshal(tb testing.TB, o interface{ Marshal() ([]byte, error) }) []byte {
	tb.Helper()
	message, err := o.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	return message
}

// filter leaves out the endpoints that keep does not accept.
func filter(codec Codec, body []byte, keep func(Endpoint) bool) ([]byte, error) {
	return codec.Rewrite(body, func(e Endpoint) *Correction {
		if keep(e) {
			return nil
		}
		return leftOut
	})
}

// prune does the same, and removes the hints of the endpoints that stay.
func prune(codec Codec, body []byte, keep func(Endpoint) bool) ([]byte, error) {
	return codec.Rewrite(body, func(e Endpoint) *Correction {
		if keep(e) {
			return unhinted
		}
		return leftOut
	})
}

var leftOut, unhinted = &Correction{LeftOut: true}, &Correction{WithoutHints: true, KeepConditions: true}

func TestObjectIsSplitAndPutTogetherAgain(t *testing.T) {
	s := exampleSlice(rand.New(rand.NewPCG(1, 1)), 3)
	o, err := ParseObject(mustMarshal(t, s))
	if err != nil {
		t.Fatal(err)
	}
	if o.Namespace != "ns" || o.Name != "svc-abcde" || o.UID != "u-1" || o.ResourceVersion != "123" {
		t.Errorf("identity is %+v", o)
	}
	if diff := cmp.Diff(s.Labels, o.Labels) + cmp.Diff(s.Annotations, o.Annotations()); diff != "" {
		t.Error(diff)
	}
	for _, revision := range []uint64{0, 9, 10, 99, 1<<64 - 1} {
		message := AppendObject(nil, o.Meta, o.Body, revision)
		if len(message) != Size(o.Meta, o.Body, revision) {
			t.Errorf("Size says %d, the message has %d bytes", Size(o.Meta, o.Body, revision), len(message))
		}
		var got discoveryv1.EndpointSlice
		if err := got.Unmarshal(message); err != nil {
			t.Fatal(err)
		}
		want := s.DeepCopy()
		want.ManagedFields = nil
		want.ResourceVersion = fmt.Sprint(revision)
		if diff := cmp.Diff(want, &got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestFieldsThatThisBuildDoesNotKnowSurvive(t *testing.T) {
	s := exampleSlice(rand.New(rand.NewPCG(1, 1)), 0)
	message := mustMarshal(t, s)
	unknown := appendBytesField(nil, 900, []byte("new in 1.99"))
	endpoint := append(appendBytesField(nil, endpointNodeName, []byte("node-1")), unknown...)
	message = append(message, unknown...)
	message = appendBytesField(message, sliceEndpoints, endpoint)
	o, err := ParseObject(message)
	if err != nil {
		t.Fatal(err)
	}
	all := func(Endpoint) bool { return true }
	pruned, err := prune(EndpointSlice, o.Body, all)
	if err != nil {
		t.Fatal(err)
	}
	filtered, err := filter(EndpointSlice, o.Body, all)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(o.Body, pruned) + cmp.Diff(o.Body, filtered); diff != "" {
		t.Error(diff)
	}
}

// TestFilterLeavesWhatStaysAsItIs: the same bytes, hints included, for both kinds.
func TestFilterLeavesWhatStaysAsItIs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 200 {
		slice := exampleSlice(r, r.IntN(20))
		endpoints := &corev1.Endpoints{}
		addresses := func(of []discoveryv1.Endpoint) (all []corev1.EndpointAddress) {
			for _, e := range of {
				all = append(all, corev1.EndpointAddress{
					IP: e.Addresses[0], NodeName: e.NodeName, TargetRef: e.TargetRef,
				})
			}
			return all
		}
		half := len(slice.Endpoints) / 2
		endpoints.Subsets = []corev1.EndpointSubset{{
			Addresses: addresses(slice.Endpoints[:half]), NotReadyAddresses: addresses(slice.Endpoints[half:]),
			Ports: []corev1.EndpointPort{{Name: "http", Port: 80}},
		}}
		drop := fmt.Sprintf("node-%d", r.IntN(5))
		keep := func(e Endpoint) bool { return string(e.NodeName) != drop }
		dropped := func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.NodeName, "") == drop }

		of, err := ParseObject(mustMarshal(t, slice))
		if err != nil {
			t.Fatal(err)
		}
		got, err := filter(EndpointSlice, of.Body, keep)
		if err != nil {
			t.Fatal(err)
		}
		slice.Endpoints = slices.DeleteFunc(slice.Endpoints, dropped)
		want, err := ParseObject(mustMarshal(t, slice))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Body, got); diff != "" {
			t.Fatal(diff)
		}

		if of, err = ParseObject(mustMarshal(t, endpoints)); err != nil {
			t.Fatal(err)
		}
		if got, err = filter(Endpoints, of.Body, keep); err != nil {
			t.Fatal(err)
		}
		var left corev1.Endpoints
		if err := left.Unmarshal(got); err != nil {
			t.Fatal(err)
		}
		droppedAddress := func(a corev1.EndpointAddress) bool { return ptr.Deref(a.NodeName, "") == drop }
		subset := &endpoints.Subsets[0]
		subset.Addresses, subset.NotReadyAddresses = slices.DeleteFunc(subset.Addresses,
			droppedAddress), slices.DeleteFunc(
			subset.NotReadyAddresses, droppedAddress,
		)
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			endpoints.Subsets = nil
		}
		if diff := cmp.Diff(endpoints.Subsets, left.Subsets, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestPruneSliceEqualsTyped(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for range 200 {
		s := exampleSlice(r, r.IntN(20))
		o, err := ParseObject(mustMarshal(t, s))
		if err != nil {
			t.Fatal(err)
		}
		keep := fmt.Sprintf("node-%d", r.IntN(5))
		pruned, err := prune(EndpointSlice, o.Body, func(e Endpoint) bool { return string(e.NodeName) == keep })
		if err != nil {
			t.Fatal(err)
		}
		var got discoveryv1.EndpointSlice
		if err := got.Unmarshal(pruned); err != nil {
			t.Fatal(err)
		}
		var want []discoveryv1.Endpoint
		for _, e := range s.Endpoints {
			if ptr.Deref(e.NodeName, "") == keep {
				e.Hints = nil
				want = append(want, e)
			}
		}
		if diff := cmp.Diff(want, got.Endpoints) + cmp.Diff(s.Ports, got.Ports) + cmp.Diff(s.AddressType,
			got.AddressType); diff != "" {
			t.Fatal(diff)
		}
		i := 0
		if err := EndpointSlice.Scan(o.Body, func(e Endpoint) {
			typed := s.Endpoints[i]
			if string(e.NodeName) != ptr.Deref(typed.NodeName, "") ||
				e.Ready != ptr.Deref(typed.Conditions.Ready, true) {
				t.Errorf("endpoint %d is read as %+v, is %+v", i, e, typed)
			}
			i++
		}); err != nil || i != len(s.Endpoints) {
			t.Fatalf("%d endpoints read of %d, %v", i, len(s.Endpoints), err)
		}
	}
}

func TestListRoundTrip(t *testing.T) {
	message := AppendListMeta(nil, 42)
	message = append(AppendListItem(message, 3), "abc"...)
	enveloped := append(AppendEnvelope(nil, TypeMeta{"v1", "ServiceList"}, len(message)), message...)
	var items []string
	typeMeta, meta, err := ReadList(bufio.NewReader(bytes.NewReader(enveloped)), func(item []byte) error {
		items = append(items, string(item))
		return nil
	})
	if err != nil || typeMeta != (TypeMeta{"v1", "ServiceList"}) || meta != (metav1.ListMeta{ResourceVersion: "42"}) ||
		fmt.Sprint(items) != "[abc]" {
		t.Fatal(typeMeta, meta, items, err)
	}
}

// FuzzObject: whatever the bytes are, nothing panics, and what can be parsed is what Kubernetes' own decoder
// reads from them.
func FuzzObject(f *testing.F) {
	f.Add(mustMarshal(f, exampleSlice(rand.New(rand.NewPCG(1, 1)), 3)))
	f.Add(mustMarshal(f, &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: "e"},
		Subsets: []corev1.EndpointSubset{
			{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1", NodeName: ptr.To("n")}}},
		},
	}))
	f.Add([]byte("k8s\x00"))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, message []byte) {
		_, _, _ = Unwrap(message)
		_, _, _ = ReadList(bufio.NewReader(bytes.NewReader(message)), func([]byte) error { return nil })
		o, err := ParseObject(message)
		if err != nil {
			return
		}
		if EndpointSlice.Scan(o.Body, func(Endpoint) {}) == nil {
			checkParts(t, &Parts{}, o.Body, func(place int) bool { return place%3 != len(message)%3 })
		}
		for _, codec := range []Codec{EndpointSlice, Endpoints} {
			all := 0
			if codec.Scan(o.Body, func(Endpoint) { all++ }) != nil {
				continue
			}
			for _, edit := range []func(Codec, []byte, func(Endpoint) bool) ([]byte, error){prune, filter} {
				pruned, err := edit(codec, o.Body, func(Endpoint) bool { return false })
				if err != nil {
					t.Fatalf("what can be scanned cannot be pruned: %v", err)
				}
				left := 0
				if err := codec.Scan(pruned, func(Endpoint) { left++ }); err != nil || left > 0 {
					t.Fatalf("%d of %d endpoints are left, %v", left, all, err)
				}
				if pruned, err = edit(codec, o.Body, func(Endpoint) bool { return true }); err != nil {
					t.Fatalf("what can be scanned cannot be kept: %v", err)
				}
				if err := codec.Scan(pruned, func(Endpoint) { left++ }); err != nil || left != all {
					t.Fatalf("%d of %d endpoints are kept, %v", left, all, err)
				}
			}
		}
		var before, after discoveryv1.EndpointSlice
		if before.Unmarshal(message) != nil {
			return
		}
		if err := after.Unmarshal(AppendObject(nil, o.Meta, o.Body, 7)); err != nil {
			t.Fatalf("the object no longer decodes: %v", err)
		}
		before.ManagedFields, before.ResourceVersion = nil, "7"
		after.ManagedFields = nil
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatal(diff)
		}
	})
}

func BenchmarkPruneSlice(b *testing.B) {
	s := exampleSlice(rand.New(rand.NewPCG(1, 1)), 50)
	o, err := ParseObject(mustMarshal(b, s))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := prune(EndpointSlice, o.Body,
			func(e Endpoint) bool { return string(e.NodeName) == "node-1" }); err != nil {
			b.Fatal(err)
		}
	}
}
