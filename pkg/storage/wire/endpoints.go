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
	endpointHostname   = 3
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
	addressHostname  = 3
	addressNodeName  = 4
)

// Endpoint has the fields of one endpoint that the rules of topology need. Its byte slices share memory with the
// message.
type Endpoint struct {
	// NodeName is nil if the endpoint names no node.
	NodeName []byte
	Ready    bool
	// hints is set if the endpoint carries topology hints.
	hints bool
	// Address is the endpoint's first address. Others, if any, have no meaning (discovery/v1).
	Address []byte
	// Named is set if the endpoint has a host name: it is a pod with a DNS name of its own.
	Named bool
	// target is the encoded targetRef; nil if the endpoint has none.
	target []byte
	// conditions are the encoded conditions; nil if the endpoint has none, as in Endpoints.
	conditions []byte
}

// Codec reads and prunes the Body of one kind of object that lists endpoints.
type Codec struct {
	// Scan calls visit for every endpoint in the body.
	Scan func(body []byte, visit func(Endpoint)) error
	// Rewrite returns a copy of the body in which the endpoints that have a Correction are as that says, and everything
	// else is unchanged. It returns the body itself if all endpoints agree with their corrections.
	Rewrite func(body []byte, correct func(Endpoint) *Correction) ([]byte, error)
}

// EndpointSlice is the Codec of discovery.k8s.io/v1 EndpointSlice.
var EndpointSlice = Codec{Scan: scanSlice, Rewrite: correctSlice}

// Endpoints is the Codec of core/v1 Endpoints, which carry no hints.
var Endpoints = Codec{Scan: scanEndpoints, Rewrite: correctEndpoints}

func scanSlice(body []byte, visit func(Endpoint)) error {
	f := field.Of(body)
	for f.Next() {
		if f.Number != sliceEndpoints {
			continue
		}
		endpoint, err := parseSliceEndpoint(f.Value)
		if err != nil {
			return err
		}
		visit(endpoint)
	}
	return f.Err
}

func parseSliceEndpoint(message []byte) (Endpoint, error) {
	endpoint := Endpoint{Ready: true} // according to discovery/v1 a nil ready condition means ready
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case endpointAddresses:
			if endpoint.Address == nil {
				endpoint.Address = f.Value
			}
		case endpointHostname:
			endpoint.Named = len(f.Value) > 0
		case endpointTargetRef:
			endpoint.target = f.Value
		case endpointNodeName:
			endpoint.NodeName = f.Value
		case endpointHints:
			endpoint.hints = true
		case endpointConditions:
			endpoint.conditions = f.Value
			c := field.Of(f.Value)
			for c.Next() {
				if c.Number == conditionsReady {
					endpoint.Ready = c.Varint != 0
				}
			}
			if c.Err != nil {
				return Endpoint{}, c.Err
			}
		}
	}
	return endpoint, f.Err
}

// withoutField returns a copy of a message without the fields of that number. The caller has read the message before
// without an error.
func withoutField(message []byte, number protowire.Number) []byte {
	out, _ := rewrite(message, func(f field.Walk) ([]byte, bool, error) { return f.Value, f.Number != number, nil })
	return out
}

func scanEndpoints(body []byte, visit func(Endpoint)) error {
	return field.EachIn(body, endpointsSubsets, func(f field.Walk) error {
		if !isAddress(f.Number) {
			return nil
		}
		endpoint, err := parseAddress(f.Number, f.Value)
		if err == nil {
			visit(endpoint)
		}
		return err
	})
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
		case addressHostname:
			endpoint.Named = len(f.Value) > 0
		case addressTargetRef:
			endpoint.target = f.Value
		case addressNodeName:
			endpoint.NodeName = f.Value
		}
	}
	return endpoint, f.Err
}
