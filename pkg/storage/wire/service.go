package wire

import "github.com/application-grid/application-grid/pkg/storage/wire/field"

// Fields of core/v1 Service and its parts (k8s.io/api/core/v1/generated.proto).
const (
	serviceSpec = 2

	specClusterIP                = 3
	specExternalTrafficPolicy    = 11
	specPublishNotReadyAddresses = 13
	specClusterIPs               = 18
	specInternalTrafficPolicy    = 22
)

const (
	clusterIPNone = "None"
	policyLocal   = "Local"
)

// ClusterIPs calls visit for every cluster IP of a Service with this Object.Body. The first may be visited twice, and
// may be None.
func ClusterIPs(body []byte, visit func(address []byte)) error {
	return field.EachIn(body, serviceSpec, func(spec field.Walk) error {
		if spec.Number == specClusterIP || spec.Number == specClusterIPs {
			visit(spec.Value)
		}
		return nil
	})
}

// ServiceTraits are the properties of a Service that determine which of its endpoints are used.
type ServiceTraits struct {
	// PublishesNotReady is set if the Service has publishNotReadyAddresses.
	PublishesNotReady bool
	// Headless is set if the Service has no cluster IP on purpose.
	Headless bool
	// Local is set if any of its traffic policies is Local: such traffic uses only endpoints on its own node. AllLocal
	// is set if the policies of all its traffic are Local.
	Local, AllLocal bool
}

// TraitsOf reads the traits of a Service with this Object.Body. If it cannot be read, none is set.
func TraitsOf(body []byte) ServiceTraits {
	var t ServiceTraits
	var internal, external string
	err := field.EachIn(body, serviceSpec, func(spec field.Walk) error {
		switch spec.Number {
		case specClusterIP:
			t.Headless = string(spec.Value) == clusterIPNone
		case specPublishNotReadyAddresses:
			t.PublishesNotReady = spec.Varint != 0
		case specInternalTrafficPolicy:
			internal = string(spec.Value)
		case specExternalTrafficPolicy:
			external = string(spec.Value) // "" for a Service that is not reached from outside of the cluster
		}
		return nil
	})
	if err != nil {
		return ServiceTraits{}
	}
	t.Local = internal == policyLocal || external == policyLocal
	t.AllLocal = internal == policyLocal && external == ""
	return t
}
