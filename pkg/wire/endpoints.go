package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of discovery.k8s.io/v1 EndpointSlice and its parts (k8s.io/api/discovery/v1/generated.proto).
const (
	sliceEndpoints = 2

	endpointAddresses  = 1
	endpointConditions = 2
	endpointTargetRef  = 4
	endpointNodeName   = 6
	endpointHints      = 8

	conditionsReady       = 1
	conditionsServing     = 2
	conditionsTerminating = 3
)

// Fields of core/v1 Endpoints and its parts (k8s.io/api/core/v1/generated.proto).
const (
	endpointsSubsets = 2

	subsetAddresses         = 1
	subsetNotReadyAddresses = 2

	addressIP        = 1
	addressTargetRef = 2
	addressNodeName  = 4
)

// Endpoint has what the rule needs to know of one endpoint. Its byte slices share memory with the message.
type Endpoint struct {
	// NodeName is nil if the endpoint names no node.
	NodeName []byte
	Ready    bool
	// Address is the endpoint's first address. The others, if there are any, mean nothing (discovery/v1).
	Address []byte
	// target is the encoded targetRef; nil if the endpoint has none.
	target []byte
	// conditions are the encoded conditions; nil if the endpoint has none, as in Endpoints.
	conditions []byte
}

// Codec reads and prunes the Body of one kind of object that lists endpoints.
type Codec struct {
	// Scan calls visit for every endpoint in the body.
	Scan func(body []byte, visit func(Endpoint)) error
	// Filter returns a copy of the body with only the endpoints that keep accepts, and with everything else unchanged.
	Filter func(body []byte, keep func(Endpoint) bool) ([]byte, error)
	// Prune does the same as Filter, and removes the topology hints of the endpoints that stay.
	Prune func(body []byte, keep func(Endpoint) bool) ([]byte, error)
	// Correct returns a copy of the body in which the endpoints for which correct returns a Correction have the
	// correction's address and readiness. It returns the body itself if all endpoints are as their corrections say.
	Correct func(body []byte, correct func(Endpoint) *Correction) ([]byte, error)
}

// EndpointSlice is the Codec of discovery.k8s.io/v1 EndpointSlice.
var EndpointSlice = Codec{Scan: scanSlice, Filter: filterSlice, Prune: pruneSlice, Correct: correctSlice}

// Endpoints is the Codec of core/v1 Endpoints, which carry no hints.
var Endpoints = Codec{
	Scan: scanEndpoints, Filter: filterEndpoints, Prune: filterEndpoints, Correct: correctEndpoints,
}

func scanSlice(body []byte, visit func(Endpoint)) error {
	f := fieldsOf(body)
	for f.next() {
		if f.number != sliceEndpoints {
			continue
		}
		endpoint, _, err := parseSliceEndpoint(f.value)
		if err != nil {
			return err
		}
		visit(endpoint)
	}
	return f.err
}

// parseSliceEndpoint reads one Endpoint message. hints reports whether it carries topology hints.
func parseSliceEndpoint(message []byte) (endpoint Endpoint, hints bool, err error) {
	// According to discovery/v1 a nil ready condition means ready.
	endpoint.Ready = true
	f := fieldsOf(message)
	for f.next() {
		switch f.number {
		case endpointAddresses:
			if endpoint.Address == nil {
				endpoint.Address = f.value
			}
		case endpointTargetRef:
			endpoint.target = f.value
		case endpointNodeName:
			endpoint.NodeName = f.value
		case endpointHints:
			hints = true
		case endpointConditions:
			endpoint.conditions = f.value
			c := fieldsOf(f.value)
			for c.next() {
				if c.number == conditionsReady {
					endpoint.Ready = c.varint != 0
				}
			}
			if c.err != nil {
				return Endpoint{}, false, c.err
			}
		}
	}
	return endpoint, hints, f.err
}

func filterSlice(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	return editSlice(body, keep, func(out []byte, endpoint fields, _ bool) []byte {
		return append(out, endpoint.encoded...)
	})
}

func pruneSlice(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	return editSlice(body, keep, func(out []byte, endpoint fields, hints bool) []byte {
		if hints {
			return appendBytesField(out, sliceEndpoints, withoutField(endpoint.value, endpointHints))
		}
		return append(out, endpoint.encoded...)
	})
}

// editSlice returns a copy of a slice's body. It calls write to append each endpoint that keep accepts: endpoint is the
// current field, and hints reports whether the endpoint carries topology hints.
func editSlice(
	body []byte, keep func(Endpoint) bool, write func(out []byte, endpoint fields, hints bool) []byte,
) ([]byte, error) {
	var out []byte
	f := fieldsOf(body)
	for f.next() {
		if f.number != sliceEndpoints {
			out = append(out, f.encoded...)
			continue
		}
		endpoint, hints, err := parseSliceEndpoint(f.value)
		if err != nil {
			return nil, err
		}
		if keep(endpoint) {
			out = write(out, f, hints)
		}
	}
	return out, f.err
}

// withoutField returns a copy of a message without the fields of that number. The caller has read the message before
// without an error.
func withoutField(message []byte, number protowire.Number) []byte {
	out := make([]byte, 0, len(message))
	f := fieldsOf(message)
	for f.next() {
		if f.number != number {
			out = append(out, f.encoded...)
		}
	}
	return out
}

func scanEndpoints(body []byte, visit func(Endpoint)) error {
	f := fieldsOf(body)
	for f.next() {
		if f.number != endpointsSubsets {
			continue
		}
		subset := fieldsOf(f.value)
		for subset.next() {
			if !isAddress(subset.number) {
				continue
			}
			endpoint, err := parseAddress(subset.number, subset.value)
			if err != nil {
				return err
			}
			visit(endpoint)
		}
		if subset.err != nil {
			return subset.err
		}
	}
	return f.err
}

func isAddress(number protowire.Number) bool {
	return number == subsetAddresses || number == subsetNotReadyAddresses
}

func parseAddress(number protowire.Number, message []byte) (Endpoint, error) {
	endpoint := Endpoint{Ready: number == subsetAddresses}
	f := fieldsOf(message)
	for f.next() {
		switch f.number {
		case addressIP:
			endpoint.Address = f.value
		case addressTargetRef:
			endpoint.target = f.value
		case addressNodeName:
			endpoint.NodeName = f.value
		}
	}
	return endpoint, f.err
}

func filterEndpoints(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	var out []byte
	f := fieldsOf(body)
	for f.next() {
		if f.number != endpointsSubsets {
			out = append(out, f.encoded...)
			continue
		}
		kept, addresses, err := filterSubset(f.value, keep)
		if err != nil {
			return nil, err
		}
		// A subset without addresses is not valid.
		if addresses > 0 {
			out = appendBytesField(out, endpointsSubsets, kept)
		}
	}
	return out, f.err
}

// filterSubset returns a copy of a subset with the addresses that keep accepts, and their number.
func filterSubset(subset []byte, keep func(Endpoint) bool) (kept []byte, addresses int, err error) {
	f := fieldsOf(subset)
	for f.next() {
		if isAddress(f.number) {
			endpoint, err := parseAddress(f.number, f.value)
			if err != nil {
				return nil, 0, err
			}
			if !keep(endpoint) {
				continue
			}
			addresses++
		}
		kept = append(kept, f.encoded...)
	}
	return kept, addresses, f.err
}
