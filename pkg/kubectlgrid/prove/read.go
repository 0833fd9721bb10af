package prove

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
)

// wrapper is the name of the wrapper's container, and the value of the label app of its pods.
const wrapper = "application-grid-wrapper"

// Surroundings reads the Service's slices and all nodes.
func Surroundings(ctx context.Context, api client.Reader, service *corev1.Service) ([]discoveryv1.EndpointSlice,
	map[string]Node, error) {
	slicesOf, err := cluster.EndpointSlices(ctx, api, service)
	if err != nil {
		return nil, nil, err
	}
	nodes := map[string]Node{}
	err = pages.Each(ctx, api, &corev1.NodeList{}, func(n *corev1.Node) { nodes[n.Name] = NodeOf(n) })
	if err != nil {
		return nil, nil, fmt.Errorf("asking for nodes, whose labels are the sites: %w", err)
	}
	return slicesOf, nodes, nil
}

// Image is the image of a wrapper, with the secrets to pull it.
type Image struct {
	Name        string
	PullSecrets []corev1.LocalObjectReference
}

// Images reads the images of the wrappers' pods, by node.
func Images(ctx context.Context, api client.Reader) (map[string]Image, error) {
	images := map[string]Image{}
	err := pages.Each(ctx, api, &corev1.PodList{}, func(p *corev1.Pod) {
		if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || len(p.Spec.Containers) == 0 {
			return
		}
		container := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == wrapper })
		images[p.Spec.NodeName] = Image{p.Spec.Containers[max(container, 0)].Image, p.Spec.ImagePullSecrets}
	}, client.MatchingLabels{"app": wrapper})
	if err != nil {
		return nil, err
	}
	return images, nil
}
