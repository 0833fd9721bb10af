package dashboard

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

func node(name, site string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: name, ResourceVersion: "1", Labels: map[string]string{"zone": site},
		Annotations: map[string]string{"much": strings.Repeat("x", 100)},
	}}
}

// closed is a Service that is closed over the zones.
func closed(name string) *corev1.Service {
	s := wiretest.ServiceOf("shop/"+name, `["zone"]`)
	s.ResourceVersion, s.Labels = "1", map[string]string{"app": name}
	s.Annotations[corev1.LastAppliedConfigAnnotation] = "x"
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	s.Spec = corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: 80}}}
	return s
}

// slice is a slice of a Service with a ready endpoint on each of the nodes.
func slice(service, name string, on ...string) *discoveryv1.EndpointSlice {
	s := wiretest.SliceOf("shop/"+name, service)
	s.ResourceVersion, s.Ports = "1", []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}}
	for i, node := range on {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.%d.%d", i/250, i%250)}, NodeName: ptr.To(node), Zone: ptr.To("z"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "pod-on-" + node, UID: "4b9f1b8e-0000-4000-8000-000000000000"},
		})
	}
	return s
}

// echo is a grid of a site in this phase, with a rollout.
func echo(phase v1.SitePhase) *v1.DeploymentGrid {
	return &v1.DeploymentGrid{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "u", Generation: 1},
		Spec:       v1.WorkloadGridSpec{GridUniqKey: "zone", Rollout: &v1.Rollout{}},
		Status: v1.WorkloadGridStatus{
			ObservedGeneration: 1, Sites: 1, UpdateRevision: "echo-2",
			States:     map[string]v1.SiteState{"east": {Phase: phase, Replicas: 2, ReadyReplicas: 1}},
			Conditions: []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonReady}},
			Rollout: &v1.RolloutStatus{Phase: v1.RolloutSoaking, Wave: "lab", Updated: 1, Ready: 1, Waves: []v1.WaveStatus{
				{Name: "lab", State: v1.WaveSoaking, Sites: 1, Updated: 1, Ready: 1}, {State: v1.WavePending, Sites: 3},
			}},
		},
	}
}

// read are facts of these objects, of which everything is known.
func read(tb testing.TB, objects ...kruntime.Object) *facts {
	tb.Helper()
	f := newFacts()
	for _, r := range resources() {
		f.known[r.name] = true
	}
	put(tb, f, objects...)
	return f
}

// put puts objects into the facts as their sources do, and reports whether anything follows from them.
func put(tb testing.TB, f *facts, objects ...kruntime.Object) (changed bool) {
	tb.Helper()
	for _, object := range objects {
		name := map[string]string{
			"*v1.PartialObjectMetadata": nodes, "*v1.Service": services, "*v1.EndpointSlice": endpointSlices,
			"*v1.DeploymentGrid": v1.DeploymentGridKind.Plural,
		}[fmt.Sprintf("%T", object)]
		o := object.(client.Object)
		if o.GetNamespace() != "" && name == nodes {
			name = "deployments"
		}
		trim(o)
		changed = f.set(name, client.ObjectKeyFromObject(o), o) || changed
	}
	return changed
}

func inShop(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

// TestCellFindings: the reasons of a cell have nothing of the nodes of other sites.
func TestCellFindings(t *testing.T) {
	f := read(t, node("a", "east"), node("b", "west"), closed("db"), slice("db", "db-1", "a", "b"))
	f.nodes.Diagnosis = &gridview.Diagnosis{Nodes: f.nodes.Nodes,
		Findings: []gridview.Finding{{Severity: gridview.Failure, Check: gridview.CheckKubeProxy, Node: "a"}}}
	for site, want := range map[string]int{"east": 1, "west": 0} {
		if got := f.cell("zone", site, inShop("db")).Findings; len(got) != want {
			t.Errorf("%s: got %+v", site, got)
		}
	}
}

// TestTrimmed: what is not needed is not kept.
func TestTrimmed(t *testing.T) {
	service := closed("db")
	service.Labels[v1.LabelServiceProxyName] = "other"
	f := read(t, node("n1", "east"), service, slice("db", "db-1", "n1"))
	db := inShop("db")
	kept, err := json.Marshal([]any{f.service(db), f.endpointSlices()[db]})
	if err != nil {
		t.Fatal(err)
	}
	for _, needed := range []string{"topologyKeys", "10.1.0.0", "pod-on-n1", `"n1"`, v1.LabelServiceProxyName} {
		if !strings.Contains(string(kept), needed) {
			t.Errorf("%s is not in %s", needed, kept)
		}
	}
	for _, dropped := range []string{"last-applied", "managedFields", "resourceVersion", "4b9f1b8e", "serving"} {
		if strings.Contains(string(kept), dropped) {
			t.Errorf("%s is in %s", dropped, kept)
		}
	}
}

// TestSameViews: what is kept of a Service and its endpoints is enough for the view of kubectl grid view.
func TestSameViews(t *testing.T) {
	s, nodes := closed("db"), map[string]topology.Labels{}
	s.Annotations = map[string]string{v1.AnnotationTopologyKeys: `["zone","*"]`}
	s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 1}, {Name: "b", Port: 2}}
	s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyCluster
	one, other := slice("db", "db-1", "n1"), slice("db", "db-2", "n2")
	one.Ports[0].Name, other.Ports[0].Name = ptr.To("a"), ptr.To("b")
	n1, n2 := node("n1", "east"), node("n2", "west")
	for _, n := range []*metav1.PartialObjectMetadata{n1, n2} {
		nodes[n.Name] = n.Labels
	}
	want, err := json.Marshal((&gridview.Groupings{Nodes: nodes}).View(s, []discoveryv1.EndpointSlice{*one, *other}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(read(t, n1, n2, s, one, other).viewOf(inShop("db")))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestOnlyChangesCount: an object that comes again with another resourceVersion is no change, and of a change of one
// Service the others are not computed again.
func TestOnlyChangesCount(t *testing.T) {
	f := read(t, node("n1", "east"), node("n2", "west"), closed("db"), slice("db", "db-1", "n1"), closed("web"), slice("web", "web-1", "n1", "n2"))
	state := func(name string) gridview.ServiceState {
		for _, s := range f.serviceSummaries() {
			if s.Name == name {
				return s.State
			}
		}
		return ""
	}
	if state("db") != gridview.ServiceLacking || state("web") != gridview.ServiceClosed {
		t.Errorf("db is %s, web is %s", state("db"), state("web"))
	}
	again, other := node("n1", "east"), slice("db", "db-1", "n1")
	again.ResourceVersion, other.ResourceVersion = "2", "2"
	if put(t, f, again, other, closed("db")) {
		t.Error("objects that are the same are a change")
	}
	web := f.summaries[inShop("web")]
	if !put(t, f, slice("db", "db-1", "n1", "n2")) || state("db") != gridview.ServiceClosed {
		t.Errorf("db is %s", state("db"))
	}
	if f.summaries[inShop("web")] != web {
		t.Error("another Service was summed up again")
	}
	if !put(t, f, node("n2", "north")) || len(f.overview("zone").Matrix.Sites) != 2 || f.overview("zone").Matrix.Sites[1].Name != "north" {
		t.Errorf("after a relabel: %+v", f.overview("zone").Matrix)
	}
	// A slice that goes to another Service, and objects that are gone.
	put(t, f, slice("web", "db-1", "n1"))
	if state("db") != gridview.ServiceEmpty {
		t.Errorf("db is %s without a slice", state("db"))
	}
	f.set(endpointSlices, inShop("db-1"), nil)
	f.set(services, inShop("db"), nil)
	f.set(nodes, types.NamespacedName{Name: "n2"}, nil)
	if left := len(f.objects[services]); state("db") != "" || left != 1 || len(f.overview("zone").Matrix.Sites) != 1 {
		t.Errorf("%d Services, %+v", left, f.overview("zone").Matrix)
	}
}

// TestChildren: of a child is kept whose it is, and which fields others own; a change of its status is none here.
func TestChildren(t *testing.T) {
	child := func(at int64, fields string) *metav1.PartialObjectMetadata {
		entry := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
			e := metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: ptr.To(metav1.Unix(at, 0))}
			e.FieldsV1 = metav1.NewFieldsV1(fields)
			return e
		}
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "echo-east", ResourceVersion: fmt.Sprint(at),
			Labels: map[string]string{v1.LabelGridSite: "east", v1.LabelGridSelector: "echo"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				entry("kube-controller-manager", "status", `{"f:status":{}}`), entry("someone", "", fields),
			},
		}}
	}
	f := read(t)
	set := func(child *metav1.PartialObjectMetadata) bool { return put(t, f, child) }
	const theirs = `{"f:spec":{"f:paused":{}}}`
	if !set(child(1, theirs)) || set(child(2, theirs)) || !set(child(3, `{"f:spec":{"f:replicas":{}}}`)) || !set(child(4, `{}`)) || set(child(5, `{}`)) {
		t.Error("a change of the status is a change, or another is not")
	}
	kept := f.objects["deployments"][inShop("echo-east")]
	if v1.SiteOf(kept, "echo") != "east" || len(kept.GetManagedFields()) != 0 {
		t.Errorf("got %+v", kept)
	}
}

// TestUnknown: of what cannot be read nothing is said that would follow from it.
func TestUnknown(t *testing.T) {
	f := read(t, node("n1", "east"), closed("db"), slice("db", "db-1", "n1"), echo(v1.SiteReady))
	if got := f.overview("").Grids; len(got) != 1 || got[0].Phases[gridview.Missing] != 1 {
		t.Errorf("a grid without its Deployment: %+v", got)
	}
	put(t, f, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "echo-east", Labels: map[string]string{v1.LabelGridSite: "east"},
		OwnerReferences: []metav1.OwnerReference{{UID: "u", Controller: ptr.To(true)}},
	}})
	if got := f.overview("").Grids; got[0].Phases[gridview.Missing] != 0 {
		t.Errorf("a grid whose Deployment has come: %+v", got)
	}
	f.know("deployments", false)
	if got := f.overview("").Grids; len(got) != 1 || got[0].Phases[v1.SiteReady] != 1 {
		t.Errorf("a grid whose Deployments cannot be read: %+v", got)
	}
	f.know(nodes, false)
	if got := f.overview(""); got.Services == nil || len(got.Services) != 0 {
		t.Errorf("Services without nodes: %+v", got.Services)
	}
	if f.serviceDetail(inShop("db"), "zone") != nil {
		t.Error("it is said who sees what, and nodes are not known")
	}
}

// TestOldPods: pods that cannot be read again stay, and are called old, until their grid is ready.
func TestOldPods(t *testing.T) {
	f := read(t, node("n1", "east"), echo(v1.SiteProgressing))
	name, pod := gridview.Object{Kind: "DeploymentGrid", Namespace: "shop", Name: "echo"}, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{NodeSelector: map[string]string{"zone": "east"}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	f.know("deployments", false)
	for _, step := range []struct {
		pods map[gridview.Object]readPods
		want string
	}{
		{map[gridview.Object]readPods{name: {old: true}}, "1 of 2 pods not ready"},
		{map[gridview.Object]readPods{name: {pods: []corev1.Pod{pod}}}, "1 of 2 pods not ready; pod p: it is pending"},
		{map[gridview.Object]readPods{name: {old: true}},
			"1 of 2 pods not ready; when pods could last be read, pod p: it is pending"},
		{map[gridview.Object]readPods{}, "1 of 2 pods not ready"},
	} {
		changed := f.setPods(step.pods)
		if got := f.gridStates()[0].Sites[0].Problem; got != step.want || !changed || f.setPods(maps.Clone(step.pods)) {
			t.Errorf("got %s, changed %t; want %s", got, changed, step.want)
		}
	}
}

// TestLarge measures 1,000 sites and 200 Services with an endpoint in each: what is held, and what an answer takes.
func TestLarge(t *testing.T) {
	const sites, of = 1000, 200
	before := liveheap.Size()
	f := read(t)
	var names []string
	for i := range sites {
		names = append(names, fmt.Sprint("n", i))
		put(t, f, node(names[i], fmt.Sprintf("u%04d", i)))
	}
	for i := range of {
		name := fmt.Sprint("s", i)
		put(t, f, closed(name))
		for j := 0; j < sites; j += 100 {
			put(t, f, slice(name, fmt.Sprintf("%s-%d", name, j), names[j:j+100]...))
		}
	}
	measure := func(what string, do func()) time.Duration {
		begin := time.Now()
		do()
		took := time.Since(begin)
		t.Logf("%-50s %s", what, took.Round(100*time.Microsecond))
		return took
	}
	var o Overview
	measure("the first overview", func() { o = f.overview("") })
	held := liveheap.Size() - before
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d KiB are held, the answer has %d KiB", held>>10, len(data)>>10)
	if len(o.Matrix.Sites) != sites || len(o.Services) != of || o.Matrix.Sites[0].State != gridview.CellReady || held > 128<<20 {
		t.Errorf("%d sites, %d Services, %d bytes held", len(o.Matrix.Sites), len(o.Services), held)
	}
	// The shortest of several, because something else may have the processor for longer than one takes.
	one := time.Hour
	for i := range 5 {
		put(t, f, slice("s0", "s0-0", names[1:96+i]...))
		one = min(one, measure("an overview after a change of a slice", func() { o = f.overview("") }))
	}
	if o.Matrix.Sites[0].State != gridview.CellFailed || o.Services[0].State != gridview.ServiceLacking {
		t.Errorf("%+v, %+v", o.Matrix.Sites[0], o.Services[0])
	}
	put(t, f, node("n5", "u0006"))
	all := measure("an overview after a relabel", func() { o = f.overview("") })
	// How long the user waits for it is measured, and bounded, in the end-to-end test.
	if len(o.Matrix.Sites) != sites-1 || one > all/4 {
		t.Errorf("%d sites after %s, a change of a slice %s", len(o.Matrix.Sites), all, one)
	}
	measure("a site", func() {
		if d := f.site("zone", "u0007"); d == nil || len(d.Services) != of || d.Services[0].Verdict.Word != "open" {
			t.Errorf("got %+v", d)
		}
	})
	measure("a Service", func() {
		if d := f.serviceDetail(inShop("s7"), "zone"); d == nil || len(d.View.Sites) != sites-1 {
			t.Errorf("got %+v", d)
		}
	})
}
