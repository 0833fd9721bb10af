package cri

import (
	"cmp"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// The field numbers and values below are those of runtime.v1 (k8s.io/cri-api/pkg/apis/runtime/v1/api.proto), where they
// must never change. Importing the generated types would link gRPC and the descriptors of 200 messages into every
// wrapper, whether it asks a runtime or not: 7 MB of program and 6 MB of resident memory.

// sandbox is a PodSandbox, and the Pod that it would be.
type sandbox struct {
	Pod
	age
	// state is 0 if it is ready.
	state uint64
}

// age orders the sandboxes of a pod, or the containers of one name. created is in nanoseconds since 1970. It decides
// only between equal attempts of the kubelet, because clocks may be set back.
type age struct {
	attempt uint64
	created int64
}

func (a age) compare(other age) int {
	return cmp.Or(cmp.Compare(a.attempt, other.attempt), cmp.Compare(a.created, other.created))
}

// nodeNetwork is the mode of the network of a pod that uses the node's.
const nodeNetwork = 2

type container struct {
	Container
	age
	sandbox, name string
}

// fields says where the fields of a message go, by number: a *string, a *[]string, a *uint64, an *int64, the fields of
// a message inside, or a function. Fields of other numbers are not known to this program.
type fields map[protowire.Number]any

func (to fields) read(message []byte) error {
	f := field.Of(message)
	for f.Next() {
		var err error
		switch to := to[f.Number].(type) {
		case *string:
			*to = string(f.Value)
		case *[]string:
			*to = append(*to, string(f.Value))
		case *uint64:
			*to = f.Varint
		case *int64:
			*to = int64(f.Varint) //nolint:gosec // as protobuf encodes an int64
		case fields:
			err = to.read(f.Value)
		case func([]byte) error:
			err = to(f.Value)
		}
		if err != nil {
			return err
		}
	}
	return f.Err
}

func readSandbox(message []byte) (sandbox, error) {
	var s sandbox
	err := fields{
		1: &s.Sandbox,
		2: fields{1: &s.Name, 2: &s.UID, 3: &s.Namespace, 4: &s.attempt},
		3: &s.state,
		4: &s.created,
		6: func(annotation []byte) error {
			key, value, err := field.MapEntry(annotation)
			if string(key) == configSource {
				s.Static = string(value) != apiSource
			}
			return err
		},
	}.read(message)
	return s, err
}

func readContainer(message []byte) (container, error) {
	var c container
	err := fields{
		1: &c.ID, 2: &c.sandbox, 3: fields{1: &c.name, 2: &c.attempt}, 6: (*uint64)(&c.State), 7: &c.created,
	}.read(message)
	return c, err
}

// readNetwork reads a PodSandboxStatusResponse: the mode of its network, and its addresses as the runtime writes them.
func readNetwork(message []byte) (mode uint64, addresses []string, err error) {
	err = fields{1: fields{
		5: fields{1: &addresses, 2: fields{1: &addresses}},
		6: fields{1: fields{2: fields{1: &mode}}}, // linux, namespaces, options
	}}.read(message)
	return mode, addresses, err
}
