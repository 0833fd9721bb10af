package wire

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Fields of core/v1 ObjectReference (k8s.io/api/core/v1/generated.proto).
const (
	referenceKind      = 1
	referenceNamespace = 2
	referenceName      = 3
	referenceUID       = 4
)

var kindPod = []byte("Pod")

// Pod returns the pod that an endpoint's targetRef names. ok is false if it names none, or if it cannot be read. The
// results share memory with the message.
func (e Endpoint) Pod() (namespace, name, uid []byte, ok bool) {
	kind, namespace, name, uid, ok := e.Target()
	return namespace, name, uid, ok && bytes.Equal(kind, kindPod) && len(name) > 0
}

// Target returns an endpoint's targetRef. ok is false if it has none, or if it cannot be read. The results share memory
// with the message.
func (e Endpoint) Target() (kind, namespace, name, uid []byte, ok bool) {
	f := field.Of(e.target)
	for f.Next() {
		switch f.Number {
		case referenceKind:
			kind = f.Value
		case referenceNamespace:
			namespace = f.Value
		case referenceName:
			name = f.Value
		case referenceUID:
			uid = f.Value
		}
	}
	return kind, namespace, name, uid, f.Err == nil && e.target != nil
}

// Serving returns the condition serving; if the endpoint has none, whether it is ready.
func (e Endpoint) Serving() bool { return e.parseConditions(e.Ready).serving }

// Terminates reports whether an endpoint that is not ready is terminating and still serves, so that it is used where
// none is ready. serving defaults to true.
func (e Endpoint) Terminates() bool {
	c := e.parseConditions(true)
	return !e.Ready && c.terminating && c.serving
}

// Correction says how an endpoint differs from the upstream's.
type Correction struct {
	// LeftOut is set for an endpoint that is left out, whatever the other fields are.
	LeftOut bool
	// WithoutHints removes the endpoint's topology hints.
	WithoutHints bool
	// Unusable is set for an endpoint that no data plane must use. It is left out; one with a host name stays, neither
	// ready nor serving, because the name means this pod and no other.
	Unusable bool
	// Taken is set besides if the address is known not to be the pod's any more. An endpoint with a host name is
	// terminating then, so that its name goes too.
	Taken bool
	// Address replaces the endpoint's addresses; "" keeps them.
	Address string
	// Serving replaces the condition of that name. The endpoint is ready if it is serving and not terminating, or if
	// Published is set: its Service has publishNotReadyAddresses.
	Serving, Published bool
	// KeepConditions keeps the conditions unchanged, whatever Serving and Published are.
	KeepConditions bool
}

// Matches reports whether an endpoint already has the state of a correction.
func (e Endpoint) Matches(c *Correction) bool {
	return !c.Unusable && (c.Address == "" || c.Address == string(e.Address)) &&
		(c.KeepConditions || c.Serving == e.Serving())
}

// LeavesOut reports whether an object lacks the endpoint with this correction, which may be nil.
func (c *Correction) LeavesOut(e Endpoint) bool {
	return c != nil && (c.LeftOut || c.Unusable && !e.Named)
}

// conditions are those of an endpoint.
type conditions struct {
	ready, serving, terminating bool
	// others are the encoded fields that this package does not know.
	others []byte
}

// parseConditions reads the conditions, which were read without error before. serving is the default of that condition.
// Other missing ones have the defaults of discovery/v1.
func (e Endpoint) parseConditions(serving bool) conditions {
	c := conditions{ready: e.Ready, serving: serving}
	f := field.Of(e.conditions)
	for f.Next() {
		switch f.Number {
		case conditionsReady:
		case conditionsServing:
			c.serving = f.Varint != 0
		case conditionsTerminating:
			c.terminating = f.Varint != 0
		default:
			c.others = append(c.others, f.Encoded...)
		}
	}
	return c
}

func (c conditions) corrected(to *Correction) conditions {
	switch {
	case to.Unusable:
		c.ready, c.serving, c.terminating = false, false, c.terminating || to.Taken
		return c
	case to.KeepConditions || c.serving == to.Serving:
		return c // it is serving and not ready because of its Service, not its pod
	}
	c.serving, c.ready = to.Serving, to.Published || to.Serving && !c.terminating
	return c
}

func (c conditions) encode() []byte {
	out := appendBool(nil, conditionsReady, c.ready)
	out = appendBool(out, conditionsServing, c.serving)
	out = appendBool(out, conditionsTerminating, c.terminating)
	return append(out, c.others...)
}

func appendBool(dst []byte, number protowire.Number, value bool) []byte {
	dst = protowire.AppendTag(dst, number, protowire.VarintType)
	return protowire.AppendVarint(dst, protowire.EncodeBool(value))
}

func correctSlice(body []byte, correct func(Endpoint) *Correction) ([]byte, error) {
	return rewrite(body, func(f field.Walk) ([]byte, bool, error) {
		if f.Number != sliceEndpoints {
			return f.Value, true, nil
		}
		endpoint, err := parseSliceEndpoint(f.Value)
		if err != nil {
			return nil, false, err
		}
		message, c := f.Value, correct(endpoint)
		if c == nil || c.LeavesOut(endpoint) {
			return message, c == nil, nil
		}
		if c.WithoutHints && endpoint.hints {
			message = withoutField(message, endpointHints)
		}
		if !endpoint.Matches(c) {
			message = correctedEndpoint(message, endpoint, c)
		}
		return message, true, nil
	})
}

// correctedEndpoint returns a corrected copy of an Endpoint message. Its fields are in the order of their numbers if
// they were before.
func correctedEndpoint(message []byte, endpoint Endpoint, c *Correction) []byte {
	out := make([]byte, 0, len(message)+len(c.Address)+8)
	if c.Address != "" {
		out = appendBytesField(out, endpointAddresses, []byte(c.Address))
	}
	conditions := endpoint.parseConditions(endpoint.Ready).corrected(c).encode()
	written := false
	f := field.Of(message)
	for f.Next() {
		if f.Number >= endpointConditions && !written {
			out, written = appendBytesField(out, endpointConditions, conditions), true
		}
		if f.Number != endpointConditions && (f.Number != endpointAddresses || c.Address == "") {
			out = append(out, f.Encoded...)
		}
	}
	if !written {
		out = appendBytesField(out, endpointConditions, conditions)
	}
	return out
}

// correctEndpoints leaves out subsets without addresses, which would be invalid.
func correctEndpoints(body []byte, correct func(Endpoint) *Correction) ([]byte, error) {
	return rewrite(body, func(f field.Walk) ([]byte, bool, error) {
		if f.Number != endpointsSubsets {
			return f.Value, true, nil
		}
		subset, addresses, err := correctSubset(f.Value, correct)
		return subset, addresses > 0, err
	})
}

// correctSubset returns a corrected copy of a subset, and the number of its addresses. It returns the subset itself if
// none of them differs.
func correctSubset(message []byte, correct func(Endpoint) *Correction) (subset []byte, addresses int, err error) {
	var ready, notReady, others []byte
	differs := false
	f := field.Of(message)
	for f.Next() {
		if !isAddress(f.Number) {
			others = append(others, f.Encoded...)
			continue
		}
		endpoint, err := parseAddress(f.Number, f.Value)
		if err != nil {
			return nil, 0, err
		}
		value, serving := f.Value, endpoint.Ready
		switch c := correct(endpoint); {
		case c.LeavesOut(endpoint):
			differs = true
			continue
		case c != nil && !endpoint.Matches(c):
			differs = true
			value = movedAddress(value, c.Address)
			serving = endpoint.parseConditions(endpoint.Ready).corrected(c).ready
		}
		addresses++
		if serving {
			ready = appendBytesField(ready, subsetAddresses, value)
		} else {
			notReady = appendBytesField(notReady, subsetNotReadyAddresses, value)
		}
	}
	if !differs {
		return message, addresses, f.Err
	}
	return append(append(ready, notReady...), others...), addresses, f.Err
}

// movedAddress returns a copy of an EndpointAddress message with another IP address; the message itself if that is "".
func movedAddress(message []byte, address string) []byte {
	if address == "" {
		return message
	}
	out := appendBytesField(make([]byte, 0, len(message)+len(address)), addressIP, []byte(address))
	f := field.Of(message)
	for f.Next() {
		if f.Number != addressIP {
			out = append(out, f.Encoded...)
		}
	}
	return out
}
