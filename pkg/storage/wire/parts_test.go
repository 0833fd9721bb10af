package wire

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// checkParts checks that bodies put together of parts are those that prune makes, for the endpoints that pick chooses.
func checkParts(t *testing.T, parts *Parts, body []byte, pick func(place int) bool) {
	t.Helper()
	if err := parts.Split(body); err != nil {
		t.Fatalf("what can be scanned cannot be taken apart: %v", err)
	}
	var places []int
	place := -1
	want, err := prune(EndpointSlice, body, func(e Endpoint) bool {
		place++
		if got := parts.Endpoints[place]; !bytes.Equal(got.NodeName, e.NodeName) || got.Ready != e.Ready {
			t.Errorf("endpoint %d is read as %+v, is %+v", place, got, e)
		}
		if !pick(place) {
			return false
		}
		places = append(places, place)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if place+1 != len(parts.Endpoints) {
		t.Fatalf("%d endpoints of %d", len(parts.Endpoints), place+1)
	}
	var endpoints, others []byte
	for f := field.Of(want); f.Next(); {
		if f.Number == sliceEndpoints {
			endpoints = append(endpoints, f.Encoded...)
		} else {
			others = append(others, f.Encoded...)
		}
	}
	want = slices.Concat(endpoints, others)
	got := parts.Body(places)
	if !bytes.Equal(got, want) {
		t.Fatalf("got %x, want %x", got, want)
	}
	again := &Parts{}
	if err := again.Split(got); err != nil {
		t.Fatal(err)
	}
	if !again.SameOthers(parts) || len(again.Endpoints) != len(places) {
		t.Errorf("the parts of %x are others than those of %x", got, body)
	}
	for i, place := range places {
		if !bytes.Equal(again.encoded[i], parts.encoded[place]) {
			t.Errorf("endpoint %d of %x is another than %d of %x", i, got, place, body)
		}
	}
}

func TestParts(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	parts := &Parts{} // of all slices, one after the other
	for range 200 {
		o, err := ParseObject(mustMarshal(t, exampleSlice(r, r.IntN(20))))
		if err != nil {
			t.Fatal(err)
		}
		checkParts(t, parts, o.Body, func(int) bool { return r.IntN(2) == 0 })
	}
}

// TestPartsDiffer: what differs is seen as a difference.
func TestPartsDiffer(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	s := exampleSlice(r, 4)
	split := func() *Parts {
		o, err := ParseObject(mustMarshal(t, s))
		if err != nil {
			t.Fatal(err)
		}
		parts := &Parts{}
		if err := parts.Split(o.Body); err != nil {
			t.Fatal(err)
		}
		return parts
	}
	before := split()
	expect := func(what string, beginning, end int) {
		t.Helper()
		after := split()
		if !before.SameOthers(after) {
			t.Errorf("%s: another endpoint is another of the other fields", what)
		}
		if b, e := before.CommonEnds(after); b != beginning || e != end {
			t.Errorf("%s: %d are the same at the beginning, and %d at the end", what, b, e)
		}
	}
	expect("nothing differs", 4, 0)
	endpoints := s.Endpoints
	s.Endpoints = slices.Concat(endpoints[:1], endpoints[2:])
	expect("one is gone", 1, 2)
	s.Endpoints = append(slices.Clone(endpoints), endpoints[3])
	expect("the last one is there twice", 4, 0)
	s.Endpoints = nil
	expect("none is left", 0, 0)
	s.Endpoints = slices.Clone(endpoints)
	s.Endpoints[1].Addresses = []string{"192.0.2.77"}
	expect("one has another address", 1, 2)
	s.Endpoints[0].Addresses = []string{"192.0.2.78"}
	expect("two have another address", 0, 2)
	s.Ports = nil
	if before.SameOthers(split()) {
		t.Error("ports are not compared")
	}
}
