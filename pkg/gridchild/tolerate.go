package gridchild

import (
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// unreachableTaints are the keys of the taints that a node gets when the API server does not hear of it. Both are there
// with the effect NoExecute, which evicts pods.
var unreachableTaints = []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady}

// tolerateUnreachable adds tolerations of these taints to a template that does not mention them. They have no time: the
// API server would add one of 5 minutes to pods without a toleration.
func tolerateUnreachable(template map[string]any) error {
	pod, err := object(template, "template", "spec")
	if err != nil {
		return err
	}
	var tolerations []any
	if value, ok := pod["tolerations"]; ok && value != nil {
		if tolerations, ok = value.([]any); !ok {
			return Errorf(v1.ReasonInvalidTemplate, "template.template.spec.tolerations is not a list but %v", value)
		}
	}
	for _, taint := range unreachableTaints {
		if mentions(tolerations, taint) {
			continue
		}
		tolerations = append(tolerations, map[string]any{
			"key": taint, "operator": string(corev1.TolerationOpExists), "effect": string(corev1.TaintEffectNoExecute),
		})
	}
	pod["tolerations"] = tolerations
	return nil
}

// mentions reports whether one of the tolerations is of a taint with the effect NoExecute.
func mentions(tolerations []any, taint string) bool {
	for _, value := range tolerations {
		toleration, _ := value.(map[string]any)
		effect, _ := toleration["effect"].(string)
		if toleration["key"] == taint && (effect == "" || effect == string(corev1.TaintEffectNoExecute)) {
			return true
		}
	}
	return false
}
