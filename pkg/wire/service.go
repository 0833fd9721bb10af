package wire

import "github.com/application-grid/application-grid/pkg/wire/field"

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
	f := field.Of(body)
	for f.Next() {
		if f.Number != serviceSpec {
			continue
		}
		spec := field.Of(f.Value)
		for spec.Next() {
			if spec.Number == specClusterIP || spec.Number == specClusterIPs {
				visit(spec.Value)
			}
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
	f := field.Of(body)
	for f.Next() {
		if f.Number != serviceSpec {
			continue
		}
		spec := field.Of(f.Value)
		for spec.Next() {
			if spec.Number == specPublishNotReadyAddresses {
				publishes = spec.Varint != 0
			}
		}
	}
	return publishes
}
