package wire

// Fields of core/v1 Node and its parts (k8s.io/api/core/v1/generated.proto).
const (
	nodeStatus = 3

	statusAddresses = 5

	nodeAddressAddress = 2
)

// NodeAddresses calls visit for every address in the status of a Node with this Object.Body. Addresses are IP addresses
// or names.
func NodeAddresses(body []byte, visit func(address string)) error {
	return eachNodeAddress(body, func(encoded []byte) error {
		address := fieldsOf(encoded)
		for address.next() {
			if address.number == nodeAddressAddress {
				visit(string(address.value))
			}
		}
		return address.err
	})
}

// OnlyNodeAddresses is the Body of a Node with nothing but the addresses in the status of the given one.
func OnlyNodeAddresses(body []byte) ([]byte, error) {
	var addresses []byte
	err := eachNodeAddress(body, func(encoded []byte) error {
		addresses = appendBytesField(addresses, statusAddresses, encoded)
		return nil
	})
	if err != nil || addresses == nil {
		return nil, err
	}
	return appendBytesField(nil, nodeStatus, addresses), nil
}

// eachNodeAddress calls visit for every encoded address in the status of a Node, until it returns an error.
func eachNodeAddress(body []byte, visit func(encoded []byte) error) error {
	f := fieldsOf(body)
	for f.next() {
		if f.number != nodeStatus {
			continue
		}
		status := fieldsOf(f.value)
		for status.next() {
			if status.number != statusAddresses {
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
