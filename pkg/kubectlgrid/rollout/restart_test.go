package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// withoutWaves is a grid without spec.rollout, with a Deployment in each of the sites. A Deployment that is restarted is
// ready at the third look, unless it is the site that breaks; what happens is written down.
func withoutWaves(t *testing.T, breaks string, sites ...string) (*Grid, *[]string) {
	t.Helper()
	g, api := testGrid(t)
	g.spec().Rollout = nil
	g.spec().ProgressDeadlineSeconds = ptr.To[int32](4)
	if err := api.Update(t.Context(), g.Object); err != nil {
		t.Fatal(err)
	}
	for _, site := range sites {
		err := api.Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "echo-" + site, Generation: 1,
				Labels: map[string]string{v1.LabelGridSelector: "echo", v1.LabelGridSite: site},
				OwnerReferences: []metav1.OwnerReference{
					*metav1.NewControllerRef(g.Object, v1.GroupVersion.WithKind("DeploymentGrid")),
				},
			},
			Spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	log := &[]string{}
	looks := map[string]int{}
	watching, ok := api.(client.WithWatch)
	if !ok {
		t.Fatalf("%T does not watch", api)
	}
	g.cluster.API = interceptor.NewClient(watching, interceptor.Funcs{
		Patch: func(
			ctx context.Context, api client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption,
		) error {
			*log = append(*log, "patch "+o.GetName())
			looks[o.GetName()] = 1
			return api.Patch(ctx, o, p, options...)
		},
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if err := api.Get(ctx, key, o, options...); err != nil {
				return err
			}
			u, ok := o.(*unstructured.Unstructured)
			if !ok || looks[key.Name] == 0 {
				return nil
			}
			looks[key.Name]++
			available := int64(0)
			if looks[key.Name] > 3 && key.Name != "echo-"+breaks {
				available = 1
				*log = append(*log, "ready "+key.Name)
			}
			return unstructured.SetNestedField(u.Object, available, "status", "availableReplicas")
		},
	})
	return g, log
}

// TestRestartWithoutWaves: a grid without waves restarts one site after the other, and stops at the first one that does
// not become ready.
func TestRestartWithoutWaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, restartsWithoutWaves)
}

func restartsWithoutWaves(t *testing.T) {
	run := func(g *Grid) (string, error) {
		var told []string
		done, err := g.Restart(t.Context(), time.Unix(0, 0).UTC(), func(site, what string) {
			told = append(told, site+" "+what)
		})
		return strings.Join(append(told, done), ", "), err
	}
	g, log := withoutWaves(t, "", "a", "b", "c", "d")
	held := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo-c"}}
	if err := g.cluster.Watcher.Patch(t.Context(), held, client.RawPatch("application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"superedge.io/hold":"works"}}}`))); err != nil {
		t.Fatal(err)
	}
	g.becomes(t, func(s *v1.WorkloadGridStatus) {
		s.States = map[string]v1.SiteState{"b": {Phase: v1.SiteUnreachable}, "d": {Phase: v1.SiteStalled}}
	})
	*log = nil
	told, err := run(g)
	if want := "a restarted, b is left out: it is Unreachable, c is left out: it is held, d restarted, restarted in 2 sites; 2 left out"; err != nil || told != want {
		t.Errorf("got %s, %v, want %s", told, err, want)
	}
	if want := []string{"patch echo-a", "ready echo-a", "patch echo-d", "ready echo-d"}; !slices.Equal(*log, want) {
		t.Errorf("got %q, want %q", *log, want)
	}
	g.expect(t, "the templates stay", func(o *v1.DeploymentGrid) bool {
		return !strings.Contains(string(o.Spec.Template.Raw), "restarted")
	})
	restarted := &appsv1.Deployment{}
	of := client.ObjectKey{Namespace: "shop", Name: "echo-a"}
	if err := g.cluster.Watcher.Get(t.Context(), of, restarted); err != nil ||
		restarted.Spec.Template.Annotations[v1.AnnotationRestarted] != "1970-01-01T00:00:00Z" {
		t.Errorf("got %v, %v", restarted.Spec.Template.Annotations, err)
	}

	g, log = withoutWaves(t, "b", "a", "b", "c")
	told, err = run(g)
	if told != "a restarted, " || err == nil || !strings.Contains(err.Error(), "1 of 3 sites have restarted; Deployment echo-b of site b") {
		t.Errorf("got %s, %v", told, err)
	}
	if slices.Contains(*log, "patch echo-c") {
		t.Errorf("it went on: %q", *log)
	}
}

func TestIsFinished(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{kind: Deployment, metadata: {generation: 2}, status: {observedGeneration: 1, updatedReplicas: 1, availableReplicas: 1}}`: false,
		`{kind: Deployment, spec: {replicas: 2}, status: {replicas: 3, updatedReplicas: 2, availableReplicas: 3}}`:                 false,
		`{kind: Deployment, spec: {replicas: 2}, status: {replicas: 2, updatedReplicas: 2, availableReplicas: 1}}`:                 false,
		`{kind: Deployment, spec: {replicas: 2}, status: {replicas: 2, updatedReplicas: 2, availableReplicas: 2}}`:                 true,
		`{kind: Deployment, spec: {replicas: 0}, status: {}}`:                                                                      true,
		`{kind: StatefulSet, spec: {replicas: 3}, status: {updatedReplicas: 2, availableReplicas: 3}}`:                             false,
		`{kind: StatefulSet, spec: {replicas: 3, updateStrategy: {rollingUpdate: {partition: 1}}},
			status: {updatedReplicas: 2, availableReplicas: 3}}`: true,
		`{kind: DaemonSet, status: {desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 1}}`: false,
		`{kind: DaemonSet, status: {desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 2}}`: true,
	} {
		u := &unstructured.Unstructured{}
		data, err := yaml.YAMLToJSON([]byte(strings.Replace(text, "{kind", "{apiVersion: apps/v1, kind", 1)))
		if err == nil {
			err = u.UnmarshalJSON(data)
		}
		if err != nil {
			t.Fatal(errors.Join(err, fmt.Errorf("%s", text)))
		}
		if got := isFinished(u); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
}
