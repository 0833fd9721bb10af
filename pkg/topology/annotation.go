package topology

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// openYurtKeys maps the values of OpenYurt's annotation to label keys.
var openYurtKeys = map[string]string{
	v1.OpenYurtTopologyNode:     corev1.LabelHostname,
	v1.OpenYurtTopologyZone:     corev1.LabelTopologyZone,
	v1.OpenYurtTopologyNodePool: v1.LabelOpenYurtNodePool,
}

// KeysOf reads the keys of a Service from its annotations. annotation is the name of the annotation that is used:
// topologyKeys, or OpenYurt's where topologyKeys is absent; "" if the Service has neither. If its value is invalid,
// KeysOf returns an error, and the keys are Unsatisfiable.
//
// Only this function decides which annotations govern a Service. All code that shows endpoints, or reports which are
// shown, calls it.
func KeysOf(annotations map[string]string) (keys Keys, annotation string, err error) {
	if value, ok := annotations[v1.AnnotationTopologyKeys]; ok {
		annotation = v1.AnnotationTopologyKeys
		keys, err = ParseKeys(value)
	} else if value, ok := annotations[v1.AnnotationOpenYurtTopologyKeys]; ok {
		annotation = v1.AnnotationOpenYurtTopologyKeys
		keys, err = parseOpenYurt(value)
	}
	if err != nil {
		keys = Unsatisfiable()
	}
	return keys, annotation, err
}

// parseOpenYurt reads the value of OpenYurt's annotation: one of three words, compared as a whole. An empty value
// governs nothing, as in OpenYurt. Any other value is an error; OpenYurt lets every endpoint pass then.
func parseOpenYurt(value string) (Keys, error) {
	if value == "" {
		return Keys{}, nil
	}
	key, ok := openYurtKeys[value]
	if !ok {
		return nil, fmt.Errorf("not one of %s, %s and %s",
			v1.OpenYurtTopologyNode, v1.OpenYurtTopologyZone, v1.OpenYurtTopologyNodePool)
	}
	return Keys{key}, nil
}
