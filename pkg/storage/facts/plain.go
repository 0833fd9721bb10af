package facts

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// plainStore stores objects that are served unchanged.
type plainStore struct {
	completion

	objects map[types.NamespacedName]*wire.Object
	// touch adds what depends on an object to the step.
	touch func(types.NamespacedName)
}

func (f *Facts) newPlainStore(r *served.Resource) plainStore {
	return plainStore{
		objects: make(map[types.NamespacedName]*wire.Object),
		touch:   func(name types.NamespacedName) { add(&f.step.Plain, Key{r, name}) },
	}
}

func (p *plainStore) apply(o *wire.Object) {
	p.objects[o.Key()] = o
	p.touch(o.Key())
}

func (p *plainStore) remove(name types.NamespacedName) {
	delete(p.objects, name)
	p.touch(name)
}

func (p *plainStore) names() []types.NamespacedName { return slices.Collect(maps.Keys(p.objects)) }

func (p *plainStore) upstream(name types.NamespacedName) *wire.Object { return p.objects[name] }

// KubernetesService is the Service of the API server.
var KubernetesService = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// newKubernetesEndpoints makes the store of the Endpoints object default/kubernetes, whose annotations name the local
// API server. Clients may ask for slices only, so this one object has a separate input.
func (f *Facts) newKubernetesEndpoints() plainStore {
	return plainStore{objects: make(map[types.NamespacedName]*wire.Object), touch: func(types.NamespacedName) {
		if s := f.services.byName[KubernetesService]; s != nil {
			for _, listed := range s.listed {
				for _, o := range listed.objects {
					add(&f.step.EndpointSets, o)
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
