package gridchild

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestFits: which nodes a DaemonSet's controller wants pods on.
func TestFits(t *testing.T) {
	maintenance := []corev1.Taint{{Key: "maintenance", Effect: corev1.TaintEffectNoSchedule}}
	lost := []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}}
	hint := []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
	affinity := `{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [` +
		`{matchExpressions: [{key: size, operator: In, values: [big]}]}, ` +
		`{matchFields: [{key: metadata.name, operator: In, values: [b]}]}]}}}}`
	for _, test := range []struct {
		pod, node string
		labels    map[string]string
		taints    []corev1.Taint
		want      bool
	}{
		{`{}`, "a", nil, nil, true},
		{`{}`, "a", nil, maintenance, false},
		{`{}`, "a", nil, lost, true},
		{`{}`, "a", nil, hint, true},
		{`{tolerations: [{key: maintenance, operator: Exists}]}`, "a", nil, maintenance, true},
		{`{nodeSelector: {size: big}}`, "a", map[string]string{"size": "big"}, nil, true},
		{`{nodeSelector: {size: big}}`, "a", map[string]string{"size": "small"}, nil, false},
		{affinity, "a", map[string]string{"size": "big"}, nil, true},
		{affinity, "a", map[string]string{"size": "small"}, nil, false},
		{affinity, "b", nil, nil, true},
		{`{nodeSelector: {zone1: east}}`, "a", map[string]string{"zone1": "west"}, nil, true},
	} {
		template, err := yaml.YAMLToJSON([]byte(`{template: {spec: ` + test.pod + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		spec := &v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: v1.Template{Raw: template}}
		fits, err := NewTemplates("", spec, Cluster{}).Fits("east")
		if err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: test.node, Labels: test.labels},
			Spec:       corev1.NodeSpec{Taints: test.taints},
		}
		if got := fits(node); got != test.want {
			t.Errorf("%s on %s with %v, %v: %t", test.pod, test.node, test.labels, test.taints, got)
		}
	}
}

// TestOwnsPod: a pod with the labels of a workload may be somebody else's.
func TestOwnsPod(t *testing.T) {
	pod := func(kind, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"pod-template-hash": "5f"},
			OwnerReferences: []metav1.OwnerReference{
				{Kind: kind, Name: name, UID: "uid-x", Controller: ptr.To(true)},
			},
		}}
	}
	for _, test := range []struct {
		kind string
		pod  *corev1.Pod
		want bool
	}{
		{"DaemonSet", &corev1.Pod{}, false},
		{"Deployment", &corev1.Pod{}, false},
		{"DaemonSet", pod("DaemonSet", "web"), true},
		{"Deployment", pod("ReplicaSet", "web-5f"), true},
		{"Deployment", pod("ReplicaSet", "web-east-5f"), false},
		{"Deployment", pod("Job", "web-5f"), false},
	} {
		if got := OwnsPod(test.kind, "web", "uid-x", test.pod); got != test.want {
			t.Errorf("%s, %+v: %t", test.kind, test.pod.OwnerReferences, got)
		}
	}
	if OwnsPod("DaemonSet", "web", "uid-y", pod("DaemonSet", "web")) {
		t.Error("a predecessor's pod is its own")
	}
	former := pod("StatefulSet", "web")
	if OwnsPod("StatefulSet", "web", "uid-y", former) {
		t.Error("a predecessor's pod is its own before it ends")
	}
	if former.DeletionTimestamp = new(metav1.Now()); !OwnsPod("StatefulSet", "web", "uid-y", former) {
		t.Error("a StatefulSet does not wait for the end of a predecessor's pod")
	}
}
