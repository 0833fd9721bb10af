package gridcontroller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// raw is a template.
func raw(text string) v1.Template { return v1.Template{Raw: []byte(text)} }

const plain = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},` +
	`"spec":{"containers":[{"name":"c","image":"i"}]}}}`

const namespace = "shop"

// fixture is an API server of sorts with one reconciler per kind of grid. The end-to-end tests have a real one;
// here are the cases that take a certain time, or a certain error.
type fixture struct {
	*testing.T
	client    client.Client
	clock     *clocktesting.FakePassiveClock
	events    *events.FakeRecorder
	workloads map[string]*workloadReconciler
	services  *serviceReconciler

	mu sync.Mutex // guards all below
	// reads counts the objects that were read past the cache.
	reads int
	// calls are the writes that reached the API server: "apply demo-east".
	calls []string
	// fail, if set, makes a call fail; after does so once it has had its effect. Creations and lists of
	// ControllerRevisions, "create demo-1" and "list revisions", are no calls, but may fail. failLists makes live lists
	// of nodes fail.
	fail, after func(call string) error
	failLists   error
	// applying, if set, is called with what is about to be applied. It is set before anything is reconciled.
	applying func(name string, o runtime.ApplyConfiguration)
	// applied has what was last applied, and what came of it, by name.
	applied map[string]string
	// nodes are the labels of all nodes.
	nodes map[string]map[string]string
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1.AddToScheme} {
		if err := add(all); err != nil {
			t.Fatal(err)
		}
	}
	f := &fixture{
		T: t, clock: clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)),
		workloads: map[string]*workloadReconciler{}, nodes: map[string]map[string]string{},
		applied: map[string]string{},
	}
	f.client = fake.NewClientBuilder().WithScheme(all).WithObjects(objects...).WithReturnManagedFields().
		WithIndex(&appsv1.Deployment{}, ownerIndex, ownerOf).WithIndex(&appsv1.StatefulSet{}, ownerIndex,
		ownerOf).WithIndex(&appsv1.DaemonSet{}, ownerIndex, ownerOf).
		WithStatusSubresource(&v1.DeploymentGrid{}, &v1.StatefulSetGrid{}, &v1.DaemonSetGrid{}, &v1.ServiceGrid{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration,
				options ...client.ApplyOption) error {
				u, ok := o.(appliedObject)
				if !ok {
					return fmt.Errorf("%T is applied", o)
				}
				name := u.GetName()
				config := f.mark(u)
				if f.unchanged(u, config) {
					return nil
				}
				if err := f.call("apply " + name); err != nil {
					return err
				}
				if f.applying != nil {
					f.applying(name, o)
				}
				if err := c.Apply(ctx, o, options...); err != nil {
					return err
				}
				f.mu.Lock()
				f.applied[name] = config + f.mark(u)
				f.mu.Unlock()
				return f.lostAnswer("apply " + name)
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object,
				options ...client.CreateOption) error {
				if _, ok := o.(*corev1.Pod); ok {
					return c.Create(ctx, o, options...)
				}
				if err := f.failure("create " + o.GetName()); err != nil {
					return err
				}
				if err := c.Create(ctx, o, options...); err != nil {
					return err
				}
				return f.lostAnswer("create " + o.GetName())
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
				options ...client.PatchOption) error {
				if _, ok := o.(*appsv1.ControllerRevision); ok {
					return c.Patch(ctx, o, patch, options...)
				}
				if err := f.call("patch " + o.GetName()); err != nil {
					return err
				}
				return c.Patch(ctx, o, patch, options...)
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object,
				options ...client.DeleteOption) error {
				if _, ok := o.(*corev1.Pod); ok {
					return c.Delete(ctx, o, options...)
				}
				if err := f.call("delete " + o.GetName()); err != nil {
					return err
				}
				return c.Delete(ctx, o, options...)
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object,
				patch client.Patch, options ...client.SubResourcePatchOption) error {
				if err := f.call(sub + " " + o.GetName()); err != nil {
					return err
				}
				if err := c.SubResource(sub).Patch(ctx, o, patch, options...); err != nil {
					return err
				}
				return f.lostAnswer(sub + " " + o.GetName())
			},
		}).Build()
	f.restart()
	return f
}

// appliedObject is an object that is applied.
type appliedObject interface {
	metav1.Object
	UnstructuredContent() map[string]any
	SetUnstructuredContent(content map[string]any)
}

// mark is the text of an object, without what the API server counts.
func (f *fixture) mark(object appliedObject) string {
	content := runtime.DeepCopyJSON(object.UnstructuredContent())
	for _, counted := range []string{"uid", "resourceVersion", "generation", "creationTimestamp"} {
		unstructured.RemoveNestedField(content, "metadata", counted)
	}
	entries, _, _ := unstructured.NestedSlice(content, "metadata", "managedFields")
	_ = unstructured.SetNestedSlice(content, slices.DeleteFunc(entries, func(entry any) bool {
		return entry.(map[string]any)["manager"] != v1.FieldManager
	}), "metadata", "managedFields")
	text := ""
	for _, field := range []string{"spec", "metadata"} {
		data, err := json.Marshal(content[field])
		if err != nil {
			f.Error(err)
		}
		text += string(data)
	}
	return text
}

// unchanged reports whether to apply an object changes nothing: then an API server writes nothing, unlike the fake.
func (f *fixture) unchanged(object appliedObject, config string) bool {
	f.mu.Lock()
	before, known := f.applied[object.GetName()]
	f.mu.Unlock()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.(runtime.Object).GetObjectKind().GroupVersionKind())
	key := client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}
	if !known || f.client.Get(f.Context(), key, live) != nil || before != config+f.mark(live) {
		return false
	}
	object.SetUnstructuredContent(live.Object)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	return true
}

// restart is a new controller, which remembers nothing.
func (f *fixture) restart() {
	f.events = events.NewFakeRecorder(1000)
	common := shared{
		cluster:  cluster{cache: f.client, live: liveReader{f}, writer: f.client, clock: f.clock},
		recorder: f.events, grace: 5 * time.Minute,
	}
	before := f.workloads["DeploymentGrid"]
	for _, w := range workloads {
		r := &workloadReconciler{shared: common, kind: w, nodes: newNodes()}
		if before != nil {
			r.nodes = f.workloads[w.Kind].nodes
		}
		f.workloads[w.Kind] = r
	}
	f.services = &serviceReconciler{shared: common, nodes: newNodes()}
}

// metrics are those of the replica that leads.
func (f *fixture) metrics() collector {
	leads := make(chan struct{})
	close(leads)
	return collector{f.client, leads}
}

// liveReader asks the API server itself.
type liveReader struct{ *fixture }

// Get implements client.Reader.
func (r liveReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	r.mu.Lock()
	r.reads++
	r.mu.Unlock()
	return r.client.Get(ctx, key, o, options...)
}

// condensedCache reads children as the controller's cache keeps them: without what transform leaves out.
type condensedCache struct{ client.Client }

// Get implements client.Reader.
func (c condensedCache) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	if err := c.Client.Get(ctx, key, o, options...); err != nil {
		return err
	}
	if u, ok := o.(*unstructured.Unstructured); ok {
		return condense(u)
	}
	return nil
}

// List implements client.Reader.
func (c condensedCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if err := c.Client.List(ctx, list, options...); err != nil {
		return err
	}
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		for i := range u.Items {
			if err := condense(&u.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func condense(u *unstructured.Unstructured) error {
	for _, k := range workloads {
		if k.Child != u.GroupVersionKind() {
			continue
		}
		small, err := k.transform(u)
		if err != nil {
			return err
		}
		object, ok := small.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("%T came out of the transform", small)
		}
		u.Object = object.Object
	}
	return nil
}

// List implements client.Reader. It is for nodes and pods only.
func (r liveReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok {
		asked := (&client.ListOptions{}).ApplyOptions(options)
		err := r.client.List(ctx, pods, &client.ListOptions{
			Namespace: asked.Namespace, LabelSelector: asked.LabelSelector,
		})
		node, ok := "", false
		if asked.FieldSelector != nil {
			node, ok = asked.FieldSelector.RequiresExactMatch("spec.nodeName")
		}
		pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return ok && pod.Spec.NodeName != node })
		return err
	}
	if services, ok := list.(*corev1.ServiceList); ok {
		return r.client.List(ctx, services, options...)
	}
	if revisions, ok := list.(*appsv1.ControllerRevisionList); ok {
		if err := r.failure("list revisions"); err != nil {
			return err
		}
		return r.client.List(ctx, revisions, options...)
	}
	nodes, ok := list.(*metav1.PartialObjectMetadataList)
	if !ok || nodes.Kind != "NodeList" {
		return fmt.Errorf("a list of %T", list)
	}
	asked := (&client.ListOptions{}).ApplyOptions(options)
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, of := range r.nodes {
		if asked.LabelSelector == nil || asked.LabelSelector.Matches(labels.Set(of)) {
			nodes.Items = append(nodes.Items, metav1.PartialObjectMetadata{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of},
			})
		}
	}
	return r.failLists
}

func (f *fixture) call(call string) error {
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	return f.failure(call)
}

// failure is the error with which a call fails.
func (f *fixture) failure(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail(call)
	}
	return nil
}

// lostAnswer is the error of a call that has had its effect.
func (f *fixture) lostAnswer(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.after != nil {
		return f.after(call)
	}
	return nil
}

// took returns the writes since it was last asked, without those of statuses, in order of their text.
func (f *fixture) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := slices.DeleteFunc(f.calls, func(call string) bool { return strings.HasPrefix(call, "status ") })
	f.calls = nil
	slices.Sort(calls)
	return calls
}

func (f *fixture) failing(fail func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// nodesIn puts a node into each unit.
func (f *fixture) nodesIn(units ...string) {
	f.Helper()
	for _, unit := range units {
		f.node("node-"+unit, unit)
	}
}

// node sets a node's unit; empty takes it out of all. The reconcilers hear of it.
func (f *fixture) node(name, unit string) {
	labels := map[string]string{}
	if unit != "" {
		labels["zone1"] = unit
	}
	f.mu.Lock()
	f.nodes[name] = labels
	f.mu.Unlock()
	f.hear(name, labels)
}

// hear tells the reconcilers of a node's labels, or with nil that it is gone, whether or not it is so.
func (f *fixture) hear(name string, labels map[string]string) {
	if labels == nil {
		f.note(name, nil)
		return
	}
	f.note(name, &nodeState{name: name, labels: labels})
}

// lose tells the reconcilers that the node of a unit has fallen silent.
func (f *fixture) lose(name, unit string) {
	f.note(name, &nodeState{name: name, labels: map[string]string{"zone1": unit}, lost: true, since: f.clock.Now()})
}

func (f *fixture) note(name string, state *nodeState) {
	for _, r := range f.workloads {
		r.nodes.note(name, state)
	}
	f.services.nodes.note(name, state)
}

// reconcile reconciles a grid and returns when it asks to be called again, 0 for never.
func (f *fixture) reconcile(grid client.Object) time.Duration {
	f.Helper()
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: grid.GetName()}}
	var r reconcile.Reconciler = f.services
	if _, ok := grid.(*v1.ServiceGrid); !ok {
		r = f.workloads[f.kind(grid)]
	}
	result, err := r.Reconcile(f.Context(), request)
	if err != nil {
		f.Fatal(err)
	}
	return result.RequeueAfter
}

func (f *fixture) kind(object client.Object) string {
	gvks, _, err := f.client.Scheme().ObjectKinds(object)
	if err != nil {
		f.Fatal(err)
	}
	return gvks[0].Kind
}

// pass is a step of a second and a reconciliation, with the grid read again afterwards.
func (f *fixture) pass(grid client.Object) {
	f.Helper()
	f.step(time.Second)
	f.reconcile(grid)
	f.get(grid)
}

func (f *fixture) step(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

func (f *fixture) get(object client.Object) {
	f.Helper()
	if err := f.client.Get(f.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) update(object client.Object, change func()) {
	f.Helper()
	f.get(object)
	change()
	object.SetGeneration(object.GetGeneration() + 1)
	if err := f.client.Update(f.Context(), object); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) deployment(name string) *appsv1.Deployment {
	f.Helper()
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	f.get(d)
	return d
}

// names are those of all Deployments.
func (f *fixture) names() string {
	f.Helper()
	list := &appsv1.DeploymentList{}
	if err := f.client.List(f.Context(), list); err != nil {
		f.Fatal(err)
	}
	var names []string
	for _, d := range list.Items {
		names = append(names, d.Name)
	}
	return strings.Join(names, " ")
}

// expectCondition checks status and reason, and that the message contains all of says.
func (f *fixture) expectCondition(
	conditions []metav1.Condition, kind string, status metav1.ConditionStatus, reason string, says ...string,
) {
	f.Helper()
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil || c.Status != status || c.Reason != reason {
		f.Errorf("condition %s: want %s, %s, got %+v", kind, status, reason, c)
		return
	}
	for _, want := range says {
		if !strings.Contains(c.Message, want) {
			f.Errorf("condition %s does not say %q: %s", kind, want, c.Message)
		}
	}
}

// told returns the events since it was last asked.
func (f *fixture) told() []string {
	var told []string
	for {
		select {
		case event := <-f.events.Events:
			told = append(told, event)
		default:
			return told
		}
	}
}

func (f *fixture) expectEvent(told []string, parts ...string) {
	f.Helper()
	for _, event := range told {
		all := true
		for _, part := range parts {
			all = all && strings.Contains(event, part)
		}
		if all {
			return
		}
	}
	f.Errorf("no event says %q: %q", parts, told)
}

func (f *fixture) expectTook(want ...string) {
	f.Helper()
	if got := f.took(); !slices.Equal(got, want) {
		f.Errorf("got the writes %q, want %q", got, want)
	}
}

func deploymentGrid(name, template string) *v1.DeploymentGrid {
	return &v1.DeploymentGrid{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
		},
		Spec: v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: raw(template)},
	}
}

func serviceGrid(name, template string) *v1.ServiceGrid {
	return &v1.ServiceGrid{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
		},
		Spec: v1.ServiceGridSpec{GridUniqKey: "zone1", Template: raw(template)},
	}
}

var errBroken = errors.New("the API server is broken")

func invalid(name string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s: field is immutable", name),
	}}
}
