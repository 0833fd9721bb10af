package wire

import "github.com/application-grid/application-grid/pkg/storage/wire/field"

// Fields of core/v1 Service and its parts (k8s.io/api/core/v1/generated.proto).
const (
	serviceSpec = 2

	specClusterIP                = 3
	specPublishNotReadyAddresses = 13
	specClusterIPs               = 18
)

// ClusterIPs calls visit for every cluster IP of a Service with this Object.Body. The first may be visited twice, and
// may be None.
func ClusterIPs(body []byte, visit func(address []byte)) error {
	return visitSpec(body, func(spec *field.Walk) {
		if spec.Number == specClusterIP || spec.Number == specClusterIPs {
			visit(spec.Value)
		}
	})
}

// visitSpec calls visit for every field of the spec of a Service with this Object.Body.
func visitSpec(body []byte, visit func(*field.Walk)) error {
	f := field.Of(body)
	for f.Next() {
		if f.Number != serviceSpec {
			continue
		}
		spec := field.Of(f.Value)
		for spec.Next() {
			visit(&spec)
		}
		if spec.Err != nil {
			return spec.Err
		}
	}
	return f.Err
}

// PublishesNotReady reports whether a Service has publishNotReadyAddresses. A body that cannot be read has not.
func PublishesNotReady(body []byte) bool {
	publishes := false
	_ = visitSpec(body, func(spec *field.Walk) { // of what cannot be read nothing is published
		if spec.Number == specPublishNotReadyAddresses {
			publishes = spec.Varint != 0
		}
	})
	return publishes
}
