package lite

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// notNeeded are the references of a PodSpec to Secrets and ConfigMaps that a kubelet does not read when it starts a pod
// again.
var notNeeded = []string{
	"EphemeralContainers",            // they are not started again
	"Cinder", "ScaleIO", "StorageOS", // kubelets from 1.29 on have no such plugins (pkg/volume of Kubernetes)
	// SecretReferences of drivers whose volumes the controller attaches or provisions are in no PodSpec.
}

// TestEveryReferenceIsFollowed fills one reference of a pod after the other, found in the type by reflection, and
// expects its name among what the pod needs. A field that a new version of the API brings fails it.
func TestEveryReferenceIsFollowed(t *testing.T) {
	found := 0
	fill(reflect.ValueOf(&corev1.PodSpec{}).Elem(), "", func(path string, set func(name string) *corev1.PodSpec) {
		if slices.ContainsFunc(notNeeded, func(part string) bool { return strings.Contains(path, part) }) {
			return
		}
		found++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod"}, Spec: *set("wanted")}
		needed, _ := newStore("node0").needsOf(pod)
		for _, k := range []*kind{secrets, configMaps, claims} {
			if _, ok := needed[objectScope(k, "shop", "wanted")]; ok {
				return
			}
		}
		t.Errorf("%s is not followed: %v", path, needed)
	})
	if found < 20 {
		t.Errorf("only %d references were found", found)
	}
	t.Logf("%d references", found)
}

// fill calls visit for every reference below a value: set makes a new PodSpec with this one only.
func fill(value reflect.Value, path string, visit func(path string, set func(name string) *corev1.PodSpec)) {
	walk(value.Type(), path, nil, func(path string, steps []step) {
		visit(path, func(name string) *corev1.PodSpec {
			spec := &corev1.PodSpec{}
			current := reflect.ValueOf(spec).Elem()
			for _, s := range steps {
				current = s(current)
			}
			current.SetString(name)
			return spec
		})
	})
}

// step goes one level down, and makes what is missing.
type step func(reflect.Value) reflect.Value

// walk finds the names of Secrets, ConfigMaps and claims.
func walk(t reflect.Type, path string, steps []step, visit func(path string, steps []step)) {
	if len(steps) > 12 {
		return
	}
	with := func(s step) []step { return append(slices.Clone(steps), s) }
	switch t.Kind() {
	case reflect.Pointer:
		walk(t.Elem(), path, with(func(v reflect.Value) reflect.Value {
			v.Set(reflect.New(t.Elem()))
			return v.Elem()
		}), visit)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return
		}
		walk(t.Elem(), path+"[]", with(func(v reflect.Value) reflect.Value {
			v.Set(reflect.MakeSlice(t, 1, 1))
			return v.Index(0)
		}), visit)
	case reflect.Struct:
		for i := range t.NumField() {
			field := t.Field(i)
			below := path + "." + field.Name
			down := with(func(v reflect.Value) reflect.Value { return v.Field(i) })
			if field.Type.Kind() == reflect.String && isReference(t, field.Name, path) {
				visit(below, down)
				continue
			}
			walk(field.Type, below, down, visit)
		}
	default:
	}
}

// isReference reports whether a field of a type names a Secret, a ConfigMap or a claim.
func isReference(in reflect.Type, field, path string) bool {
	switch in {
	case reflect.TypeFor[corev1.LocalObjectReference]():
		// Others name things of the cluster.
		return strings.Contains(path, "Secret") || strings.Contains(path, "ConfigMap")
	case reflect.TypeFor[corev1.PersistentVolumeClaimVolumeSource]():
		return field == "ClaimName"
	}
	return field == "SecretName"
}

// TestEndedPodsNeedNothing, and those that run need their tokens as the kubelet asks for them.
func TestEndedPodsNeedNothing(t *testing.T) {
	seconds := int64(3607)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod", UID: "1"},
		Spec:       corev1.PodSpec{ServiceAccountName: "till"},
	}
	projected := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds}},
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}},
	}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: projected}}}
	needed, _ := newStore("node0").needsOf(pod)
	for _, want := range []tokenRequest{
		{"shop", "till", "pod", "1", "", 3607}, {"shop", "till", "pod", "1", "vault", 3600},
	} {
		if _, ok := needed[want]; !ok {
			t.Errorf("%+v is not among %v", want, needed)
		}
	}
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		pod.Status.Phase = phase
		needed, _ := newStore("node0").needsOf(pod)
		if len(needed) > 0 {
			t.Errorf("%s: %v", phase, needed)
		}
	}
}
