package wire

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of discovery.k8s.io/v1 EndpointSlice and its parts (k8s.io/api/discovery/v1/generated.proto).
const (
	sliceEndpoints = 2

	endpointConditions = 2
	endpointNodeName   = 6
	endpointHints      = 8

	conditionsReady = 1
)

// Fields of core/v1 Endpoints and its parts (k8s.io/api/core/v1/generated.proto).
const (
	endpointsSubsets = 2

	subsetAddresses         = 1
	subsetNotReadyAddresses = 2

	addressNodeName = 4
)

// Endpoint is what a pruning rule needs to know of one endpoint.
type Endpoint struct {
	// NodeName shares memory with the message; nil if the endpoint names no node.
	NodeName []byte
	Ready    bool
}

// Codec reads and prunes the Body of one kind of object that lists endpoints.
type Codec struct {
	// Scan calls visit for every endpoint in the body.
	Scan func(body []byte, visit func(Endpoint)) error
	// Prune returns a copy of the body with only the endpoints that keep accepts, without topology hints,
	// and with all else as it was.
	Prune func(body []byte, keep func(Endpoint) bool) ([]byte, error)
}

// EndpointSlice is the Codec of discovery.k8s.io/v1 EndpointSlice.
var EndpointSlice = Codec{Scan: scanSlice, Prune: pruneSlice}

// Endpoints is the Codec of core/v1 Endpoints.
var Endpoints = Codec{Scan: scanEndpoints, Prune: pruneEndpoints}

func scanSlice(body []byte, visit func(Endpoint)) error {
	for len(body) > 0 {
		f, rest, err := nextField(body)
		if err != nil {
			return err
		}
		body = rest
		if f.number != sliceEndpoints {
			continue
		}
		endpoint, _, err := parseSliceEndpoint(f.value)
		if err != nil {
			return err
		}
		visit(endpoint)
	}
	return nil
}

// parseSliceEndpoint reads one Endpoint message. hints tells whether it carries topology hints.
func parseSliceEndpoint(message []byte) (endpoint Endpoint, hints bool, err error) {
	// discovery/v1: a nil ready condition is to be read as ready.
	endpoint.Ready = true
	for len(message) > 0 {
		f, rest, err := nextField(message)
		if err != nil {
			return Endpoint{}, false, err
		}
		message = rest
		switch f.number {
		case endpointNodeName:
			endpoint.NodeName = f.value
		case endpointHints:
			hints = true
		case endpointConditions:
			if err := eachField(f.value, func(c field) error {
				if c.number == conditionsReady {
					endpoint.Ready = c.varint != 0
				}
				return nil
			}); err != nil {
				return Endpoint{}, false, err
			}
		}
	}
	return endpoint, hints, nil
}

func pruneSlice(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	var out []byte
	for len(body) > 0 {
		f, rest, err := nextField(body)
		if err != nil {
			return nil, err
		}
		body = rest
		if f.number != sliceEndpoints {
			out = append(out, f.encoded...)
			continue
		}
		endpoint, hints, err := parseSliceEndpoint(f.value)
		if err != nil {
			return nil, err
		}
		switch {
		case !keep(endpoint):
		case hints:
			stripped, err := withoutField(f.value, endpointHints)
			if err != nil {
				return nil, err
			}
			out = appendBytesField(out, sliceEndpoints, stripped)
		default:
			out = append(out, f.encoded...)
		}
	}
	return out, nil
}

func withoutField(message []byte, number protowire.Number) ([]byte, error) {
	out := make([]byte, 0, len(message))
	err := eachField(message, func(f field) error {
		if f.number != number {
			out = append(out, f.encoded...)
		}
		return nil
	})
	return out, err
}

func scanEndpoints(body []byte, visit func(Endpoint)) error {
	return eachField(body, func(subset field) error {
		if subset.number != endpointsSubsets {
			return nil
		}
		return eachField(subset.value, func(address field) error {
			if address.number != subsetAddresses && address.number != subsetNotReadyAddresses {
				return nil
			}
			endpoint, err := parseAddress(address)
			if err == nil {
				visit(endpoint)
			}
			return err
		})
	})
}

func parseAddress(address field) (Endpoint, error) {
	endpoint := Endpoint{Ready: address.number == subsetAddresses}
	err := eachField(address.value, func(f field) error {
		if f.number == addressNodeName {
			endpoint.NodeName = f.value
		}
		return nil
	})
	return endpoint, err
}

// pruneEndpoints drops a subset that keeps no address: a subset without addresses is not valid.
func pruneEndpoints(body []byte, keep func(Endpoint) bool) ([]byte, error) {
	var out []byte
	err := eachField(body, func(subset field) error {
		if subset.number != endpointsSubsets {
			out = append(out, subset.encoded...)
			return nil
		}
		var kept []byte
		addresses := 0
		err := eachField(subset.value, func(f field) error {
			if f.number == subsetAddresses || f.number == subsetNotReadyAddresses {
				endpoint, err := parseAddress(f)
				if err != nil {
					return err
				}
				if !keep(endpoint) {
					return nil
				}
				addresses++
			}
			kept = append(kept, f.encoded...)
			return nil
		})
		if err == nil && addresses > 0 {
			out = appendBytesField(out, endpointsSubsets, kept)
		}
		return err
	})
	return out, err
}
