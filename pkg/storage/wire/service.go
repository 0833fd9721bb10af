package wire

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Fields of core/v1 Service and its spec (k8s.io/api/core/v1/generated.proto).
const (
	serviceSpec = 2

	specClusterIP  = 3
	specClusterIPs = 18
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
	var s corev1.Service
	if s.Unmarshal(body) != nil {
		return ServiceTraits{}
	}
	internal := ptr.Deref(s.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal
	external := s.Spec.ExternalTrafficPolicy // "" for a Service that is not reached from outside of the cluster
	return ServiceTraits{
		PublishesNotReady: s.Spec.PublishNotReadyAddresses,
		Headless:          s.Spec.ClusterIP == corev1.ClusterIPNone,
		Local:             internal || external == corev1.ServiceExternalTrafficPolicyLocal,
		AllLocal:          internal && external == "",
	}
}
