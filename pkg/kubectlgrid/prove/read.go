package prove

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// wrapper is the wrapper's name: of its container, and of the label app of its pods.
const wrapper = "application-grid-wrapper"

// pageSize is how many objects are asked for at a time.
const pageSize = 500

// Surroundings reads the Service's slices and all nodes.
func Surroundings(ctx context.Context, api client.Reader, service *corev1.Service) ([]discoveryv1.EndpointSlice, map[string]Node, error) {
	slicesOf := &discoveryv1.EndpointSliceList{}
	err := api.List(ctx, slicesOf, client.InNamespace(service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
	if err != nil {
		return nil, nil, fmt.Errorf("asking for endpointslices: %w", err)
	}
	nodes := map[string]Node{}
	for token := ""; ; {
		list := &corev1.NodeList{}
		if err := api.List(ctx, list, client.Limit(pageSize), client.Continue(token)); err != nil {
			return nil, nil, fmt.Errorf("asking for nodes, whose labels are the units: %w", err)
		}
		for i := range list.Items {
			nodes[list.Items[i].Name] = NodeOf(&list.Items[i])
		}
		if token = list.Continue; token == "" {
			return slicesOf.Items, nodes, nil
		}
	}
}

// Wrappers reads the wrappers' pods, by node.
func Wrappers(ctx context.Context, api client.Reader) (map[string]Place, error) {
	places := map[string]Place{}
	for token := ""; ; {
		list := &corev1.PodList{}
		err := api.List(ctx, list, client.MatchingLabels{"app": wrapper}, client.Limit(pageSize), client.Continue(token))
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || len(p.Spec.Containers) == 0 {
				continue
			}
			container := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == wrapper })
			found := p.Spec.Containers[max(container, 0)]
			places[p.Spec.NodeName] = Place{
				Namespace: p.Namespace, Pod: p.Name, Container: found.Name, Image: found.Image, PullSecrets: p.Spec.ImagePullSecrets,
			}
		}
		if token = list.Continue; token == "" {
			return places, nil
		}
	}
}
