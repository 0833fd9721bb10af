package facts

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// KubernetesService is the Service of the API server.
var KubernetesService = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// newKubernetesEndpoints makes the store of the Endpoints object default/kubernetes, whose annotations name the local
// API server. Clients may ask for slices only, so this one object has a separate input.
func (f *Facts) newKubernetesEndpoints() plainStore {
	return plainStore{objects: make(map[types.NamespacedName]*wire.Object), touch: func(types.NamespacedName) {
		if s := f.services.byName[KubernetesService]; s != nil {
			for _, listed := range s.listed {
				for _, o := range listed.objects {
					add(&f.step.EndpointsObjects, o)
				}
			}
		}
	}}
}

// KubernetesAnnotations returns the annotations of the Endpoints object default/kubernetes.
func (in Reader) KubernetesAnnotations() map[string]string {
	if o := in.f.kubernetes.objects[KubernetesService]; o != nil {
		return o.Annotations()
	}
	return nil
}
