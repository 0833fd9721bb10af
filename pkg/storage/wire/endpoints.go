package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
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
	f := field.Of(body)
	for f.Next() {
		if f.Number != sliceEndpoints {
			continue
		}
		endpoint, _, err := parseSliceEndpoint(f.Value)
		if err != nil {
			return err
		}
		visit(endpoint)
	}
	return f.Err
}

// parseSliceEndpoint reads one Endpoint message. hints reports whether it carries topology hints.
func parseSliceEndpoint(message []byte) (endpoint Endpoint, hints bool, err error) {
	// According to discovery/v1 a nil ready condition means ready.
	endpoint.Ready = true
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case endpointAddresses:
			if endpoint.Address == nil {
				endpoint.Address = f.Value
			}
		case endpointTargetRef:
			endpoint.target = f.Value
		case endpointNodeName:
			endpoint.NodeName = f.Value
		case endpointHints:
			hints = true
		case endpointConditions:
			endpoint.conditions = f.Value
			c := field.Of(f.Value)
			for c.Next() {
				if c.Number == conditionsReady {
					endpoint.Ready = c.Varint != 0
				}
			}
			if c.Err != nil {
				return Endpoint{}, false, c.Err
			}
		}
	}
	return endpoint, hints, f.Err
}

func filterSlice(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	return editSlice(body, keep, func(out []byte, endpoint field.Walk, _ bool) []byte {
		return append(out, endpoint.Encoded...)
	})
}

func pruneSlice(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	return editSlice(body, keep, func(out []byte, endpoint field.Walk, hints bool) []byte {
		if hints {
			return appendBytesField(out, sliceEndpoints, withoutField(endpoint.Value, endpointHints))
		}
		return append(out, endpoint.Encoded...)
	})
}

// editSlice returns a copy of a slice's body. It calls write to append each endpoint that keep accepts: endpoint is the
// current field, and hints reports whether the endpoint carries topology hints.
func editSlice(
	body []byte, keep func(Endpoint) bool, write func(out []byte, endpoint field.Walk, hints bool) []byte,
) ([]byte, error) {
	var out []byte
	f := field.Of(body)
	for f.Next() {
		if f.Number != sliceEndpoints {
			out = append(out, f.Encoded...)
			continue
		}
		endpoint, hints, err := parseSliceEndpoint(f.Value)
		if err != nil {
			return nil, err
		}
		if keep(endpoint) {
			out = write(out, f, hints)
		}
	}
	return out, f.Err
}

// withoutField returns a copy of a message without the fields of that number. The caller has read the message before
// without an error.
func withoutField(message []byte, number protowire.Number) []byte {
	out := make([]byte, 0, len(message))
	f := field.Of(message)
	for f.Next() {
		if f.Number != number {
			out = append(out, f.Encoded...)
		}
	}
	return out
}

func scanEndpoints(body []byte, visit func(Endpoint)) error {
	f := field.Of(body)
	for f.Next() {
		if f.Number != endpointsSubsets {
			continue
		}
		subset := field.Of(f.Value)
		for subset.Next() {
			if !isAddress(subset.Number) {
				continue
			}
			endpoint, err := parseAddress(subset.Number, subset.Value)
			if err != nil {
				return err
			}
			visit(endpoint)
		}
		if subset.Err != nil {
			return subset.Err
		}
	}
	return f.Err
}

func isAddress(number protowire.Number) bool {
	return number == subsetAddresses || number == subsetNotReadyAddresses
}

func parseAddress(number protowire.Number, message []byte) (Endpoint, error) {
	endpoint := Endpoint{Ready: number == subsetAddresses}
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case addressIP:
			endpoint.Address = f.Value
		case addressTargetRef:
			endpoint.target = f.Value
		case addressNodeName:
			endpoint.NodeName = f.Value
		}
	}
	return endpoint, f.Err
}

func filterEndpoints(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	var out []byte
	f := field.Of(body)
	for f.Next() {
		if f.Number != endpointsSubsets {
			out = append(out, f.Encoded...)
			continue
		}
		kept, addresses, err := filterSubset(f.Value, keep)
		if err != nil {
			return nil, err
		}
		// A subset without addresses is not valid.
		if addresses > 0 {
			out = appendBytesField(out, endpointsSubsets, kept)
		}
	}
	return out, f.Err
}

// filterSubset returns a copy of a subset with the addresses that keep accepts, and their number.
func filterSubset(subset []byte, keep func(Endpoint) bool) (kept []byte, addresses int, err error) {
	f := field.Of(subset)
	for f.Next() {
		if isAddress(f.Number) {
			endpoint, err := parseAddress(f.Number, f.Value)
			if err != nil {
				return nil, 0, err
			}
			if !keep(endpoint) {
				continue
			}
			addresses++
		}
		kept = append(kept, f.Encoded...)
	}
	return kept, addresses, f.Err
}
