package workload

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
)

// Served counts the ready endpoints of the Service, by node, in the EndpointSlices that the node's wrapper (on
// a direct node: kube-apiserver) serves. What cannot be read counts as nobody.
func Served(ctx context.Context, from *cluster.Node, service *corev1.Service) Reached {
	client := from.Cluster().Client()
	if !from.Spec.Direct {
		var err error
		if client, err = kubernetes.NewForConfig(from.WrapperConfig(cluster.RoleKubeProxy)); err != nil {
			return Reached{Refused: 1}
		}
	}
	list, err := client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name,
	})
	if err != nil {
		return Reached{Refused: 1}
	}
	reached := Reached{}
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.NodeName != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
				reached[*endpoint.NodeName]++
			}
		}
	}
	return reached
}
