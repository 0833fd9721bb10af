package cri

import "github.com/application-grid/application-grid/pkg/wire/field"

// The field numbers and values below are those of runtime.v1 (k8s.io/cri-api/pkg/apis/runtime/v1/api.proto), where they
// must never change. Importing the generated types would link gRPC and the descriptors of 200 messages into every
// wrapper, whether it asks a runtime or not: 7 MB of program and 6 MB of resident memory.

// sandbox is a PodSandbox.
type sandbox struct {
	id                   string
	namespace, name, uid string
	attempt              uint64
	notReady             bool
	// created is in nanoseconds since 1970.
	created int64
	// source is the annotation configSource.
	source    string
	hasSource bool
}

// containerState is a ContainerState.
type containerState uint64

const (
	containerCreated containerState = iota
	containerRunning
	containerExited
	containerUnknown
)

// container is a Container.
type container struct {
	id, sandbox, name string
	attempt           uint64
	state             containerState
	// created is in nanoseconds since 1970.
	created int64
}

// exit is what a ContainerStatus says of a container's end.
type exit struct {
	state containerState
	code  int64
}

// sandboxNetwork is what a PodSandboxStatus says of a sandbox's network.
type sandboxNetwork struct {
	// node is set if it is the node's.
	node bool
	// addresses are as the runtime writes them.
	addresses []string
}

// repeated reads the messages of a repeated field with number 1. Both lists are nothing else.
func repeated[T any](message []byte, read func([]byte) (T, error)) ([]T, error) {
	var all []T
	f := field.Of(message)
	for f.Next() {
		if f.Number != 1 || f.Value == nil {
			continue // not known to this program
		}
		one, err := read(f.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, f.Err
}

// inside returns the message that is found by going from field to field, empty if there is none.
func inside(message []byte, path ...int) ([]byte, error) {
	for _, number := range path {
		var next []byte
		f := field.Of(message)
		for f.Next() {
			if int(f.Number) == number {
				next = f.Value
			}
		}
		if f.Err != nil {
			return nil, f.Err
		}
		message = next
	}
	return message, nil
}

func readSandbox(message []byte) (sandbox, error) {
	var s sandbox
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case 1:
			s.id = string(f.Value)
		case 2:
			if err := s.readMetadata(f.Value); err != nil {
				return s, err
			}
		case 3:
			s.notReady = f.Varint != 0
		case 4:
			s.created = int64(f.Varint) //nolint:gosec // as protobuf encodes an int64
		case 6:
			if err := s.readAnnotation(f.Value); err != nil {
				return s, err
			}
		}
	}
	return s, f.Err
}

func (s *sandbox) readMetadata(message []byte) error {
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case 1:
			s.name = string(f.Value)
		case 2:
			s.uid = string(f.Value)
		case 3:
			s.namespace = string(f.Value)
		case 4:
			s.attempt = f.Varint
		}
	}
	return f.Err
}

func (s *sandbox) readAnnotation(message []byte) error {
	key, value, err := field.MapEntry(message)
	if string(key) == configSource {
		s.source, s.hasSource = string(value), true
	}
	return err
}

func readContainer(message []byte) (container, error) {
	var c container
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case 1:
			c.id = string(f.Value)
		case 2:
			c.sandbox = string(f.Value)
		case 3:
			if err := c.readMetadata(f.Value); err != nil {
				return c, err
			}
		case 6:
			c.state = containerState(f.Varint)
		case 7:
			c.created = int64(f.Varint) //nolint:gosec // as protobuf encodes an int64
		}
	}
	return c, f.Err
}

func (c *container) readMetadata(message []byte) error {
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case 1:
			c.name = string(f.Value)
		case 2:
			c.attempt = f.Varint
		}
	}
	return f.Err
}

// readExit reads a ContainerStatusResponse.
func readExit(message []byte) (exit, error) {
	var e exit
	status, err := inside(message, 1)
	if err != nil {
		return e, err
	}
	f := field.Of(status)
	for f.Next() {
		switch f.Number {
		case 3:
			e.state = containerState(f.Varint)
		case 7:
			e.code = int64(f.Varint) //nolint:gosec // as protobuf encodes an int32
		}
	}
	return e, f.Err
}

// readNetwork reads a PodSandboxStatusResponse.
func readNetwork(message []byte) (sandboxNetwork, error) {
	var n sandboxNetwork
	status, err := inside(message, 1)
	if err != nil {
		return n, err
	}
	// linux, namespaces, options
	options, err := inside(status, 6, 1, 2)
	if err != nil {
		return n, err
	}
	f := field.Of(options)
	for f.Next() {
		if f.Number == 1 {
			n.node = f.Varint == 2
		}
	}
	if f.Err != nil {
		return n, f.Err
	}
	network, err := inside(status, 5)
	if err != nil {
		return n, err
	}
	f = field.Of(network)
	for f.Next() {
		switch f.Number {
		case 1:
			n.addresses = append(n.addresses, string(f.Value))
		case 2:
			additional, err := inside(f.Value, 1)
			if err != nil {
				return n, err
			}
			n.addresses = append(n.addresses, string(additional))
		}
	}
	return n, f.Err
}
