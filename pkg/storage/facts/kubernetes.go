package facts

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// kubernetesEndpoints has the annotations of the Endpoints object default/kubernetes, which name the local API server.
// Clients may ask for slices only, so this one object has a separate input.
type kubernetesEndpoints struct {
	completion

	f           *Facts
	held        bool
	annotations map[string]string
}

func (k *kubernetesEndpoints) apply(o *wire.Object) {
	if o.Key() == KubernetesService {
		k.held, k.annotations = true, o.Annotations()
		k.touch()
	}
}

func (k *kubernetesEndpoints) remove(types.NamespacedName) {
	k.held, k.annotations = false, nil
	k.touch()
}

// touch adds the objects that list endpoints of default/kubernetes to the step.
func (k *kubernetesEndpoints) touch() {
	s := k.f.services.byName[KubernetesService]
	if s == nil {
		return
	}
	for _, listed := range s.listed {
		for _, o := range listed.objects {
			add(&k.f.step.Objects, o)
		}
	}
}

func (k *kubernetesEndpoints) names() []types.NamespacedName {
	if k.held {
		return []types.NamespacedName{KubernetesService}
	}
	return nil
}

// upstream returns nil, because only the annotations are kept.
func (*kubernetesEndpoints) upstream(types.NamespacedName) *wire.Object { return nil }

// noteAbsent marks the input as synced: without the object nothing is rewritten.
func (k *kubernetesEndpoints) noteAbsent() { k.synced = true }

// KubernetesAnnotations returns the annotations of the Endpoints object default/kubernetes.
func (in Reader) KubernetesAnnotations() map[string]string { return in.f.kubernetes.annotations }
