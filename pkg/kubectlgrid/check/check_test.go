package check

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
	"github.com/application-grid/application-grid/pkg/program/restmapper"
	"github.com/application-grid/application-grid/pkg/topology"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// edge is a cluster of kubeadm's with two edge nodes, on which application-grid is installed and all is well.
//
//go:embed testdata/edge.yaml
var edge string

// testCluster is a cluster as objects, by "Kind namespace/name".
type testCluster struct {
	*testing.T

	objects map[string]client.Object
	server  Server
	now     time.Time
	// refuse returns the error of a read of a kind.
	refuse func(kind string) error
	hidden string // an object that may not be read
	denied string // a resource that SelfSubjectAccessReviews deny
	listed map[string][]int64
}

func newTestCluster(t *testing.T) *testCluster {
	t.Helper()
	c := &testCluster{T: t, objects: map[string]client.Object{}, server: Server{"v1.37.1", now.AddDate(1, 0, 0)},
		now:    now,
		listed: map[string][]int64{}}
	c.add(edge)
	for _, node := range []string{"edge0", "edge1"} {
		for _, program := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
			c.run(program, node)
		}
	}
	c.run("kube-proxy", "cloud0")
	for _, kind := range v1.Kinds {
		c.add(crd(kind.Plural+"."+v1.GroupName, strconv.Itoa(v1.CRDVersion)))
	}
	return c
}

// add adds the objects of a YAML text, or replaces those of the same names.
func (c *testCluster) add(text string) {
	c.Helper()
	scheme := testScheme(c.T)
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); err != nil {
			break
		}
		if len(u.Object) == 0 {
			continue
		}
		var object client.Object = u
		if typed, err := scheme.New(u.GroupVersionKind()); err == nil {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed); err != nil {
				c.Fatal(err)
			}
			object = typed.(client.Object)
		}
		object.SetUID(types.UID(u.GetKind() + u.GetNamespace() + u.GetName()))
		c.objects[fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())] = object
	}
	if len(c.objects) == 0 {
		c.Fatal("no objects were read")
	}
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// run makes a ready pod of a DaemonSet of kube-system on a node.
func (c *testCluster) run(set, node string) *corev1.Pod {
	c.Helper()
	owner := get[*appsv1.DaemonSet](c, "DaemonSet kube-system/"+set)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: set + "-" + node,
			Labels: map[string]string{appsv1.ControllerRevisionHashLabelKey: set}},
		Spec: *owner.Spec.Template.Spec.DeepCopy(),
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: owner.Spec.Template.Spec.Containers[0].Name,
				State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(now.Add(-time.Hour))},
				},
			}},
		},
	}
	p.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
		appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	p.Spec.NodeName = node
	c.objects["Pod kube-system/"+p.Name] = p
	return p
}

// get is an object to change.
func get[T client.Object](c *testCluster, name string) T {
	c.Helper()
	object, ok := c.objects[name].(T)
	if !ok {
		c.Fatalf("there is no %s; there are %q", name, slices.Sorted(maps.Keys(c.objects)))
	}
	return object
}

// source is the cluster behind a client that pages, as an API server does and the fake does not.
func (c *testCluster) source() Source {
	c.Helper()
	scheme := testScheme(c.T)
	mapper := restmapper.New(scheme, RootKinds, FurtherKinds...)
	builder := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithReturnManagedFields().
		WithIndex(&corev1.Pod{}, "spec.hostNetwork", func(o client.Object) []string {
			return []string{fmt.Sprint(o.(*corev1.Pod).Spec.HostNetwork)}
		})
	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		builder = builder.WithObjects(c.objects[name].DeepCopyObject().(client.Object))
	}
	refused := func(kind string) error {
		if c.refuse == nil {
			return nil
		}
		return c.refuse(kind)
	}
	kindOf := func(api client.WithWatch, o runtime.Object) string {
		kind, err := api.GroupVersionKindFor(o)
		if err != nil {
			c.Fatal(err)
		}
		return strings.TrimSuffix(kind.Kind, "List")
	}
	api := builder.WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			kind := kindOf(api, o)
			if err := refused(kind); err != nil {
				return err
			}
			if c.hidden == kind+" "+key.String() {
				return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, key.Name, errors.New("no"))
			}
			return api.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			kind := kindOf(api, list)
			if err := refused(kind); err != nil {
				return err
			}
			options := (&client.ListOptions{}).ApplyOptions(opts)
			c.listed[kind] = append(c.listed[kind], options.Limit)
			begin := 0
			_, _ = fmt.Sscan(options.Continue, &begin)
			options.Limit, options.Continue = 0, ""
			if err := api.List(ctx, list, options); err != nil {
				return err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return err
			}
			end := min(begin+2, len(items)) // pages of two
			if end < len(items) {
				list.SetContinue(fmt.Sprint(end))
			}
			return meta.SetList(list, items[begin:end])
		},
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			if err := refused("SelfSubjectAccessReview"); err != nil {
				return err
			}
			review := o.(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = c.denied == "" || review.Spec.ResourceAttributes.Resource != c.denied
			return nil
		},
	}).Build()
	return Source{API: api, Now: c.now, Server: c.server}
}

// lines are the findings of these severities, one a line.
func lines(r *Report, of ...Severity) string {
	var b strings.Builder
	for _, f := range r.Findings {
		if slices.Contains(of, f.Severity) {
			fmt.Fprintf(&b, "%s %s %s: %s\n", f.Severity, f.Check, f.Object, f.Message)
		}
	}
	return b.String()
}

var trouble = []Severity{Failure, Warning, Unknown}

// TestAllIsWell: on a healthy cluster every check says so, and nothing else.
func TestAllIsWell(t *testing.T) {
	c := newTestCluster(t)
	report := After(t.Context(), c.source())
	if got := lines(report, trouble...); got != "" {
		t.Errorf("got\n%s", got)
	}
	seen := map[string]bool{}
	for _, f := range report.Findings {
		seen[f.Check] = true
	}
	for _, check := range []string{"EdgeLabel", "Wrapper", "KubeProxy", "KubeProxyPlacement", "KubeProxyReplacement",
		"Daemon", "Controller", "CRDs", "Grids", "Services", "ProgramVersions", "Versions", "Credentials", "NodeLocalDNS", "Port"} {
		if !seen[check] {
			t.Errorf("nothing is said of %s in\n%s", check, lines(report, OK))
		}
	}
	if said := lines(report, OK); strings.Contains(said, "CoreDNS") {
		t.Errorf("there is no CoreDNS, and check says\n%s", said)
	}
	for kind, limits := range c.listed {
		if slices.Contains(limits, 0) {
			t.Errorf("%s are listed without a limit", kind)
		}
	}
	if report.APIVersion == "" || report.Kind != "Check" || report.Summary[OK] != len(report.Findings) {
		t.Errorf("got %+v", report)
	}
}

// expect compares what is not ok: every wanted line begins one that there is, and there are no others.
func expect(t *testing.T, report *Report, want []string) {
	t.Helper()
	got := strings.Split(strings.TrimSuffix(lines(report, trouble...), "\n"), "\n")
	if got[0] == "" {
		got = nil
	}
	for _, prefix := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, prefix) }) {
			t.Errorf("there is no\n  %s\nin\n  %s", prefix, strings.Join(got, "\n  "))
		}
	}
	for _, line := range got {
		if !slices.ContainsFunc(want, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			t.Errorf("not expected: %s", line)
		}
	}
	for _, f := range report.Findings {
		if (f.Action == "") != (f.Severity == OK) {
			t.Errorf("the action of %+v", f)
		}
	}
}

const grabber = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: grabber, namespace: shop}
spec: {template: {spec: {containers: [{name: x, image: x, ports: [{containerPort: 80, hostPort: 51006}]}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: grabber-1, namespace: shop}
spec: {nodeName: edge0, hostNetwork: true, containers: [{name: x, image: x, args: ["--listen-address", "0.0.0.0:51006"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: asks-the-wrapper, namespace: shop}
spec: {nodeName: edge0, hostNetwork: true, containers: [{name: x, image: x, args: ["--address=http://localhost:51006"]}]}
`

const cilium = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system}
spec: {template: {spec: {hostNetwork: true, containers: [{name: cilium-agent, image: "quay.io/cilium/cilium:v1.18.0", command: [cilium-agent]}]}}}
`

// ciliumWithAddress has the agents of all nodes ask an address that their environment names.
func ciliumWithAddress(host, port string) string {
	return strings.Replace(cilium, "command: [cilium-agent]", fmt.Sprintf("command: [cilium-agent], env: "+
		"[{name: KUBERNETES_SERVICE_HOST, value: %s}, {name: KUBERNETES_SERVICE_PORT, value: %q}]", host, port), 1)
}

// ciliumEverywhere has the agents of all nodes ask the wrapper that have no CiliumNodeConfig.
const ciliumEverywhere = `---
{apiVersion: v1, kind: ConfigMap, metadata: {name: cilium-config, namespace: kube-system},
 data: {k8s-api-server-urls: "https://localhost:51006"}}`

// ciliumAt is a CiliumNodeConfig that has the agents of edge nodes ask these API servers.
func ciliumAt(urls string) string {
	return `
---
apiVersion: cilium.io/v2
kind: CiliumNodeConfig
metadata: {name: application-grid, namespace: kube-system}
spec:
  nodeSelector: {matchExpressions: [{key: superedge.io/application-grid, operator: In, values: ["true", systemd, static]}]}
  defaults: {k8s-api-server-urls: "` + urls + `"}
`
}

func calico(plane, enabled string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: calico-node, namespace: calico-system}
spec: {template: {spec: {hostNetwork: true, containers: [{name: calico-node, image: "docker.io/calico/node:v3.31.0", env: [{name: PLANE, value: %s}]}]}}}
---
apiVersion: crd.projectcalico.org/v1
kind: FelixConfiguration
metadata: {name: default}
spec: {bpfEnabled: %s}
`, plane, enabled)
}

// token is a JSON Web Token that ends.
func token(end time.Time) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode(fmt.Appendf(nil, `{"exp":%d}`, end.Unix())) + ".c2ln"
}

// forbidden refuses the reads of a kind, or with "*" of all.
func forbidden(kind string) func(string) error {
	return func(asked string) error {
		if asked == kind || kind == "*" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: asked}, "", errors.New("no"))
		}
		return nil
	}
}

// TestWhatMayNotBeRead: every read that fails is a finding, and the others go on.
func TestWhatMayNotBeRead(t *testing.T) {
	for _, kind := range []string{"Node", "Pod", "DaemonSet", "Deployment", "StatefulSet", "ConfigMap",
		"CustomResourceDefinition", "MutatingAdmissionPolicy", "DeploymentGrid", "Service"} {
		c := newTestCluster(t)
		c.refuse = forbidden(kind)
		report := After(t.Context(), c.source())
		if !report.Incomplete() || !strings.Contains(lines(report, Unknown), "unknown Read "+kind) {
			t.Errorf("%s: got\n%s", kind, lines(report, trouble...))
		}
		if report.Failed() {
			t.Errorf("%s: what was not read is said to be wrong:\n%s", kind, lines(report, Failure))
		}
	}
	for kind, spoil := range map[string]func(*testCluster){
		// A controller that runs outside of the cluster shows itself by its Lease alone.
		"Lease": without("Deployment kube-system/application-grid-controller"),
		// Where Cilium's DaemonSet is not known, nothing follows from there being no kube-proxy.
		"DaemonSet": all(adding(cilium), withoutAll("kube-proxy"), func(c *testCluster) {
			for _, node := range []string{"edge0", "edge1"} {
				get[*corev1.Node](c, "Node /"+node).Annotations = map[string]string{
					"kubeadm.alpha.kubernetes.io/cri-socket": "x"}
			}
		}),
	} {
		c := newTestCluster(t)
		spoil(c)
		c.refuse = forbidden(kind)
		report := After(t.Context(), c.source())
		if !report.Incomplete() || report.Failed() {
			t.Errorf("%s may not be read: got\n%s", kind, lines(report, trouble...))
		}
	}
	for _, pre := range []bool{false, true} {
		c := newTestCluster(t)
		c.refuse = forbidden("*")
		report := After(t.Context(), c.source())
		if pre {
			report = Before(t.Context(), c.source(), setup.Images{})
		}
		for _, f := range report.Findings {
			if f.Severity == OK && f.Object.Kind != "API server" { // which has answered
				t.Errorf("nothing may be read, and it says %+v", f)
			}
		}
		if !report.Incomplete() || report.Failed() {
			t.Errorf("nothing may be read: got\n%s", lines(report, append(trouble, OK)...))
		}
	}
	// Pods of kube-system alone may be read.
	onlySystem := func() func(kind string) error {
		asked := 0
		return func(kind string) error {
			if kind == "Pod" {
				if asked++; asked == 1 {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
						errors.New("not in all namespaces"))
				}
			}
			return nil
		}
	}
	c := newTestCluster(t)
	for _, program := range []string{"application-grid-wrapper", "kube-proxy-edge", "statefulset-grid-daemon"} {
		get[*corev1.Pod](c, "Pod kube-system/"+program+"-edge0").Namespace = "edge"
	}
	c.refuse = onlySystem()
	report := After(t.Context(), c.source())
	expect(t, report, []string{"unknown Read Pod: it could not be read, and only those in kube-system were looked at",
		"unknown Wrapper Node edge0: no application-grid-wrapper of kube-system runs there",
		"unknown Daemon Node edge0", "unknown KubeProxy Node edge0: no kube-proxy of kube-system runs there"})
	c = newTestCluster(t)
	c.refuse = onlySystem()
	report = After(t.Context(), c.source())
	expect(t, report, []string{"unknown Read Pod: it could not be read, and only those in kube-system were looked at"})
	if !strings.Contains(lines(report, OK), "the wrapper is ready on each of 2 edge nodes") {
		t.Errorf("got\n%s", lines(report, OK))
	}
}

// TestUnreadConfiguration: what check cannot know because an object may not be read is not known to the other commands
// either.
func TestUnreadConfiguration(t *testing.T) {
	c := newTestCluster(t)
	c.hidden = "ConfigMap kube-system/kube-proxy-edge"
	expect(t, After(t.Context(), c.source()), []string{
		"unknown Read ConfigMap kube-system/kube-proxy-edge: it could not be read, and which server a kube-proxy asks",
		"unknown KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 the server that it asks is not known",
		"unknown KubeProxy Pod kube-system/kube-proxy-edge-edge1"})
	if d := Diagnose(t.Context(), c.source(), WithServices); d.Complete() {
		t.Errorf("nothing is unread: %+v", d.Findings)
	}
}

// TestUnreadKinds: an edge node is unknown where, and only where, what could not be read may change whether it keeps
// Services to its site.
func TestUnreadKinds(t *testing.T) {
	keeps := func(c *testCluster) gridview.Verdict {
		d := Diagnose(t.Context(), c.source(), WithServices)
		g := &gridview.Groupings{Nodes: d.Nodes, Diagnosis: d}
		return g.Of(topology.Keys{"zone1"}).NewTally(&corev1.Service{}).View(g).Verdict
	}
	for kind, unknown := range map[string]bool{"Pod": true, "DaemonSet": true, "ConfigMap": true, "Deployment": false,
		"StatefulSet": false, "CustomResourceDefinition": false, "MutatingAdmissionPolicy": false, "Service": false,
		"DeploymentGrid": false, "APIService": false, "CiliumNodeConfig": false, "EndpointSlice": false} {
		c := newTestCluster(t)
		c.refuse = forbidden(kind)
		if v := keeps(c); (v.Keeps < 2) != unknown || len(v.Fails) > 0 {
			t.Errorf("%s may not be read, and the nodes are %+v", kind, v)
		}
	}
	for kind, spoil := range map[string]func(*testCluster){
		"FelixConfiguration": adding(calico("Iptables", "false")),
		// A CiliumNodeConfig may give a node other servers than the ConfigMap.
		"CiliumNodeConfig": all(overTLS, adding(cilium+ciliumEverywhere)),
	} {
		c := newTestCluster(t)
		spoil(c)
		if v := keeps(c); v.Keeps != 2 {
			t.Errorf("%s may be read, and the nodes are %+v", kind, v)
		}
		c.refuse = forbidden(kind)
		if v := keeps(c); v.Keeps > 0 || len(v.Fails) > 0 {
			t.Errorf("%s may not be read, and the nodes are %+v", kind, v)
		}
	}
}

// TestUnreadGrids: nobody says that an edge node is in no site who does not know the sites of all grids.
func TestUnreadGrids(t *testing.T) {
	for kind, want := range map[string]int{"": 1, "DeploymentGrid": 0} {
		c := newTestCluster(t)
		adding(`{apiVersion: v1, kind: Node, metadata: {name: edge2, labels: {superedge.io/application-grid: static}}}`)(c)
		c.refuse = forbidden(kind)
		if got := strings.Count(lines(After(t.Context(), c.source()), Failure), "an edge node in no site"); got != want {
			t.Errorf("%q may not be read, and %d nodes are in no site", kind, got)
		}
	}
}

// TestPrintedPort: commands for a node name the address of the wrapper there.
func TestPrintedPort(t *testing.T) {
	c := newTestCluster(t)
	all(onPort("51016"), overTLS, ofKubeProxy("--kubeconfig=/etc/kube-proxy.conf"),
		labelled("edge1", "static"), without("Pod kube-system/kube-proxy-edge-edge1"),
		k3s("edge1", `["agent","--kube-proxy-arg","master=https://10.0.0.1:6443"]`))(c)
	actions := ""
	for _, f := range After(t.Context(), c.source()).Findings {
		if f.Check == "KubeProxy" {
			actions += f.Action + "\n"
		}
	}
	if strings.Count(actions, "https://localhost:51016/metrics") != 2 || strings.Contains(actions, "51006") {
		t.Errorf("got\n%s", actions)
	}
	c = newTestCluster(t)
	all(onPort("51016"), overTLS, ofKubeProxy("--master=https://10.0.0.1:6443"),
		k3s("edge1", `["agent","--kube-proxy-arg","master=https://10.0.0.1:6443"]`))(c)
	actions = lines(After(t.Context(), c.source()), Failure)
	for _, f := range After(t.Context(), c.source()).Findings {
		actions += f.Action + "\n"
	}
	for _, want := range []string{"give it the server https://localhost:51016", `["master=https://localhost:51016"]`} {
		if !strings.Contains(actions, want) {
			t.Errorf("there is no %s in\n%s", want, actions)
		}
	}
}

// TestExpiredPages: a list that expires between pages goes on, and nothing is counted twice.
func TestExpiredPages(t *testing.T) {
	c := newTestCluster(t)
	asked := 0
	c.refuse = func(kind string) error {
		if kind == "Node" {
			if asked++; asked == 2 {
				expired := apierrors.NewResourceExpired("too old")
				expired.ErrStatus.Continue = "2 newer"
				return expired
			}
		}
		return nil
	}
	report := After(t.Context(), c.source())
	expect(t, report, nil)
	if !strings.Contains(lines(report, OK), "2 of 3 nodes are edge nodes") {
		t.Errorf("got\n%s", lines(report, OK))
	}
}

// fresh is a cluster on which nothing is installed yet.
func fresh(t *testing.T) *testCluster {
	t.Helper()
	c := newTestCluster(t)
	withoutAll("grid", "kube-proxy-edge", "superedge.io")(c)
	for _, node := range []string{"edge0", "edge1"} {
		get[*corev1.Node](c, "Node /"+node).Labels = nil
		c.run("kube-proxy", node)
	}
	return c
}

// always is what no API server tells.
const always = "unknown Images Node: whether the nodes can pull images from registry.example.org cannot be known " +
	"from the API"

var installOptions = setup.Images{Registry: "registry.example.org", Tag: "v1"}

func expectBefore(t *testing.T, defects map[string]defect) {
	t.Helper()
	for name, test := range defects {
		t.Run(name, func(t *testing.T) {
			c := fresh(t)
			test.spoil(c)
			report := Before(t.Context(), c.source(), installOptions)
			expect(t, report, append(test.want, always))
			if (report.Install == nil) != report.Failed() {
				t.Errorf("it failed: %v, and the installation is %v", report.Failed(), report.Install)
			}
		})
	}
}

// TestBefore: each thing that matters before an installation has its finding.
func TestBefore(t *testing.T) {
	expectBefore(t, map[string]defect{
		"a fresh cluster": {all(), nil},
		"no kube-proxy": {withoutAll("DaemonSet kube-system/kube-proxy", "Pod kube-system/kube-proxy"),
			[]string{"failure KubeProxy DaemonSet kube-system/kube-proxy: the API server knows of no kube-proxy"}},
		"ipvs": {ipvs, []string{"warning KubeProxyMode DaemonSet kube-system/kube-proxy: its mode is ipvs"}},
		"a configuration that is not there": {without("ConfigMap kube-system/kube-proxy"),
			[]string{"unknown KubeProxy DaemonSet kube-system/kube-proxy: its mode is not known",
				"unknown KubeProxy DaemonSet kube-system/kube-proxy: how it gets its server is not known: " +
					"--config=/var/lib/kube-proxy/config.conf"}},
		"an affinity of its own": {
			func(c *testCluster) {
				pods := get[*appsv1.DaemonSet](c, "DaemonSet kube-system/kube-proxy").Spec.Template.Spec
				required := pods.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				required.NodeSelectorTerms[0].MatchExpressions[0].Key = "gpu"
			},
			[]string{"warning KubeProxy DaemonSet kube-system/kube-proxy: it has a required node affinity of its own"}},
		"a kube-proxy newer than the API server": {
			image("DaemonSet kube-system/kube-proxy", "mirror:5000/kube-proxy:v1.38.0"),
			[]string{"warning KubeProxy DaemonSet kube-system/kube-proxy: its version v1.38.0 is newer than the API server's " +
				"v1.37.1"}},
		"a managed cloud": {kubelets("v1.37.1-gke.100"),
			[]string{"failure Distribution Node: the cluster is GKE (node cloud0 has kubelet v1.37.1-gke.100): its " +
				"provider owns kube-proxy"}},
		"RKE2": {kubelets("v1.37.1+rke2r1"),
			[]string{"warning Distribution Node: the cluster is RKE2 (node cloud0 has kubelet v1.37.1+rke2r1), which " +
				"was not tried"}},
		"nobody knows what": {without("ConfigMap kube-system/kubeadm-config"),
			[]string{"warning Distribution Node: its nodes do not show which distribution this cluster is"}},
		"too old": {version("v1.20.15"),
			[]string{"failure Versions API server: it is v1.20.15, and does not serve discovery.k8s.io/v1",
				"warning Versions Node cloud0: its kubelet's version v1.20.15 is older than what is tested",
				"warning Versions Node edge0", "warning Versions Node edge1",
				"warning Distribution MutatingAdmissionPolicy: an API server of v1.20.15 has no such policies",
				"warning KubeProxy DaemonSet kube-system/kube-proxy: its version v1.37.1 is newer than"}},
		"an architecture without images": {altered("Node /edge0", "status: {nodeInfo: {architecture: riscv64}}"),
			[]string{"warning Platform Node edge0: there are no images for its architecture riscv64"}},
		"no right": {func(c *testCluster) { c.denied = "daemonsets" },
			[]string{"failure Rights SelfSubjectAccessReview: you may not create daemonsets.apps in kube-system",
				"failure Rights SelfSubjectAccessReview: you may not patch daemonsets.apps in kube-system"}},
		"Cilium in place of k3s' kube-proxy": {
			all(withoutAll("kube-proxy", "kubeadm"), adding(cilium), kubelets("v1.37.1+k3s1"), func(c *testCluster) {
				for _, node := range []string{"cloud0", "edge0", "edge1"} {
					get[*corev1.Node](c, "Node /"+node).Annotations = map[string]string{
						"k3s.io/node-args": `["agent","--disable-kube-proxy"]`}
				}
			}),
			[]string{"warning KubeProxyReplacement DaemonSet kube-system/cilium: Cilium sends pods' connections to " +
				"Services on itself"}},
		"Cilium": {adding(cilium),
			[]string{"warning KubeProxyReplacement DaemonSet kube-system/cilium: Cilium sends pods' connections to " +
				"Services on itself"}},
	})
}

// TestBeforeOtherWorkloads: workloads that run already may be in the way.
func TestBeforeOtherWorkloads(t *testing.T) {
	expectBefore(t, map[string]defect{
		"labelled already": {labelled("edge0", "true"),
			[]string{"warning OtherWorkloads Node: the label superedge.io/application-grid is on 1 node already",
				"warning Reach Service shop/echo-svc: once its nodes are edge nodes: no node has the label zone1"}},
		"SuperEdge": {
			adding(`{apiVersion: apps/v1, kind: DaemonSet,
 metadata: {name: application-grid-wrapper, namespace: edge-system},
 spec: {template: {spec: {hostNetwork: true, containers: [{name: w, image: superedge/application-grid-wrapper,
 command: [/usr/local/bin/application-grid-wrapper, --bind-address=127.0.0.1:51006]}]}}}}`),
			[]string{"failure OtherWorkloads DaemonSet edge-system/application-grid-wrapper: another " +
				"application-grid-wrapper is installed"}},
		"SuperEdge that gives way": {
			all(adding(superEdgesController(0, "v0.9.0")), adding(`
{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: application-grid-wrapper, namespace: edge-system},
 spec: {template: {spec: {hostNetwork: true,
 affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
  {matchExpressions: [
   {key: superedge.io/application-grid, operator: NotIn, values: ["true", systemd, static]}]},
  {matchExpressions: [
   {key: superedge.io/application-grid, operator: NotIn, values: [systemd, static]},
   {key: superedge.io/kube-proxy, operator: NotIn, values: [edge]}]}]}}},
 containers: [{name: w, image: superedge/application-grid-wrapper,
 command: [/usr/local/bin/application-grid-wrapper]}]}}}}`)),
			nil,
		},
		"another that selects the nodes": {
			adding(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: shop},
 spec: {template: {spec: {nodeSelector: {superedge.io/application-grid: "true"},
 containers: [{name: w, image: w}]}}}}`),
			[]string{"warning OtherWorkloads DaemonSet shop/agent: its pods go to the nodes with the label " +
				"superedge.io/application-grid, too"}},
		"kube-dns is site-local already, and a site has no CoreDNS": {all(
			altered("Node /edge0", "metadata: {labels: {zone1: east}}"),
			altered("Node /edge1", "metadata: {labels: {zone1: west}}"), adding(`
{apiVersion: v1, kind: Service, metadata: {name: kube-dns, namespace: kube-system,
 annotations: {topologyKeys: '["kubernetes.io/hostname", "zone1"]'}}, spec: {ports: [{port: 53, protocol: UDP}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: kube-dns-1, namespace: kube-system,
 labels: {kubernetes.io/service-name: kube-dns}}, addressType: IPv4, ports: [{name: "", port: 53, protocol: UDP}],
 endpoints: [{addresses: [10.244.0.1], nodeName: edge0, conditions: {ready: true}}]}`)),
			[]string{"warning Reach Service kube-system/kube-dns: once its nodes are edge nodes: 1 of 2 sites have no " +
				"ready endpoint: zone1=west"}},
		"another takes the port": {adding(grabber),
			[]string{"warning Port DaemonSet shop/grabber: its pods take port 51006 of their nodes"}},
	})
}

// TestInstall: what is printed to install with is for the cluster that was looked at.
func TestInstall(t *testing.T) {
	install := func(prepare ...func(c *testCluster)) *setup.Install {
		c := fresh(t)
		all(prepare...)(c)
		report := Before(t.Context(), c.source(), installOptions)
		if report.Install == nil {
			t.Fatalf("got\n%s", lines(report, Failure))
		}
		return report.Install
	}
	const kubeProxy = "DaemonSet kube-system/kube-proxy"
	kubeadms := install(image(kubeProxy, "mirror:5000/k8s/kube-proxy:v1.37.0"))
	if want := `# edge/kustomization.yaml
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../manifests/kubeadm]
images:
  - {name: application-grid-controller, newName: registry.example.org/application-grid-controller, newTag: v1}
  - {name: application-grid-wrapper, newName: registry.example.org/application-grid-wrapper, newTag: v1}
  - {name: statefulset-grid-daemon, newName: registry.example.org/statefulset-grid-daemon, newTag: v1}
  - {name: registry.k8s.io/kube-proxy, newName: mirror:5000/k8s/kube-proxy, newTag: v1.37.0}
`; kubeadms.Kustomization != want {
		t.Errorf("got\n%s", kubeadms.Kustomization)
	}
	if want := "image:\n  registry: registry.example.org\n  tag: \"v1\"\ndistribution: kubeadm\nkubeProxy:\n  image: " +
		"mirror:5000/k8s/kube-proxy:v1.37.0\n"; kubeadms.Values != want {
		t.Errorf("got\n%s", kubeadms.Values)
	}
	old := install(func(c *testCluster) { c.server.Version = "v1.28.0" },
		image(kubeProxy, "registry.k8s.io/kube-proxy:v1.28.0"))
	if strings.Count(old.Kustomization, "$patch: delete") != 2 ||
		!strings.Contains(old.Kustomization, "target: {group: flowcontrol.apiserver.k8s.io}") ||
		!strings.Contains(old.Kustomization, "target: {group: admissionregistration.k8s.io}") ||
		!strings.Contains(old.Values, "policy: false") ||
		!strings.Contains(old.Values, "flowControl:\n  enabled: false") {
		t.Errorf("got\n%s\n%s", old.Kustomization, old.Values)
	}
	between := install(func(c *testCluster) { c.server.Version = "v1.35.2" },
		image(kubeProxy, "registry.k8s.io/kube-proxy:v1.35.2"))
	if strings.Count(between.Kustomization, "$patch: delete") != 1 || !strings.Contains(between.Kustomization,
		"name: kube-proxy.superedge.io}") || strings.Contains(between.Values, "flowControl") {
		t.Errorf("got\n%s\n%s", between.Kustomization, between.Values)
	}
	proxyless := install(withoutAll("kube-proxy"), adding(cilium))
	if !strings.Contains(proxyless.Kustomization, "components: [../manifests/cilium]\n") ||
		strings.Contains(proxyless.Kustomization, "kubeadm") ||
		!strings.Contains(proxyless.Values, "distribution: plain\n") ||
		!strings.HasSuffix(proxyless.Values, "cilium:\n  enabled: true\n") ||
		!strings.Contains(strings.Join(proxyless.Notes, "\n"), "restart its agent of Cilium") ||
		strings.Contains(strings.Join(proxyless.Notes, "\n"), "kube-proxy") {
		t.Errorf("got\n%s\n%s\n%q", proxyless.Kustomization, proxyless.Values, proxyless.Notes)
	}
	beside := install(withoutAll("kube-proxy"), adding(cilium), k3s("cloud0", `["server"]`))
	if strings.Contains(beside.Kustomization, "cilium") {
		t.Errorf("beside a kube-proxy of k3s: got\n%s", beside.Kustomization)
	}
	agent := `["agent"]`
	rancher := install(k3s("cloud0", agent), k3s("edge0", agent), k3s("edge1", agent),
		withoutAll("kube-system/kube-proxy"))
	if !strings.Contains(rancher.Kustomization, "resources: [../manifests/k3s]") ||
		strings.Contains(rancher.Kustomization, "kube-proxy") ||
		!strings.Contains(rancher.Values, "distribution: k3s") {
		t.Errorf("got\n%s\n%s", rancher.Kustomization, rancher.Values)
	}
	rke2 := install(kubelets("v1.37.1+rke2r1"))
	if !strings.Contains(rke2.Kubeconfig, "server: https://127.0.0.1:6443") ||
		!strings.Contains(rke2.Kustomization, "files: [kubeconfig.conf]") ||
		!strings.Contains(rke2.Values, "distribution: plain\nwrapper:\n  server: https://127.0.0.1:6443") {
		t.Errorf("got\n%s\n%s", rke2.Kustomization, rke2.Kubeconfig)
	}
	plain := install(without("ConfigMap kube-system/kubeadm-config"))
	if !strings.Contains(plain.Kubeconfig, "set-this") || !strings.Contains(strings.Join(plain.Notes, "\n"),
		"Set the server in kubeconfig.conf") {
		t.Errorf("got\n%s", plain.Kubeconfig)
	}
}
