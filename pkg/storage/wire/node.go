package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Fields of core/v1 Node and its parts (k8s.io/api/core/v1/generated.proto).
const (
	nodeStatus = 3

	statusConditions = 4
	statusAddresses  = 5

	nodeConditionType      = 1
	nodeConditionStatus    = 2
	nodeConditionHeartbeat = 3
)

// InternalIP is the type of the addresses at which nodes reach each other.
const InternalIP = "InternalIP"

// NodeReady reports whether the condition Ready of a Node with this Object.Body is True, and returns the encoded time
// of the kubelet's report. The API server sets the condition to Unknown if the kubelet has not reported for a while.
func NodeReady(body []byte) (ready bool, at string, err error) {
	err = eachInStatus(body, statusConditions, func(encoded []byte) error {
		var kind, status, heartbeat []byte
		f := field.Of(encoded)
		for f.Next() {
			switch f.Number {
			case nodeConditionType:
				kind = f.Value
			case nodeConditionStatus:
				status = f.Value
			case nodeConditionHeartbeat:
				heartbeat = f.Value
			}
		}
		if string(kind) == "Ready" {
			ready, at = string(status) == "True", string(heartbeat)
		}
		return f.Err
	})
	return ready, at, err
}

// NodeAddresses calls visit for every address in the status of a Node with this Object.Body. Addresses are IP addresses
// or names; kind is their type.
func NodeAddresses(body []byte, visit func(kind, address string)) error {
	return eachInStatus(body, statusAddresses, func(encoded []byte) error {
		kind, address, err := field.MapEntry(encoded) // a NodeAddress has the same form
		if err == nil {
			visit(string(kind), string(address))
		}
		return err
	})
}

// OnlyNodeAddresses returns the Body of a Node with only the addresses from the status of the given one.
func OnlyNodeAddresses(body []byte) ([]byte, error) {
	var addresses []byte
	err := eachInStatus(body, statusAddresses, func(encoded []byte) error {
		addresses = appendBytesField(addresses, statusAddresses, encoded)
		return nil
	})
	if err != nil || addresses == nil {
		return nil, err
	}
	return appendBytesField(nil, nodeStatus, addresses), nil
}

// eachInStatus calls visit for every field with this number in the status of a Node, until it returns an error.
func eachInStatus(body []byte, number protowire.Number, visit func(encoded []byte) error) error {
	return field.EachIn(body, nodeStatus, func(f field.Walk) error {
		if f.Number != number {
			return nil
		}
		return visit(f.Value)
	})
}
