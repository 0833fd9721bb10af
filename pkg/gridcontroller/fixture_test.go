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
	corev1listers "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
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

// with is the plain template with further fields.
func with(fields string) string { return "{" + fields + "," + plain[1:] }

const plain = `{"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},` +
	`"spec":{"containers":[{"name":"c","image":"i"}]}}}`

const namespace = "shop"

// fixture is an API server of sorts with one reconciler per kind of grid. The end-to-end tests have a real one;
// here are the cases that take a certain time, or a certain error.
type fixture struct {
	testing.TB
	client      client.Client
	clock       *clocktesting.FakePassiveClock
	events      *events.FakeRecorder
	reconcilers map[string]*reconciler
	// cachedNodes are the nodes that the reconcilers see.
	cachedNodes toolscache.Indexer

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
	// applied has what was last applied, and what came of it, by name.
	applied map[string]string
	// nodes are the labels of all nodes.
	nodes map[string]map[string]string
}

func newFixture(tb testing.TB, objects ...client.Object) *fixture {
	tb.Helper()
	scheme, err := newScheme() // a larger one makes each write slow: the fake client maps all its kinds every time
	if err != nil {
		tb.Fatal(err)
	}
	f := &fixture{
		TB: tb, clock: clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)),
		reconcilers: map[string]*reconciler{}, nodes: map[string]map[string]string{},
		applied: map[string]string{}, cachedNodes: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, nil),
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithReturnManagedFields().
		WithStatusSubresource(&v1.DeploymentGrid{}, &v1.StatefulSetGrid{}, &v1.DaemonSetGrid{}, &v1.ServiceGrid{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration,
				options ...client.ApplyOption) error {
				return f.apply(o, func() error { return c.Apply(ctx, o, options...) })
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object,
				options ...client.CreateOption) error {
				return f.write("create ", o, func() error { return c.Create(ctx, o, options...) })
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch,
				options ...client.PatchOption) error {
				return f.write("patch ", o, func() error { return c.Patch(ctx, o, patch, options...) })
			},
			Delete: func(ctx context.Context, c client.WithWatch, o client.Object,
				options ...client.DeleteOption) error {
				return f.write("delete ", o, func() error { return c.Delete(ctx, o, options...) })
			},
			SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object,
				patch client.Patch, options ...client.SubResourcePatchOption) error {
				return f.write(sub+" ", o, func() error { return c.SubResource(sub).Patch(ctx, o, patch, options...) })
			},
		})
	for _, owned := range []client.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}} {
		builder.WithIndex(owned, ownerIndex, ownerOf)
	}
	f.client = builder.
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*corev1.Pod).Spec.NodeName}
		}).
		WithIndex(&corev1.Pod{}, "status.phase", func(o client.Object) []string {
			return []string{string(o.(*corev1.Pod).Status.Phase)}
		}).Build()
	f.restart()
	return f
}

// demo makes a fixture with the DeploymentGrid demo, and a node in each of the sites.
func demo(t *testing.T, sites []string, changes ...func(*v1.DeploymentGrid)) (*fixture, *v1.DeploymentGrid) {
	t.Helper()
	grid := deploymentGrid("demo", plain)
	for _, change := range changes {
		change(grid)
	}
	f := newFixture(t, grid)
	f.nodesIn(sites...)
	return f, grid
}

// in names sites.
func in(sites string) []string { return strings.Fields(sites) }

// numbered names as many sites: u000, u001 and so on.
func numbered(sites int) []string {
	all := make([]string, sites)
	for i := range all {
		all[i] = fmt.Sprintf("u%03d", i)
	}
	return all
}

// write is a write. It may fail before it has had its effect, or after it. What others do does not fail.
func (f *fixture) write(verb string, o client.Object, do func() error) error {
	call := verb + o.GetName()
	switch o.(type) {
	case *corev1.Pod, *appsv1.ReplicaSet:
		return do()
	case *appsv1.ControllerRevision:
		if verb == "patch " {
			return do()
		}
	}
	return f.call(call, verb != "create ", do)
}

// call is a call to the API server, which is counted or not.
func (f *fixture) call(call string, counts bool, do func() error) error {
	if counts {
		f.mu.Lock()
		f.calls = append(f.calls, call)
		f.mu.Unlock()
	}
	if err := f.failure(call); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.after != nil {
		return f.after(call)
	}
	return nil
}

// apply applies an object, unless that changes nothing.
func (f *fixture) apply(o runtime.ApplyConfiguration, do func() error) error {
	u, ok := o.(appliedObject)
	if !ok {
		return fmt.Errorf("%T is applied", o)
	}
	name, config := u.GetName(), f.mark(u)
	if f.unchanged(u, config) {
		return nil
	}
	return f.call("apply "+name, true, func() error {
		if err := errors.Join(f.renew(u), do()); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.applied[name] = config + f.mark(u)
		return nil
	})
}

// renew makes a Deployment whose image is about to change begin again with its pods, as its controller does.
func (f *fixture) renew(u appliedObject) error {
	applied, d := &appsv1.Deployment{}, &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.UnstructuredContent(), applied); err != nil {
		return err
	}
	key := client.ObjectKey{Namespace: u.GetNamespace(), Name: u.GetName()}
	if err := f.client.Get(f.Context(), key, d); err != nil {
		return client.IgnoreNotFound(err) // it is made now, or is no Deployment
	}
	images := func(d *appsv1.Deployment) (all []string) {
		for _, container := range d.Spec.Template.Spec.Containers {
			all = append(all, container.Image)
		}
		return all
	}
	if now := images(applied); len(now) == 0 || slices.Equal(images(d), now) {
		return nil
	}
	d.Status = appsv1.DeploymentStatus{}
	return f.client.Status().Update(f.Context(), d)
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
	for _, k := range v1.Kinds {
		f.reconcilers[k.Kind] = &reconciler{
			GridKind: k, cache: f.client, apiReader: liveReader{f},
			writer: client.WithFieldOwner(f.client, v1.FieldManager),
			clock:  f.clock, recorder: f.events, config: Config{SiteRemovalGrace: 5 * time.Minute},
			nodes: corev1listers.NewNodeLister(f.cachedNodes),
		}
	}
}

// metrics are those of the replica that leads.
func (f *fixture) metrics() collector { return collector{f.client} }

// liveReader asks the API server itself.
type liveReader struct{ *fixture }

// Get implements client.Reader.
func (r liveReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	r.mu.Lock()
	r.reads++
	r.mu.Unlock()
	return r.client.Get(ctx, key, o, options...)
}

// condensedCache reads children as the controller's cache keeps them: without what condenseChild leaves out.
type condensedCache struct{ client.Client }

// Get implements client.Reader.
func (c condensedCache) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	err := c.Client.Get(ctx, key, o, options...)
	if u, ok := o.(*unstructured.Unstructured); ok && err == nil {
		return condense(u)
	}
	return err
}

// List implements client.Reader.
func (c condensedCache) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := c.Client.List(ctx, list, options...)
	if u, ok := list.(*unstructured.UnstructuredList); ok {
		for i := range u.Items {
			err = errors.Join(err, condense(&u.Items[i]))
		}
	}
	return err
}

func condense(u *unstructured.Unstructured) error {
	for _, k := range v1.Kinds {
		if k.Child == u.GroupVersionKind() {
			small, err := condenseChild(u)
			if err == nil {
				u.Object = small.(*unstructured.Unstructured).Object
			}
			return err
		}
	}
	return nil
}

// List implements client.Reader. It has the nodes from the fixture.
func (r liveReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	switch of := list.(type) {
	case *appsv1.ControllerRevisionList:
		if err := r.failure("list revisions"); err != nil {
			return err
		}
	case *metav1.PartialObjectMetadataList:
		asked := (&client.ListOptions{}).ApplyOptions(options)
		r.mu.Lock()
		defer r.mu.Unlock()
		for name, labelled := range r.nodes {
			if asked.LabelSelector == nil || asked.LabelSelector.Matches(labels.Set(labelled)) {
				of.Items = append(of.Items, metav1.PartialObjectMetadata{
					ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labelled},
				})
			}
		}
		return r.failLists
	}
	return r.client.List(ctx, list, options...)
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

// took returns the writes since it was last asked, without those of statuses, in order of their text.
func (f *fixture) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := slices.DeleteFunc(f.calls, func(call string) bool { return strings.HasPrefix(call, "status ") })
	f.calls = nil
	slices.Sort(calls)
	return calls
}

// failOn makes the calls that begin with a text fail with an error.
func (f *fixture) failOn(calls string, err error) {
	f.failing(func(call string) error {
		if strings.HasPrefix(call, calls) {
			return err
		}
		return nil
	})
}

func (f *fixture) failing(fail func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

// nodesIn puts a node into each site.
func (f *fixture) nodesIn(sites ...string) {
	f.Helper()
	for _, site := range sites {
		f.node("node-"+site, site)
	}
}

// node sets a node's site; empty takes it out of all. The reconcilers hear of it.
func (f *fixture) node(name, site string) {
	labels := map[string]string{}
	if site != "" {
		labels["zone1"] = site
	}
	f.mu.Lock()
	f.nodes[name] = labels
	f.mu.Unlock()
	f.note(name, &nodeState{labels: labels})
}

// lose tells the reconcilers that the nodes of sites have fallen silent.
func (f *fixture) lose(sites ...string) {
	for _, site := range sites {
		f.loseNode("node-"+site, site)
	}
}

func (f *fixture) loseNode(name, site string) {
	f.note(name, &nodeState{labels: map[string]string{"zone1": site}, lost: true, since: f.clock.Now()})
}

// nodeState is the state of a node as it is cached.
type nodeState struct {
	labels map[string]string
	lost   bool
	since  time.Time
}

// node is a node in this state; without one it has no labels.
func (s *nodeState) node(name string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if s != nil {
		node.Labels = s.labels
		ready := corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.since),
		}
		if s.lost {
			ready.Status = corev1.ConditionUnknown
		}
		node.Status.Conditions = []corev1.NodeCondition{ready}
	}
	return node
}

// note changes the cached state of a node; nil is that it does not exist.
func (f *fixture) note(name string, state *nodeState) {
	err := f.cachedNodes.Update(state.node(name))
	if state == nil {
		err = f.cachedNodes.Delete(state.node(name))
	}
	if err != nil {
		f.Error(err)
	}
}

// reconcile reconciles a grid and returns when it asks to be called again, 0 for never.
func (f *fixture) reconcile(grid client.Object) time.Duration {
	f.Helper()
	again, err := f.try(grid)
	if err != nil {
		f.Fatal(err)
	}
	return again
}

// try reconciles a grid. The queue tries again after an error.
func (f *fixture) try(grid client.Object) (again time.Duration, err error) {
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(grid)}
	result, err := f.reconcilers[f.kind(grid)].Reconcile(f.Context(), request)
	return result.RequeueAfter, err
}

// tries reconciles a few times, and reads the grid again.
func (f *fixture) tries(grid client.Object) {
	f.Helper()
	for range 4 {
		f.step(time.Second)
		if _, err := f.try(grid); err != nil {
			f.Logf("reconciling: %v", err)
		}
	}
	f.get(grid)
}

func (f *fixture) kind(object client.Object) string {
	gvk, err := f.client.GroupVersionKindFor(object)
	if err != nil {
		f.Fatal(err)
	}
	return gvk.Kind
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

// annotate gives a grid one annotation, which is none of its spec.
func (f *fixture) annotate(grid client.Object, key, value string) {
	f.Helper()
	f.update(grid, func() {
		grid.SetGeneration(grid.GetGeneration() - 1)
		grid.SetAnnotations(map[string]string{key: value})
	})
}

// edit changes a Deployment, as somebody else does.
func (f *fixture) edit(name string, change func(d *appsv1.Deployment)) {
	f.Helper()
	d := f.deployment(name)
	change(d)
	if err := f.client.Update(f.Context(), d, client.FieldOwner("someone")); err != nil {
		f.Fatal(err)
	}
}

// create makes objects, as somebody else does.
func (f *fixture) create(objects ...client.Object) {
	f.Helper()
	for _, o := range objects {
		if err := f.client.Create(f.Context(), o); err != nil {
			f.Fatal(err)
		}
	}
}

// updateStatus writes the status of an object, as its controller does.
func (f *fixture) updateStatus(object client.Object) {
	f.Helper()
	if err := f.client.Status().Update(f.Context(), object); err != nil {
		f.Fatal(err)
	}
}

// delete deletes an object.
func (f *fixture) delete(object client.Object) {
	f.Helper()
	if err := f.client.Delete(f.Context(), object); err != nil {
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

// expect checks a condition of a grid, such as "Ready=True NoSites", and that its message contains all of says.
func (f *fixture) expect(grid client.Object, condition string, says ...string) {
	f.Helper()
	var all []metav1.Condition
	switch of := grid.(type) {
	case *v1.ServiceGrid:
		all = of.Status.Conditions
	case v1.Object:
		_, status := v1.SpecAndStatus(of)
		all = status.Conditions
	}
	kind, _, _ := strings.Cut(condition, "=")
	c := meta.FindStatusCondition(all, kind)
	if c == nil || fmt.Sprintf("%s=%s %s", kind, c.Status, c.Reason) != condition {
		f.Errorf("want the condition %s, got %+v", condition, c)
		return
	}
	for _, want := range says {
		if !strings.Contains(c.Message, want) {
			f.Errorf("condition %s does not say %q: %s", kind, want, c.Message)
		}
	}
}

// expectWell checks that nothing is wrong with a grid.
func (f *fixture) expectWell(grid client.Object) {
	f.Helper()
	f.expect(grid, "Degraded=False AsDesired")
}

// expectSite returns the state of a site, which has to be in a phase.
func (f *fixture) expectSite(grid *v1.DeploymentGrid, site string, phase v1.SitePhase) v1.SiteState {
	f.Helper()
	state := grid.Status.States[site]
	if state.Phase != phase {
		f.Errorf("site %s: want the phase %s, got %+v", site, phase, state)
	}
	return state
}

// expectNames compares the names of all Deployments.
func (f *fixture) expectNames(want string) {
	f.Helper()
	if got := f.names(); got != want {
		f.Errorf("there are %s, want %s", got, want)
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

func objectMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name), Generation: 1,
	}
}

func deploymentGrid(name, template string) *v1.DeploymentGrid {
	return &v1.DeploymentGrid{
		ObjectMeta: objectMeta(name), Spec: v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: raw(template)},
	}
}

// daemonSetGrid makes the DaemonSetGrid agent, with a rollout if there are waves.
func daemonSetGrid(template string, waves ...v1.Wave) *v1.DaemonSetGrid {
	grid := &v1.DaemonSetGrid{
		ObjectMeta: objectMeta("agent"), Spec: v1.WorkloadGridSpec{GridUniqKey: "zone1", Template: raw(template)},
	}
	if len(waves) > 0 {
		grid.Spec.Rollout = inWaves(waves...)
	}
	return grid
}

func serviceGrid(name, template string) *v1.ServiceGrid {
	return &v1.ServiceGrid{
		ObjectMeta: objectMeta(name), Spec: v1.ServiceGridSpec{GridUniqKey: "zone1", Template: raw(template)},
	}
}

var errBroken = errors.New("the API server is broken")

func invalid(name string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s: field is immutable", name),
	}}
}
