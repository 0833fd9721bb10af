package wire

import "github.com/application-grid/application-grid/pkg/storage/wire/field"

// Fields of discovery.k8s.io/v1 EndpointSlice and its EndpointPort (k8s.io/api/discovery/v1/generated.proto).
const (
	slicePorts       = 3
	sliceAddressType = 4

	portName     = 1
	portProtocol = 2
	portNumber   = 3
)

// protocolTCP is the default protocol of a port (discovery/v1).
var protocolTCP = []byte("TCP")

// Port is a port of an EndpointSlice. Its byte slices share memory with the message.
type Port struct {
	Name, Protocol []byte
	// Numbered is set if the port has a number other than 0. A port without a number means all ports.
	Numbered bool
}

// ScanPorts calls visit for every port of an EndpointSlice with this Body, and returns the type of its addresses.
func ScanPorts(body []byte, visit func(Port)) (addressType []byte, err error) {
	f := field.Of(body)
	for f.Next() {
		switch f.Number {
		case sliceAddressType:
			addressType = f.Value
		case slicePorts:
			port, err := parsePort(f.Value)
			if err != nil {
				return nil, err
			}
			visit(port)
		}
	}
	return addressType, f.Err
}

func parsePort(message []byte) (Port, error) {
	port := Port{Protocol: protocolTCP}
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case portName:
			port.Name = f.Value
		case portProtocol:
			port.Protocol = f.Value
		case portNumber:
			port.Numbered = f.Varint != 0
		}
	}
	return port, f.Err
}

// WithoutPorts returns a copy of the Body of an EndpointSlice without the ports that drop accepts, and with everything
// else unchanged.
func WithoutPorts(body []byte, drop func(Port) bool) ([]byte, error) {
	return rewrite(body, func(f field.Walk) ([]byte, bool, error) {
		if f.Number != slicePorts {
			return f.Value, true, nil
		}
		port, err := parsePort(f.Value)
		return f.Value, err == nil && !drop(port), err
	})
}
