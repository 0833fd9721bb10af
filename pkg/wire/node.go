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
			address := fieldsOf(status.value)
			for address.next() {
				if address.number == nodeAddressAddress {
					visit(string(address.value))
				}
			}
			if address.err != nil {
				return address.err
			}
		}
		if status.err != nil {
			return status.err
		}
	}
	return f.err
}

// OnlyNodeAddresses is the Body of a Node with nothing but the addresses in the status of the given one.
func OnlyNodeAddresses(body []byte) ([]byte, error) {
	var addresses []byte
	f := fieldsOf(body)
	for f.next() {
		if f.number != nodeStatus {
			continue
		}
		status := fieldsOf(f.value)
		for status.next() {
			if status.number == statusAddresses {
				addresses = appendBytesField(addresses, statusAddresses, status.value)
			}
		}
		if status.err != nil {
			return nil, status.err
		}
	}
	if f.err != nil || addresses == nil {
		return nil, f.err
	}
	return appendBytesField(nil, nodeStatus, addresses), nil
}
