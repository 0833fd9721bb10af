package wire

import "google.golang.org/protobuf/encoding/protowire"

// Fields of core/v1 Node and its parts (k8s.io/api/core/v1/generated.proto).
const (
	nodeStatus = 3

	statusConditions = 4
	statusAddresses  = 5

	nodeConditionType   = 1
	nodeConditionStatus = 2

	nodeAddressType    = 1
	nodeAddressAddress = 2
)

// InternalIP is the type of the addresses at which nodes reach each other.
const InternalIP = "InternalIP"

// NodeReady reports whether the condition Ready of a Node with this Object.Body is True. The API server sets it to
// Unknown if the kubelet has not reported for a while.
func NodeReady(body []byte) (ready bool, err error) {
	err = eachInStatus(body, statusConditions, func(encoded []byte) error {
		var kind, status []byte
		f := fieldsOf(encoded)
		for f.next() {
			switch f.number {
			case nodeConditionType:
				kind = f.value
			case nodeConditionStatus:
				status = f.value
			}
		}
		if string(kind) == "Ready" {
			ready = string(status) == "True"
		}
		return f.err
	})
	return ready, err
}

// NodeAddresses calls visit for every address in the status of a Node with this Object.Body. Addresses are IP addresses
// or names; kind is their type.
func NodeAddresses(body []byte, visit func(kind, address string)) error {
	return eachInStatus(body, statusAddresses, func(encoded []byte) error {
		var kind, address string
		f := fieldsOf(encoded)
		for f.next() {
			switch f.number {
			case nodeAddressType:
				kind = string(f.value)
			case nodeAddressAddress:
				address = string(f.value)
			}
		}
		if f.err == nil {
			visit(kind, address)
		}
		return f.err
	})
}

// OnlyNodeAddresses is the Body of a Node with nothing but the addresses in the status of the given one.
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
	f := fieldsOf(body)
	for f.next() {
		if f.number != nodeStatus {
			continue
		}
		status := fieldsOf(f.value)
		for status.next() {
			if status.number != number {
				continue
			}
			if err := visit(status.value); err != nil {
				return err
			}
		}
		if status.err != nil {
			return status.err
		}
	}
	return f.err
}
