package grid

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	// deadline is how long a change may take to get where it should, on a busy machine.
	deadline = 60 * time.Second
	// between is the pause between two looks at what is to come. Each look is a request.
	between = 100 * time.Millisecond
	// closely is the pause between two looks at what must not happen meanwhile.
	closely = 50 * time.Millisecond
)

// fixture is a namespace of an installation with a site label of its own.
type fixture struct {
	suite.Test
	*installation

	ctx       context.Context
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
	// key is the test's site label.
	key   string
	nodes int
}

// newFixture waits until there is a place for the test.
func newFixture(t *testing.T, i *installation) *fixture {
	t.Helper()
	begin := time.Now()
	i.places <- struct{}{}
	t.Cleanup(func() { <-i.places })
	t.Logf("%-60s %dms", "waited for a place", time.Since(begin).Milliseconds())
	f := &fixture{Test: suite.NewTest(t, i.cluster, deadline, between), installation: i, ctx: t.Context(),
		client: i.cluster.Client(), dynamic: suite.Dynamic(t, i.cluster.RESTConfig()),
		namespace: suite.Namespace(t, i.cluster, "grid-")}
	f.key = f.namespace
	return f
}

// stays fails the test if the question has an error within the time.
func (f *fixture) stays(what string, d time.Duration, ask func() error) {
	f.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(closely) {
		if err := ask(); err != nil {
			f.Fatalf("%s: %v", what, err)
		}
	}
	f.Logf("%-60s for %s", what, d)
}

// says returns a question to wait for, which is answered by an error unless a text has this part.
func says(part string, get func() string) func() error {
	return func() error {
		if got := get(); !strings.Contains(got, part) {
			return fmt.Errorf("no %q in %s", part, got)
		}
		return nil
	}
}

// node adds a node to a site, and returns its name.
func (f *fixture) node(site string) string {
	f.Helper()
	return f.nodesIn(site)[0]
}

// nodesIn adds a node to each of these sites, and returns their names.
func (f *fixture) nodesIn(sites ...string) []string {
	f.Helper()
	labels := make([]map[string]string, len(sites))
	for i, site := range sites {
		labels[i] = map[string]string{f.key: site, v1.LabelEdgeNode: v1.EdgeNodeStatic}
	}
	return f.nodesWith(labels)
}

// nodesWith adds a node with each of these sets of labels, and returns their names.
func (f *fixture) nodesWith(labels []map[string]string) []string {
	f.Helper()
	var specs []cluster.NodeSpec
	var names []string
	for _, of := range labels {
		f.nodes++
		name := fmt.Sprintf("%s-%d", f.namespace, f.nodes)
		specs, names = append(specs, cluster.NodeSpec{Name: name, Labels: of}), append(names, name)
	}
	f.AddNodes(specs...)
	return names
}

func (f *fixture) relabel(node, site string) {
	f.Helper()
	f.Must(f.Cluster.RelabelNode(f.ctx, node, f.key, site))
}

// report is what a kubelet says of its node: a patch, because the node controllers write the Node too.
func (f *fixture) report(node string, ready corev1.ConditionStatus) {
	f.Helper()
	phase := corev1.NodePending // kwok sends heartbeats for nodes that run
	if ready == corev1.ConditionTrue {
		phase = corev1.NodeRunning
	}
	patch := fmt.Appendf(nil, `{"status":{"phase":%q,"conditions":[{"type":"Ready","status":%q,"reason":"Test",`+
		`"lastTransitionTime":%q}]}}`, phase, ready, time.Now().UTC().Format(time.RFC3339))
	_, err := f.client.CoreV1().Nodes().Patch(f.ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{},
		"status")
	f.Must(err)
}

var resources = map[string]schema.GroupVersionResource{
	"DeploymentGrid":  {Group: "superedge.io", Version: "v1", Resource: "deploymentgrids"},
	"StatefulSetGrid": {Group: "superedge.io", Version: "v1", Resource: "statefulsetgrids"},
	"DaemonSetGrid":   {Group: "superedge.io", Version: "v1", Resource: "daemonsetgrids"},
	"ServiceGrid":     {Group: "superedge.io", Version: "v1", Resource: "servicegrids"},
	"Deployment":      {Group: "apps", Version: "v1", Resource: "deployments"},
	"StatefulSet":     {Group: "apps", Version: "v1", Resource: "statefulsets"},
	"DaemonSet":       {Group: "apps", Version: "v1", Resource: "daemonsets"},
	"Service":         {Version: "v1", Resource: "services"},
}

func (f *fixture) of(kind string) dynamic.ResourceInterface {
	return f.dynamic.Resource(resources[kind]).Namespace(f.namespace)
}

// apply applies a manifest, in which KEY stands for the test's site label.
func (f *fixture) apply(manifest string) {
	f.Helper()
	f.Must(f.tryApply(manifest))
}

func (f *fixture) tryApply(manifest string) error {
	u := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(strings.NewReplacer("KEY", f.key, "\t", " ").Replace(manifest)),
		&u.Object); err != nil {
		return err
	}
	_, err := f.of(u.GetKind()).Apply(f.ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "user", Force: true})
	return err
}

// patch changes an object as someone else would; the patch is a JSON merge patch in YAML.
func (f *fixture) patch(kind, name, patch string, sub ...string) {
	f.Helper()
	data, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(patch, "KEY", f.key)))
	f.Must(err)
	_, err = f.of(kind).Patch(f.ctx, name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: "someone"},
		sub...)
	f.Must(err)
}

func (f *fixture) get(kind, name string) *unstructured.Unstructured {
	f.Helper()
	u, err := f.of(kind).Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	return u
}

// names are those of all objects of the kind.
func (f *fixture) names(kind string) string {
	f.Helper()
	list, err := f.of(kind).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	var names []string
	for _, item := range list.Items {
		names = append(names, item.GetName())
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// deployments are the names of all Deployments, demoPods is how many pods the grid demo has.
func (f *fixture) deployments() string { return f.names("Deployment") }

func (f *fixture) demoPods() int { return len(f.pods("demo-")) }

func (f *fixture) expectNames(what, kind, want string) {
	f.Helper()
	f.Eventually(what, suite.Is(want, func() string { return f.names(kind) }))
}

// expectReady waits until this many sites of a grid are ready, and no more are there.
func (f *fixture) expectReady(kind, name string, sites int64) {
	f.Helper()
	f.Eventually(fmt.Sprintf("%s %s: %d sites ready", kind, name, sites), func() error {
		u := f.get(kind, name)
		all, _, _ := unstructured.NestedInt64(u.Object, "status", "sites")
		ready, _, _ := unstructured.NestedInt64(u.Object, "status", "readySites")
		observed, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		if all != sites || ready != sites || observed != u.GetGeneration() {
			return fmt.Errorf("%d of %d sites are ready, generation %d of %d: %v", ready, all, observed,
				u.GetGeneration(), conditions(u))
		}
		return nil
	})
}

func conditions(u *unstructured.Unstructured) []metav1.Condition {
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	conditions := make([]metav1.Condition, len(list))
	for i := range list {
		if object, ok := list[i].(map[string]any); ok {
			// One that cannot be read is not there.
			_ = runtime.DefaultUnstructuredConverter.FromUnstructured(object, &conditions[i])
		}
	}
	return conditions
}

// expectCondition waits for a condition, such as Ready=True, whose message contains all of says.
func (f *fixture) expectCondition(kind, name, condition, reason string, says ...string) {
	f.Helper()
	wanted, status, _ := strings.Cut(condition, "=")
	f.Eventually(fmt.Sprintf("%s %s: %s, %s", kind, name, condition, reason), func() error {
		u := f.get(kind, name)
		c := meta.FindStatusCondition(conditions(u), wanted)
		if c == nil || string(c.Status) != status || c.Reason != reason || c.ObservedGeneration != u.GetGeneration() {
			return fmt.Errorf("got %+v", c)
		}
		for _, want := range says {
			if !strings.Contains(c.Message, want) {
				return fmt.Errorf("it does not say %q: %s", want, c.Message)
			}
		}
		return nil
	})
}

// expectEvent waits for an event on a grid.
func (f *fixture) expectEvent(kind, name, reason string, says ...string) {
	f.Helper()
	f.Eventually(fmt.Sprintf("%s %s: event %s", kind, name, reason), func() error {
		events, err := f.client.EventsV1().Events(f.namespace).List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var notes []string
		for _, event := range events.Items {
			if event.Regarding.Kind != kind || event.Regarding.Name != name || event.Reason != reason {
				continue
			}
			notes = append(notes, event.Note)
			if !slices.ContainsFunc(says, func(want string) bool { return !strings.Contains(event.Note, want) }) {
				return nil
			}
		}
		return fmt.Errorf("there is none that says %q: %q", says, notes)
	})
}

// imageOf is the image of a workload's first container.
func (f *fixture) imageOf(kind, name string) string {
	f.Helper()
	containers, _, _ := unstructured.NestedSlice(f.get(kind, name).Object, "spec", "template", "spec", "containers")
	return containers[0].(map[string]any)["image"].(string)
}

// orphan deletes the grid demo without its Deployments.
func (f *fixture) orphan() {
	f.Helper()
	f.Must(f.of("DeploymentGrid").Delete(f.ctx, "demo", metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan),
	}))
	f.Eventually("the grid is gone, and the Deployments are orphans", func() error {
		if _, err := f.of("DeploymentGrid").Get(f.ctx, "demo", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the grid is there: %w", err)
		}
		for _, name := range strings.Fields(f.deployments()) {
			if owners := f.get("Deployment", name).GetOwnerReferences(); len(owners) > 0 {
				return fmt.Errorf("%s has owners", name)
			}
		}
		return nil
	})
}

// quota lets the namespace have no more pods than it has, until remove is called.
func (f *fixture) quota(pods int64) (remove func()) {
	f.Helper()
	quotas := f.client.CoreV1().ResourceQuotas(f.namespace)
	_, err := quotas.Create(f.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods: *resource.NewQuantity(pods, resource.DecimalSI)}},
	}, metav1.CreateOptions{})
	f.Must(err)
	f.Eventually("the quota counts", func() error {
		quota, err := quotas.Get(f.ctx, "pods", metav1.GetOptions{})
		if err == nil && quota.Status.Used.Pods().Value() != pods {
			err = fmt.Errorf("used: %v", quota.Status.Used)
		}
		return err
	})
	return func() { f.Must(quotas.Delete(f.ctx, "pods", metav1.DeleteOptions{})) }
}

// createAdmission makes an object that has a say in what is written, until remove is called or the test ends. NAME
// stands for the namespace, which is its name.
func (f *fixture) createAdmission(plural, manifest string) (remove func()) {
	f.Helper()
	object := &unstructured.Unstructured{}
	f.Must(yaml.UnmarshalStrict([]byte(strings.NewReplacer("NAME", f.namespace, "\t", " ").Replace(manifest)), &object.Object))
	object.SetAPIVersion("admissionregistration.k8s.io/v1")
	objects := f.dynamic.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: plural})
	_, err := objects.Create(f.ctx, object, metav1.CreateOptions{})
	f.Must(err)
	remove = sync.OnceFunc(func() {
		_ = objects.Delete(context.Background(), f.namespace, metav1.DeleteOptions{}) // it goes with the cluster
	})
	f.Cleanup(remove)
	return remove
}

func (f *fixture) statefulSet(name string) *appsv1.StatefulSet {
	f.Helper()
	set, err := f.client.AppsV1().StatefulSets(f.namespace).Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	return set
}

// pods returns the pods whose names begin so, by name.
func (f *fixture) pods(prefix string) []corev1.Pod {
	f.Helper()
	list, err := f.client.CoreV1().Pods(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	pods := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !strings.HasPrefix(pod.Name, prefix) })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods
}

// auditMark is a place in the audit log.
func (f *fixture) auditMark() int64 {
	f.Helper()
	mark, err := f.Cluster.AuditMark()
	f.Must(err)
	return mark
}

// requests are the controller's requests since the mark that are kept.
func (f *fixture) requests(since int64, keep func(cluster.Request) bool) []cluster.Request {
	f.Helper()
	requests, err := f.Cluster.Audited(since, func(r cluster.Request) bool {
		return strings.Contains(r.UserAgent, "application-grid-controller") && keep(r)
	})
	f.Must(err)
	return requests
}

// writesDeployment reports whether a request writes a Deployment of the test's.
func (f *fixture) writesDeployment(r cluster.Request) bool {
	return r.IsWrite() && r.ObjectRef.Resource == "deployments" && r.ObjectRef.Namespace == f.namespace
}

// bareNode adds a node that nothing runs on.
func (f *fixture) bareNode(name, site string) {
	f.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{f.key: site,
		v1.LabelEdgeNode: v1.EdgeNodeStatic}}}
	_, err := f.client.CoreV1().Nodes().Create(f.ctx, node, metav1.CreateOptions{})
	f.Must(err)
	f.Cleanup(func() {
		// If it fails: the cluster goes in the end.
		_ = f.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
}

// request is one of kube-apiserver's audit log.
type request = cluster.Request

// applyAs applies a manifest as another field manager.
func (f *fixture) applyAs(manager, manifest string) {
	f.Helper()
	u := &unstructured.Unstructured{}
	f.Must(yaml.UnmarshalStrict([]byte(strings.ReplaceAll(manifest, "KEY", f.key)), &u.Object))
	_, err := f.of(u.GetKind()).Apply(f.ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: manager})
	f.Must(err)
}

// slowWebhook makes kube-apiserver wait before it takes a Deployment of a grid.
func (f *fixture) slowWebhook(grid string, pause time.Duration) {
	f.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-r.Context().Done():
		case <-time.After(pause):
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review) // kube-apiserver tells what it could not read
	}))
	f.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	f.createAdmission("validatingwebhookconfigurations", fmt.Sprintf(`{kind: ValidatingWebhookConfiguration, metadata: {name: NAME}, webhooks: [{
		name: slow.example.com, admissionReviewVersions: [v1], sideEffects: None, timeoutSeconds: 30, clientConfig: {url: %q, caBundle: %s},
		namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME}}, objectSelector: {matchLabels: {superedge.io/grid-selector: %s}},
		rules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}]}]}`,
		server.URL, base64.StdEncoding.EncodeToString(ca), grid))
}
