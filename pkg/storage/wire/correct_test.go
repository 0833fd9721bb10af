package wire

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

func podRef(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: name, UID: "u-1"}
}

// bodyOf is the body of an object.
func bodyOf(t *testing.T, o interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	parsed, err := ParseObject(mustMarshal(t, o))
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Body
}

func conditionsOf(ready, serving, terminating bool) discoveryv1.EndpointConditions {
	return discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
}

func at(address string, conditions ...discoveryv1.EndpointConditions) *discoveryv1.Endpoint {
	e := &discoveryv1.Endpoint{Addresses: []string{address}}
	for _, c := range conditions {
		e.Conditions = c
	}
	return e
}

// TestCorrectSlice: addresses and conditions of an endpoint are replaced and all else of it stays, byte for byte as the
// API server would encode it.
func TestCorrectSlice(t *testing.T) {
	named := func(ready, serving, terminating bool) *discoveryv1.Endpoint {
		return &discoveryv1.Endpoint{
			Addresses: []string{"10.0.0.1"}, Hostname: ptr.To("h"),
			Conditions: conditionsOf(ready, serving, terminating),
		}
	}
	hints := &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
	for name, test := range map[string]struct {
		before     *discoveryv1.Endpoint
		correction *Correction
		// after is nil if the endpoint is left out.
		after *discoveryv1.Endpoint
	}{
		"none":     {at("10.0.0.1"), nil, at("10.0.0.1")},
		"gone":     {at("10.0.0.1"), &Correction{Unusable: true}, nil},
		"as it is": {at("10.0.0.1"), &Correction{Address: "10.0.0.1", Serving: true}, at("10.0.0.1")},
		"moved": {
			&discoveryv1.Endpoint{
				Addresses: []string{"10.0.0.1", "10.0.0.2"}, Conditions: conditionsOf(true, true, false),
				Hostname: ptr.To("h"), TargetRef: podRef("p"), NodeName: ptr.To("n"), Hints: hints,
			},
			&Correction{Address: "10.0.0.9", Serving: true},
			&discoveryv1.Endpoint{
				Addresses: []string{"10.0.0.9"}, Conditions: conditionsOf(true, true, false),
				Hostname: ptr.To("h"), TargetRef: podRef("p"), NodeName: ptr.To("n"), Hints: hints,
			},
		},
		"not serving, address kept": {
			&discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, NodeName: ptr.To("n")}, &Correction{},
			&discoveryv1.Endpoint{
				Addresses: []string{"10.0.0.1"}, Conditions: conditionsOf(false, false, false), NodeName: ptr.To("n"),
			},
		},
		"serving again": {at("10.0.0.1", conditionsOf(false, false, false)), &Correction{Serving: true},
			at("10.0.0.1", conditionsOf(true, true, false))},
		"moved, and otherwise as it is": {at("10.0.0.1", conditionsOf(false, true, false)),
			&Correction{Address: "10.0.0.2", KeepConditions: true}, at("10.0.0.2", conditionsOf(false, true, false))},
		"terminating": {at("10.0.0.1", conditionsOf(false, false, true)),
			&Correction{Address: "10.0.0.2", Serving: true}, at("10.0.0.2", conditionsOf(false, true, true))},
		"of a Service that publishes what is not ready": {at("10.0.0.1", conditionsOf(true, false, true)),
			&Correction{Address: "10.0.0.2", Published: true}, at("10.0.0.2", conditionsOf(true, false, true))},
		"gone, with a name": {named(true, false, false), &Correction{Unusable: true}, named(false, false, false)},
		"gone, with a name, and ending": {named(true, false, true), &Correction{Unusable: true, Serving: true},
			named(false, false, true)},
		"gone, with a name that leads to another": {named(true, true, false), &Correction{Unusable: true, Taken: true},
			named(false, false, true)},
		"no other field": {at("10.0.0.1"), &Correction{Address: "10.0.0.2"},
			at("10.0.0.2", conditionsOf(false, false, false))},
	} {
		other := *at("10.0.0.7")
		slice := discoveryv1.EndpointSlice{
			Endpoints: []discoveryv1.Endpoint{other, *test.before, other}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(80))}},
		}
		before := bodyOf(t, &slice)
		got, err := EndpointSlice.Rewrite(before, func(e Endpoint) *Correction {
			if string(e.Address) == "10.0.0.7" {
				return nil
			}
			return test.correction
		})
		if err != nil {
			t.Fatal(err)
		}
		slice.Endpoints = []discoveryv1.Endpoint{other, other}
		if test.after != nil {
			slice.Endpoints = []discoveryv1.Endpoint{other, *test.after, other}
		}
		if want := bodyOf(t, &slice); !bytes.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
		if unchanged := bytes.Equal(before, got); unchanged != (&before[0] == &got[0]) {
			t.Errorf("%s: the body is copied although nothing of it changes, or not although something does", name)
		}
	}
}

// TestCorrectEndpoints: an address moves, changes lists, or goes; a subset without addresses goes too.
func TestCorrectEndpoints(t *testing.T) {
	address := func(ip string) corev1.EndpointAddress {
		name := "h"
		if ip == "10.0.0.6" {
			name = ""
		}
		return corev1.EndpointAddress{IP: ip, NodeName: ptr.To("n"), TargetRef: podRef("p"), Hostname: name}
	}
	ports := []corev1.EndpointPort{{Port: 80}}
	before := corev1.Endpoints{Subsets: []corev1.EndpointSubset{
		{Addresses: []corev1.EndpointAddress{address("10.0.0.1"), address("10.0.0.2"), address("10.0.0.3"),
			address("10.0.0.7")},
			NotReadyAddresses: []corev1.EndpointAddress{address("10.0.0.4"), address("10.0.0.5")},
			Ports:             ports},
		{Addresses: []corev1.EndpointAddress{address("10.0.0.6")}, Ports: ports},
	}}
	corrections := map[string]*Correction{
		"10.0.0.1": {Address: "10.0.1.1", Serving: true},
		"10.0.0.2": {},
		"10.0.0.4": {Serving: true},
		"10.0.0.5": {Address: "10.0.0.5"},
		"10.0.0.6": {Unusable: true},
		"10.0.0.7": {Unusable: true},
	}
	after := corev1.Endpoints{Subsets: []corev1.EndpointSubset{{
		Addresses:         []corev1.EndpointAddress{address("10.0.1.1"), address("10.0.0.3"), address("10.0.0.4")},
		NotReadyAddresses: []corev1.EndpointAddress{address("10.0.0.2"), address("10.0.0.7"), address("10.0.0.5")},
		Ports:             ports,
	}}}
	correct := func(e Endpoint) *Correction { return corrections[string(e.Address)] }
	got, err := Endpoints.Rewrite(bodyOf(t, &before), correct)
	if err != nil {
		t.Fatal(err)
	}
	if want := bodyOf(t, &after); !bytes.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	same := bodyOf(t, &corev1.Endpoints{Subsets: []corev1.EndpointSubset{
		{Addresses: []corev1.EndpointAddress{address("10.0.0.4")}, Ports: ports},
	}})
	if got, err := Endpoints.Rewrite(same, correct); err != nil || &got[0] != &same[0] {
		t.Errorf("the body is copied although nothing of it changes: %q, %v", got, err)
	}
}

// TestPod: which pod an endpoint is of.
func TestPod(t *testing.T) {
	for name, test := range map[string]struct {
		ref *corev1.ObjectReference
		ok  bool
	}{
		"none":    {nil, false},
		"pod":     {podRef("p"), true},
		"no name": {podRef(""), false},
		"node":    {&corev1.ObjectReference{Kind: "Node", Name: "p"}, false},
	} {
		body := bodyOf(t, &discoveryv1.EndpointSlice{
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, TargetRef: test.ref}},
		})
		err := EndpointSlice.Scan(body, func(e Endpoint) {
			namespace, podName, uid, ok := e.Pod()
			if ok != test.ok || (ok && string(namespace)+"/"+string(podName)+"/"+string(uid) != "ns/p/u-1") {
				t.Errorf("%s: got %s, %s, %s, %v", name, namespace, podName, uid, ok)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	malformed := Endpoint{target: []byte{0xff}, conditions: []byte{0xff}}
	if _, _, _, ok := malformed.Pod(); ok {
		t.Error("a malformed reference names a pod")
	}
	_ = malformed.Serving() // it does not panic
}

// FuzzCorrect: whatever the bytes are, nothing panics, and what comes of them can be read again.
func FuzzCorrect(f *testing.F) {
	slice := discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, Conditions: conditionsOf(true, false, true), TargetRef: podRef("p")},
	}}
	list := corev1.Endpoints{Subsets: []corev1.EndpointSubset{
		{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1", TargetRef: podRef("p")}}},
	}}
	for _, typed := range []interface{ Marshal() ([]byte, error) }{&slice, &list} {
		message, err := typed.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message, true, true, false)
		f.Add(message, false, false, true)
	}
	f.Fuzz(func(t *testing.T, body []byte, moved, serving, gone bool) {
		c := &Correction{Unusable: gone, Serving: serving}
		if moved {
			c.Address = "10.0.0.9"
		}
		for name, codec := range map[string]Codec{"slice": EndpointSlice, "endpoints": Endpoints} {
			corrected, err := codec.Rewrite(body, func(Endpoint) *Correction { return c })
			readable := codec.Scan(body, func(Endpoint) {}) == nil
			if readable != (err == nil) {
				t.Fatalf("%s: the body is readable: %v, and correcting it: %v", name, readable, err)
			}
			if err != nil {
				continue
			}
			if err := codec.Scan(corrected, func(e Endpoint) {
				if gone || (moved && string(e.Address) != c.Address) || e.Serving() != serving {
					t.Errorf("%s: %q is not corrected: %+v", name, body, e)
				}
			}); err != nil {
				t.Errorf("%s: %q became %q: %v", name, body, corrected, err)
			}
		}
	})
}
