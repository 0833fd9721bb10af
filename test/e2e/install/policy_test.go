package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/proxy"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/suite"
)

// TestPolicyKeepsAffinity evaluates the shipped policy as kube-apiserver does, on kubeadm's DaemonSet and on what
// operators may have made of it: it adds the node affinity, and leaves everything else as it was.
func TestPolicyKeepsAffinity(t *testing.T) {
	var policy admissionregistrationv1.MutatingAdmissionPolicy
	for _, document := range render(t, "kubeadm") {
		if strings.Contains(document, "kind: MutatingAdmissionPolicy\n") {
			suite.Must(t, yaml.UnmarshalStrict([]byte(document), &policy))
		}
	}
	mutate := mutation(t, &policy)
	tolerant := &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1}}}
	preferred := []corev1.PreferredSchedulingTerm{{Weight: 7}}
	for name, affinity := range map[string]*corev1.Affinity{
		"kubeadm's":                 nil,
		"with a pod affinity":       {PodAntiAffinity: tolerant},
		"with a preference of its":  {NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: preferred}},
		"with a requirement of its": {NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}},
	} {
		t.Run(name, func(t *testing.T) {
			after := mutate(t, affinity, !strings.Contains(name, "requirement"))
			if after == nil {
				return
			}
			expectEdgeNodesAvoided(t, after.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
			if affinity == nil {
				return
			}
			if (after.PodAntiAffinity == nil) != (affinity.PodAntiAffinity == nil) {
				t.Errorf("the pod affinity is %+v", after.PodAntiAffinity)
			}
			if affinity.NodeAffinity != nil &&
				len(after.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
				t.Errorf("the preference is gone: %+v", after.NodeAffinity)
			}
		})
	}
}

// mutation compiles a policy as kube-apiserver does. The function that it returns is the affinity that the policy makes
// of one of kubeadm's DaemonSet, or nil where it does not match, which is checked.
func mutation(t *testing.T, policy *admissionregistrationv1.MutatingAdmissionPolicy) func(t *testing.T,
	affinity *corev1.Affinity, matches bool) *corev1.Affinity {
	t.Helper()
	if len(policy.Spec.Mutations) != 1 {
		t.Fatalf("the policy is %+v", policy)
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	suite.Must(t, err)
	expression := policy.Spec.Mutations[0].JSONPatch.Expression
	compiled := compiler.CompileMutatingEvaluator(&patch.JSONPatchCondition{Expression: expression},
		cel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.StoredExpressions)
	if err := compiled.CompilationErrors(); len(err) > 0 {
		t.Fatal(err)
	}
	condition := (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[0])
	matcher := matchconditions.NewMatcher(compiler.CompileCondition([]cel.ExpressionAccessor{condition},
		cel.OptionalVariableDeclarations{}, environment.StoredExpressions), policy.Spec.FailurePolicy, "policy",
		"mutate", policy.Name)
	scheme := runtime.NewScheme()
	suite.Must(t, appsv1.AddToScheme(scheme))
	kind, resource := appsv1.SchemeGroupVersion.WithKind("DaemonSet"), appsv1.SchemeGroupVersion.WithResource("daemonsets")
	return func(t *testing.T, affinity *corev1.Affinity, matches bool) *corev1.Affinity {
		t.Helper()
		before := kubeadmsDaemonSet(t)
		before.Spec.Template.Spec.Affinity = affinity
		written := &admission.VersionedAttributes{
			Attributes: admission.NewAttributesRecord(before, nil, kind, before.Namespace, before.Name, resource, "",
				admission.Update, &metav1.UpdateOptions{}, false, nil),
			VersionedKind: kind, VersionedObject: admission.NewLazyObject(before),
			VersionedOldObject: admission.NewLazyObject(nil),
		}
		match := matcher.Match(t.Context(), written, nil, nil)
		if match.Error != nil || match.Matches != matches {
			t.Fatalf("the policy is for it: %v, %v", match.Matches, match.Error)
		}
		if !matches {
			return nil
		}
		got, err := patch.NewJSONPatcher(compiled).Patch(t.Context(), patch.Request{
			MatchedResource: resource, VersionedAttributes: written,
			ObjectInterfaces: admission.NewObjectInterfacesFromScheme(scheme),
		}, 1<<30)
		suite.Must(t, err)
		return got.(*appsv1.DaemonSet).Spec.Template.Spec.Affinity
	}
}

// expectEdgeNodesAvoided checks that the terms are those of the policy, and of the patch for older API servers.
func expectEdgeNodesAvoided(t *testing.T, required *corev1.NodeSelector) {
	t.Helper()
	notIn := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values}
	}
	if want := []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{notIn(v1.LabelEdgeNode, "true", "systemd", "static")}},
		{MatchExpressions: []corev1.NodeSelectorRequirement{notIn(v1.LabelEdgeNode, "systemd", "static"),
			notIn(v1.LabelKubeProxy, "edge")}},
	}; !equality.Semantic.DeepEqual(required.NodeSelectorTerms, want) {
		t.Errorf("it requires %+v", required)
	}
	// As the patch has it, which is for older API servers too.
	var away struct{ Spec appsv1.DaemonSetSpec }
	data, err := os.ReadFile(filepath.Join(manifests, "kubeadm", "kube-proxy-away.yaml"))
	if err == nil {
		err = yaml.Unmarshal(data, &away)
	}
	if err != nil || away.Spec.Template.Spec.Affinity == nil || !equality.Semantic.DeepEqual(
		away.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		required) {
		t.Errorf("kube-proxy-away.yaml requires %+v, %v", away, err)
	}
}

// kubeadmsDaemonSet is kube-proxy's as kubeadm writes it.
func kubeadmsDaemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	var set appsv1.DaemonSet
	suite.Must(t, yaml.Unmarshal([]byte(kubeadms(t, kubeadm.KubeProxyDaemonSet19)), &set))
	return &set
}
