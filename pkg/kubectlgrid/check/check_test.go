package check

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
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
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
	"github.com/application-grid/application-grid/pkg/program/tlstest"
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
	versions, err := shippedVersions()
	if err != nil || len(versions) != len(v1.Kinds) {
		t.Fatalf("the CRDs' versions are %v: %v", versions, err)
	}
	for name, version := range versions {
		c.add(fmt.Sprintf(
			`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %s, annotations: {superedge.io/crd-version: "%d"}}, status: {conditions: [{type: Established, status: "True"}]}}`,
			name, version,
		))
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
	mapper := meta.NewDefaultRESTMapper(nil)
	RegisterKinds(mapper)
	for _, k := range v1.Kinds {
		mapper.Add(v1.GroupVersion.WithKind(k.Kind), meta.RESTScopeNamespace)
	}
	builder := fake.NewClientBuilder().WithScheme(testScheme(c.T)).WithRESTMapper(mapper).WithReturnManagedFields().
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
			if err := refused(kindOf(api, o)); err != nil {
				return err
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
	for kind, limits := range c.listed {
		if slices.Contains(limits, 0) {
			t.Errorf("%s are listed without a limit", kind)
		}
	}
	if report.APIVersion == "" || report.Kind != "Check" || report.Summary[OK] != len(report.Findings) {
		t.Errorf("got %+v", report)
	}
}

// TestAfter: each defect has its finding, and no other one.
func TestAfter(t *testing.T) {
	authority := tlstest.NewAuthority(t)
	for name, test := range map[string]struct {
		spoil func(c *testCluster)
		want  []string
	}{
		"no edge nodes": {
			func(c *testCluster) {
				for _, node := range []string{"edge0", "edge1"} {
					get[*corev1.Node](c, "Node /"+node).Labels = nil
					delete(c.objects, "Pod kube-system/application-grid-wrapper-"+node)
				}
			},
			[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: it asks http://localhost:51006 " +
				"(/var/lib/kube-proxy/kubeconfig.conf in ConfigMap kube-system/kube-proxy-edge) on node edge0, where " +
				"no wrapper is",
				"failure KubeProxy Pod kube-system/kube-proxy-edge-edge1",
				"warning EdgeLabel Node: no node has the label superedge.io/application-grid"},
		},
		"a label that means nothing": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /cloud0").Labels = map[string]string{v1.LabelEdgeNode: "yes"}
			},
			[]string{"warning EdgeLabel Node cloud0: the label superedge.io/application-grid=yes means nothing"},
		},
		"no wrapper": {
			func(c *testCluster) { delete(c.objects, "Pod kube-system/application-grid-wrapper-edge0") },
			[]string{"failure Wrapper Node edge0: no application-grid-wrapper runs there"},
		},
		"a wrapper whose image is missing": {
			func(c *testCluster) {
				p := get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0")
				p.Status.Conditions = nil
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{
					Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"},
				}
			},
			[]string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge0: it is not ready on node edge0: " +
				"container application-grid-wrapper: ErrImagePull: no such host"},
		},
		"a node without a link": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Status.Conditions = nil
				for _, program := range []string{
					"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge",
				} {
					get[*corev1.Pod](c, "Pod kube-system/"+program+"-edge0").Status.Conditions = nil
				}
			},
			[]string{"warning Wrapper Pod kube-system/application-grid-wrapper-edge0: node edge0 is not ready, so " +
				"the pod's " +
				"state is what it was",
				"warning Daemon Pod kube-system/statefulset-grid-daemon-edge0: node edge0 is not ready"},
		},
		"two wrappers": {
			func(c *testCluster) {
				p := c.run("application-grid-wrapper", "edge0").DeepCopy()
				p.Namespace, p.Name, p.UID = "edge-system", "wrapper-of-superedge", "x"
				c.objects["second"] = p
			},
			[]string{"failure Wrapper Node edge0: 2 pods of application-grid-wrapper run there: " +
				"edge-system/wrapper-of-superedge, kube-system/application-grid-wrapper-edge0"},
		},
		"systemd": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Labels[v1.LabelEdgeNode] = "systemd"
				delete(c.objects, "Pod kube-system/application-grid-wrapper-edge0")
				delete(c.objects, "Pod kube-system/statefulset-grid-daemon-edge0")
			},
			[]string{"unknown Wrapper Node edge0: the wrapper is a unit of systemd there",
				"unknown Credentials Node edge0: the wrapper's credentials are files on the node"},
		},
		"systemd, and a pod": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Labels[v1.LabelEdgeNode] = "systemd"
			},
			[]string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge0: it runs on node edge0, which " +
				"says that its wrapper is a unit of systemd: both want port 51006", "unknown Credentials Node edge0"},
		},
		"static pods that the API server does not show": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Labels[v1.LabelEdgeNode] = "static"
				delete(c.objects, "Pod kube-system/application-grid-wrapper-edge0")
				delete(c.objects, "Pod kube-system/kube-proxy-edge-edge0")
				delete(c.objects, "Pod kube-system/statefulset-grid-daemon-edge0")
			},
			[]string{"unknown Wrapper Node edge0: the node starts the wrapper itself",
				"unknown KubeProxy Node edge0: the node starts kube-proxy itself",
				"unknown Credentials Node edge0: the wrapper's credentials are files on the node"},
		},
		"static pods, and a kube-proxy of the cluster": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Labels[v1.LabelEdgeNode] = "static"
				c.run("kube-proxy", "edge0")
			},
			[]string{"failure KubeProxy Node edge0: 2 kube-proxies run there", "unknown Credentials Node edge0",
				"failure KubeProxy Pod kube-system/kube-proxy-edge0: it asks https://10.0.0.1:6443"},
		},
		"kube-proxy asks the API server": {
			func(c *testCluster) {
				m := get[*corev1.ConfigMap](c, "ConfigMap kube-system/kube-proxy-edge")
				m.Data["kubeconfig.conf"] = strings.ReplaceAll(m.Data["kubeconfig.conf"], "http://localhost:51006",
					"https://10.0.0.1:6443")
			},
			[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: it asks https://10.0.0.1:6443 " +
				"(/var/lib/kube-proxy/kubeconfig.conf in ConfigMap kube-system/kube-proxy-edge) on node edge0, past " +
				"the wrapper",
				"failure KubeProxy Pod kube-system/kube-proxy-edge-edge1"},
		},
		"--master overrides the kubeconfig": {
			func(c *testCluster) {
				p := get[*corev1.Pod](c, "Pod kube-system/kube-proxy-edge-edge0")
				p.Labels = nil
				p.Spec.Containers[0].Command = append(p.Spec.Containers[0].Command, "--master", "https://10.0.0.1:6443")
			},
			[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: it asks https://10.0.0.1:6443 " +
				"(--master) on node edge0, past the wrapper"},
		},
		"a kubeconfig on the node's disk": {
			func(c *testCluster) {
				p := get[*corev1.Pod](c, "Pod kube-system/kube-proxy-edge-edge0")
				p.Labels = nil
				p.Spec.Containers[0].Command = []string{"kube-proxy", "--kubeconfig=/etc/kubernetes/kube-proxy.conf"}
			},
			[]string{"unknown KubeProxy Pod kube-system/kube-proxy-edge-edge0: whom it asks on node edge0 is not " +
				"known: kubeconfig /etc/kubernetes/kube-proxy.conf: it is a file on the node"},
		},
		"a configuration that changed since": {
			func(c *testCluster) {
				get[*corev1.ConfigMap](c,
					"ConfigMap kube-system/kube-proxy-edge").ManagedFields = []metav1.ManagedFieldsEntry{{
					Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1",
					FieldsType: "FieldsV1",
					FieldsV1:   metav1.NewFieldsV1("{}"), Time: &metav1.Time{Time: now.Add(-time.Minute)},
				}}
			},
			[]string{"warning KubeProxy Pod kube-system/kube-proxy-edge-edge0: its configuration was changed " +
				"after it " +
				"started on node edge0", "warning KubeProxy Pod kube-system/kube-proxy-edge-edge1"},
		},
		"a wrapper with a port of its own": {
			func(c *testCluster) {
				p := get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0")
				p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, "--bind-address=localhost:51016")
			},
			[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: it asks http://localhost:51006"},
		},
		"two kube-proxies": {
			func(c *testCluster) { c.run("kube-proxy", "edge0") },
			[]string{"failure KubeProxy Node edge0: 2 kube-proxies run there, and overwrite each other's rules: " +
				"kube-system/kube-proxy-edge-edge0, kube-system/kube-proxy-edge0",
				"failure KubeProxy Pod kube-system/kube-proxy-edge0: it asks https://10.0.0.1:6443"},
		},
		"no kube-proxy": {
			func(c *testCluster) { delete(c.objects, "Pod kube-system/kube-proxy-edge-edge0") },
			[]string{"failure KubeProxy Node edge0: no kube-proxy runs there"},
		},
		"a kube-proxy that waits": {
			func(c *testCluster) {
				p := c.run("kube-proxy", "edge0")
				p.Spec.NodeName = ""
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name",
						Operator: corev1.NodeSelectorOpIn,
						Values:   []string{"edge0"}}}},
				}}}}
			},
			[]string{
				"warning KubeProxyPlacement Pod kube-system/kube-proxy-edge0: it waits for its turn on node edge0",
			},
		},
		"one kube-proxy that asks wrappers everywhere": {
			func(c *testCluster) {
				for _, node := range []string{"edge0", "edge1"} {
					delete(c.objects, "Pod kube-system/kube-proxy-edge-"+node)
				}
				delete(c.objects, "DaemonSet kube-system/kube-proxy-edge")
				delete(c.objects, "Pod kube-system/kube-proxy-cloud0")
				set := get[*appsv1.DaemonSet](c, "DaemonSet kube-system/kube-proxy")
				set.Spec.Template.Spec.Affinity = nil
				set.Spec.Template.Spec.Containers[0].Command = append(set.Spec.Template.Spec.Containers[0].Command,
					"--master=http://localhost:51006")
				c.run("kube-proxy", "edge0")
				c.run("kube-proxy", "edge1")
			},
			[]string{"warning KubeProxyPlacement DaemonSet kube-system/kube-proxy: it asks the wrapper on every " +
				"node, which " +
				"the next upgrade by kubeadm undoes"},
		},
		"kube-proxies outside of Kubernetes": {
			func(c *testCluster) {
				for name := range c.objects {
					if strings.Contains(name, "kube-proxy") || strings.Contains(name, "kubeadm") {
						delete(c.objects, name)
					}
				}
			},
			[]string{
				"unknown KubeProxy Node edge0: no pod of this cluster runs kube-proxy", "unknown KubeProxy Node edge1",
			},
		},
		"an upgrade took the affinity": {
			func(c *testCluster) {
				get[*appsv1.DaemonSet](c, "DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Affinity = nil
			},
			[]string{"failure KubeProxyPlacement DaemonSet kube-system/kube-proxy: its node affinity does not keep " +
				"it off " +
				"edge nodes"},
		},
		"an affinity that does not wait for the wrapper": {
			func(c *testCluster) {
				affinity := get[*appsv1.DaemonSet](c, "DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Affinity
				required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				required.NodeSelectorTerms = required.NodeSelectorTerms[:1]
			},
			[]string{"warning KubeProxyPlacement DaemonSet kube-system/kube-proxy: it leaves a node as soon as that is labelled"},
		},
		"rules that are frozen since the label": {
			func(c *testCluster) {
				delete(c.objects, "Pod kube-system/kube-proxy-edge-edge0")
				get[*corev1.Node](c, "Node /edge0").ManagedFields = []metav1.ManagedFieldsEntry{{
					Manager: "kubectl-label", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
					FieldsType: "FieldsV1", Time: &metav1.Time{Time: now.Add(-time.Hour)},
					FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:superedge.io/application-grid":{}}}}`),
				}}
			},
			[]string{"failure KubeProxy Node edge0: no kube-proxy runs there: its rules are frozen since 2026-11-21T11:00:00Z"},
		},
		"a removal that left something": {
			func(c *testCluster) {
				for name := range c.objects {
					if strings.Contains(name, "wrapper") || strings.Contains(name, "kube-proxy-edge") ||
						strings.Contains(name, "statefulset-grid-daemon") {
						delete(c.objects, name)
					}
				}
				for _, node := range []string{"edge0", "edge1"} {
					delete(get[*corev1.Node](c, "Node /"+node).Labels, v1.LabelEdgeNode)
					delete(get[*corev1.Node](c, "Node /"+node).Labels, "zone1")
					c.run("kube-proxy", node)
				}
			},
			[]string{"warning Removal DaemonSet kube-system/kube-proxy: it still has the node affinity",
				"warning Removal MutatingAdmissionPolicy kube-proxy.superedge.io: it is left of an installation",
				"warning EdgeLabel Node: no node has the label"},
		},
		"a hub's APIService without a hub": {
			func(c *testCluster) {
				c.add(`{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1alpha1.hub.superedge.io}}`)
			},
			[]string{"failure Hub APIService v1alpha1.hub.superedge.io: it leads to a hub that is not there"},
		},
		"a controller outside of the cluster": {
			func(c *testCluster) {
				delete(c.objects, "Deployment kube-system/application-grid-controller")
				c.add(`{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: application-grid-controller, ` +
					`namespace: kube-system}, spec: {renewTime: "2026-11-21T11:59:30.000000Z"}}`)
			}, nil,
		},
		"meshes and ingress controllers": {
			func(c *testCluster) {
				for name, container := range map[string]string{"istiod": "discovery", "linkerd-destination": "destination",
					"ingress-nginx-controller": "controller", "envoy-gateway": "envoy-gateway", "cilium-envoy": "cilium-envoy",
					"haproxy-kubernetes-ingress": "x", "traefik": "traefik"} {
					c.add(fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, namespace: mesh}, spec: {template: `+
						`{spec: {containers: [{name: %s, image: x}]}}}}`, name, container))
				}
			},
			[]string{"warning Bypass Deployment mesh/istiod: Istio reads", "warning Bypass Deployment mesh/linkerd-destination: Linkerd",
				"warning Bypass Deployment mesh/ingress-nginx-controller: ingress-nginx",
				"warning Bypass Deployment mesh/envoy-gateway: Envoy Gateway", "warning Bypass Deployment mesh/cilium-envoy: Cilium's Envoy",
				"warning Bypass Deployment mesh/haproxy-kubernetes-ingress: HAProxy", "warning Bypass Deployment mesh/traefik: Traefik"},
		},
		"ingress controllers that ask the wrapper": {
			func(c *testCluster) {
				for name, asks := range map[string]string{
					"traefik":         `args: ["--providers.kubernetesingress.endpoint=https://127.0.0.1:51006"]`,
					"haproxy-ingress": `env: [{name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}, {name: KUBERNETES_SERVICE_PORT, value: "51006"}]`,
					"envoy-gateway":   `args: ["--server=https://127.0.0.1:6443"], env: [{name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}]`,
				} {
					c.add(fmt.Sprintf(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: %s, namespace: site}, spec: {template: `+
						`{spec: {hostNetwork: true, containers: [{name: x, image: x, %s}]}}}}`, name, asks))
				}
			},
			[]string{"warning Bypass DaemonSet site/envoy-gateway: Envoy Gateway reads"},
		},
		"nothing is installed": {
			func(c *testCluster) {
				maps.DeleteFunc(c.objects, func(name string, _ client.Object) bool {
					return strings.Contains(name, "application-grid") || strings.Contains(name, "-grid-daemon") ||
						strings.Contains(name, "kube-proxy-edge") || strings.Contains(name, "superedge.io")
				})
				for _, node := range []string{"edge0", "edge1"} {
					get[*corev1.Node](c, "Node /"+node).Labels = nil
				}
			},
			[]string{"failure Installation Deployment: application-grid is not installed",
				"warning Removal DaemonSet kube-system/kube-proxy: it still has the node affinity"},
		},
		"no policy": {
			func(c *testCluster) { delete(c.objects, "MutatingAdmissionPolicyBinding /kube-proxy.superedge.io") },
			[]string{"failure KubeProxyPlacement MutatingAdmissionPolicy kube-proxy.superedge.io: the policy or its " +
				"binding is not there"},
		},
		"an API server without such policies": {
			func(c *testCluster) {
				delete(c.objects, "MutatingAdmissionPolicy /kube-proxy.superedge.io")
				c.server.Version = "v1.35.0"
				for _, node := range []string{"cloud0", "edge0", "edge1"} {
					get[*corev1.Node](c, "Node /"+node).Status.NodeInfo.KubeletVersion = "v1.35.0"
				}
				for _, set := range []string{"kube-proxy", "kube-proxy-edge"} {
					get[*appsv1.DaemonSet](c,
						"DaemonSet kube-system/"+set).Spec.Template.Spec.Containers[0].Image = "kube-proxy:v1.35.0"
				}
			},
			[]string{"warning KubeProxyPlacement MutatingAdmissionPolicy kube-proxy.superedge.io: an API server of " +
				"v1.35.0 has no such policies"},
		},
		"k3s, with the server": {
			func(c *testCluster) {
				c.k3s("edge0", `["agent","--kube-proxy-arg","master=http://localhost:51006"]`)
			}, nil,
		},
		"k3s, without": {
			func(c *testCluster) { c.k3s("edge0", `["agent"]`) },
			[]string{"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, has no --master"},
		},
		"k3s, past the wrapper": {
			func(c *testCluster) { c.k3s("edge0", `["agent","--kube-proxy-arg=master=https://127.0.0.1:6444"]`) },
			[]string{
				"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, asks https://127.0.0.1:6444, past the " +
					"wrapper",
			},
		},
		"k3s, with no kube-proxy": {
			func(c *testCluster) { c.k3s("edge0", `["server","--disable-kube-proxy"]`) },
			[]string{"failure KubeProxy Node edge0: its agent runs with --disable-kube-proxy"},
		},
		"k3s that says nothing": {
			func(c *testCluster) { c.k3s("edge0", "") },
			[]string{"unknown KubeProxy Node edge0: kube-proxy is part of k3s's own process there"},
		},
		"wrappers of two versions": {
			func(c *testCluster) {
				get[*corev1.Pod](c,
					"Pod kube-system/application-grid-wrapper-edge0").Spec.Containers[0].Image = "registry.example.org/application-grid-wrapper:v0"
			},
			[]string{"warning ProgramVersions DaemonSet kube-system/application-grid-wrapper: nodes run different " +
				"versions of application-grid-wrapper: registry.example.org/application-grid-wrapper:v0 on 1 node; " +
				"registry.example.org/application-grid-wrapper:v1 on 1 node"},
		},
		"programs of two versions": {
			func(c *testCluster) {
				get[*appsv1.Deployment](c,
					"Deployment kube-system/application-grid-controller").Spec.Template.Spec.Containers[0].Image = "registry.example.org/application-grid-controller:v2@sha256:0"
			},
			[]string{
				`warning ProgramVersions DaemonSet in kube-system: the programs are of different versions: application-grid-wrapper, statefulset-grid-daemon has "v1"; application-grid-controller has "v2"`,
			},
		},
		"kube-proxies of two versions": {
			func(c *testCluster) {
				get[*appsv1.DaemonSet](c,
					"DaemonSet kube-system/kube-proxy-edge").Spec.Template.Spec.Containers[0].Image = "registry.k8s.io/kube-proxy:v1.33.0"
			},
			[]string{"warning ProgramVersions DaemonSet kube-system/kube-proxy-edge: kube-proxy v1.33.0 does not go " +
				"with an API server of v1.37.1",
				"warning ProgramVersions DaemonSet in kube-system: the kube-proxies are of different versions: " +
					`kube-proxy-edge has "v1.33.0"; kube-proxy has "v1.37.1"`},
		},
		"ipvs": {
			func(c *testCluster) {
				get[*corev1.ConfigMap](c,
					"ConfigMap kube-system/kube-proxy").Data["config.conf"] = "mode: ipvs\nclientConnection: " +
					"{kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}"
			},
			[]string{"warning KubeProxyMode DaemonSet kube-system/kube-proxy-edge: its mode is ipvs",
				"warning KubeProxyMode DaemonSet kube-system/kube-proxy: its mode is ipvs"},
		},
		"no daemon": {
			func(c *testCluster) { delete(c.objects, "Pod kube-system/statefulset-grid-daemon-edge1") },
			[]string{"failure Daemon Node edge1: no statefulset-grid-daemon runs there"},
		},
		"a controller that is not available": {
			func(c *testCluster) {
				get[*appsv1.Deployment](c,
					"Deployment kube-system/application-grid-controller").Status.AvailableReplicas = 0
			},
			[]string{
				"failure Controller Deployment kube-system/application-grid-controller: none of its 2 pods is " +
					"available",
			},
		},
		"SuperEdge's beside, stopped": {
			func(c *testCluster) {
				c.add(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-controller, namespace: edge-system}, spec: {replicas: 0, template: {spec: {containers: [{name: c, image: superedge/application-grid-controller:v0.9.0}]}}}}`)
			},
			nil,
		},
		"SuperEdge's beside, running": {
			func(c *testCluster) {
				c.add(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-controller, namespace: edge-system}, spec: {replicas: 1, template: {spec: {containers: [{name: c, image: superedge/application-grid-controller:v1}]}}}}`)
			},
			[]string{"failure Controller Deployment kube-system/application-grid-controller: there is a second " +
				"controller",
				"failure Controller Deployment edge-system/application-grid-controller: none of its 1 pod is " +
					"available"},
		},
		"half a controller": {
			func(c *testCluster) {
				get[*appsv1.Deployment](c,
					"Deployment kube-system/application-grid-controller").Status.AvailableReplicas = 1
			},
			[]string{
				"warning Controller Deployment kube-system/application-grid-controller: 1 of its 2 pods are available",
			},
		},
		"no controller": {
			func(c *testCluster) { delete(c.objects, "Deployment kube-system/application-grid-controller") },
			[]string{"failure Controller Deployment kube-system/application-grid-controller: there is no controller: " +
				"what grids say is not done"},
		},
		"an older CRD": {
			func(c *testCluster) {
				get[*unstructured.Unstructured](c,
					"CustomResourceDefinition /servicegrids.superedge.io").SetAnnotations(map[string]string{
					v1.AnnotationCRDVersion: "1",
				})
			},
			[]string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io: it is of version 1, older " +
				"than this " +
				"program's "},
		},
		"a newer CRD": {
			func(c *testCluster) {
				get[*unstructured.Unstructured](c,
					"CustomResourceDefinition /servicegrids.superedge.io").SetAnnotations(map[string]string{
					v1.AnnotationCRDVersion: "99",
				})
			},
			[]string{"warning CRDs CustomResourceDefinition servicegrids.superedge.io: it is of version 99, newer " +
				"than this program's "},
		},
		"SuperEdge's CRD": {
			func(c *testCluster) {
				get[*unstructured.Unstructured](c,
					"CustomResourceDefinition /servicegrids.superedge.io").SetAnnotations(nil)
			},
			[]string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io: it is not application-grid's"},
		},
		"no CRD": {
			func(c *testCluster) { delete(c.objects, "CustomResourceDefinition /servicegrids.superedge.io") },
			[]string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io: it is not there"},
		},
		"a CRD that is not served": {
			func(c *testCluster) {
				delete(get[*unstructured.Unstructured](c, "CustomResourceDefinition /servicegrids.superedge.io").Object,
					"status")
			},
			[]string{
				"failure CRDs CustomResourceDefinition servicegrids.superedge.io: the API server does not serve it",
			},
		},
		"a stalled and degraded grid": {
			func(c *testCluster) {
				meta.SetStatusCondition(&get[*v1.DeploymentGrid](c, "DeploymentGrid shop/echo").Status.Conditions,
					metav1.Condition{Type: v1.ConditionDegraded, Status: metav1.ConditionTrue,
						Reason:  v1.ReasonNameConflict,
						Message: "x is taken"})
				meta.SetStatusCondition(&get[*v1.DeploymentGrid](c, "DeploymentGrid shop/echo").Status.Conditions,
					metav1.Condition{Type: v1.ConditionStalled, Status: metav1.ConditionTrue,
						Reason:  v1.ReasonUnitsStalled,
						Message: "unit east"})
			},
			[]string{"failure Grids DeploymentGrid shop/echo: Stalled (UnitsStalled): unit east; Degraded " +
				"(NameConflict): x is taken"},
		},
		"a grid that nobody answers": {
			func(c *testCluster) { get[*v1.DeploymentGrid](c, "DeploymentGrid shop/echo").Status.Conditions = nil },
			[]string{"failure Grids DeploymentGrid shop/echo: the controller has not told of it"},
		},
		"an annotation that does not parse": {
			func(c *testCluster) {
				get[*corev1.Service](c, "Service shop/echo-svc").Annotations[v1.AnnotationTopologyKeys] = "zone1"
			},
			[]string{"failure Services Service shop/echo-svc: its annotation topologyKeys does not parse, so no node " +
				"sees its endpoints"},
		},
		"OpenYurt's annotation that does not parse": {
			func(c *testCluster) {
				get[*corev1.Service](c,
					"Service shop/echo-svc").Annotations = map[string]string{v1.AnnotationOpenYurtTopologyKeys: "pool"}
			},
			[]string{"failure Services Service shop/echo-svc: its annotation openyurt.io/topologyKeys does not " +
				"parse, so no " +
				"node sees its endpoints"},
		},
		"another takes the port": {
			func(c *testCluster) { c.add(grabber) },
			[]string{"failure Port Pod shop/grabber-1: it takes port 51006 of the edge node edge0",
				"warning Port DaemonSet shop/grabber: its pods take port 51006 of their nodes"},
		},
		"Cilium at the API server": {
			func(c *testCluster) { c.add(cilium) },
			[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks the API server",
				"failure KubeProxyReplacement Node edge1: its agent of Cilium asks the API server"},
		},
		"Cilium at the wrapper": {func(c *testCluster) { c.add(cilium + ciliumAt("https://127.0.0.1:51006")) }, nil},
		"Cilium at the wrapper everywhere": {
			func(c *testCluster) {
				c.add(cilium + "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: cilium-config, namespace: " +
					"kube-system}, data: {k8s-api-server-urls: \"https://localhost:51006\"}}")
			}, nil,
		},
		"Cilium past the wrapper": {
			func(c *testCluster) { c.add(cilium + ciliumAt("https://192.0.2.1:6443")) },
			[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks https://192.0.2.1:6443, past",
				"failure KubeProxyReplacement Node edge1: its agent of Cilium asks https://192.0.2.1:6443, past"},
		},
		"Cilium with several API servers": {
			func(c *testCluster) { c.add(cilium + ciliumAt("https://127.0.0.1:51006,https://192.0.2.1:6443")) },
			[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium has several API servers",
				"failure KubeProxyReplacement Node edge1: its agent of Cilium has several API servers"},
		},
		"Calico's eBPF": {
			func(c *testCluster) { c.add(calico("Iptables", "true")) },
			[]string{"failure KubeProxyReplacement DaemonSet calico-system/calico-node: Calico's eBPF data plane " +
				"takes kube-proxy's place (FelixConfiguration default, bpfEnabled)"},
		},
		"Calico for pods only": {func(c *testCluster) { c.add(calico("Iptables", "false")) }, nil},
		"NodeLocal DNSCache": {
			func(c *testCluster) {
				c.add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: node-local-dns, namespace: kube-system}, spec: {template: {spec: {hostNetwork: true, containers: [{name: node-cache, image: "registry.k8s.io/dns/k8s-dns-node-cache:1.26.0"}]}}}}`)
			},
			[]string{"warning NodeLocalDNS DaemonSet kube-system/node-local-dns: NodeLocal DNSCache answers the pods"},
		},
		"a certificate of the API server that ends": {
			func(c *testCluster) { c.server.CertificateEnd = now.AddDate(0, 0, 12) },
			[]string{"warning Credentials API server: the serving certificate ends on 2026-12-03, in 12 days"},
		},
		"a token that ended": {
			func(c *testCluster) { c.kubeconfig(`token: ` + token(now.Add(-time.Hour))) },
			[]string{
				`failure Credentials ConfigMap kube-system/own: the token of user "u" in key kubeconfig.conf ended on 2026-11-21`,
			},
		},
		"a token that ends": {
			func(c *testCluster) { c.kubeconfig(`token: ` + token(now.Add(5*time.Hour))) },
			[]string{
				`warning Credentials ConfigMap kube-system/own: the token of user "u" in key kubeconfig.conf ends on 2026-11-21, in 5 hours`,
			},
		},
		"a token that lasts": {func(c *testCluster) { c.kubeconfig(`token: ` + token(now.AddDate(1, 0, 0))) }, nil},
		"a certificate that ended": {
			func(c *testCluster) {
				file, _ := authority.IssueFiles(t, t.TempDir(), "wrapper")
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				c.kubeconfig(`client-certificate-data: ` + base64.StdEncoding.EncodeToString(data))
				c.now = now.AddDate(50, 0, 0)
				c.server.CertificateEnd = c.now.AddDate(1, 0, 0)
			},
			[]string{
				`failure Credentials ConfigMap kube-system/own: the certificate "CN=wrapper" in key kubeconfig.conf ended on`,
			},
		},
		"a node newer than the API server": {
			func(c *testCluster) { get[*corev1.Node](c, "Node /edge0").Status.NodeInfo.KubeletVersion = "v1.38.0" },
			[]string{
				"warning Versions Node edge0: the kubelet's version v1.38.0 is newer than the API server's v1.37.1",
			},
		},
		"nodes that are too old": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Status.NodeInfo.KubeletVersion = "v1.33.9"
				get[*corev1.Node](c, "Node /edge1").Status.NodeInfo.KubeletVersion = "v1.33.9"
			},
			[]string{"warning Versions Node: the kubelet's version v1.33.9 is more than 3 minor versions older than " +
				"the API server's v1.37.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			test.spoil(c)
			expect(t, After(t.Context(), c.source()), test.want)
		})
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

// k3s makes a node one of k3s', without pods of kube-proxy.
func (c *testCluster) k3s(name, args string) {
	node := get[*corev1.Node](c, "Node /"+name)
	node.Status.NodeInfo.KubeletVersion = "v1.37.1+k3s1"
	if args != "" {
		node.Annotations = map[string]string{"k3s.io/node-args": args}
	}
	delete(c.objects, "Pod kube-system/kube-proxy-edge-"+name)
}

// kubeconfig gives the wrapper a kubeconfig with a credential.
func (c *testCluster) kubeconfig(user string) {
	c.add(fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: own, namespace: kube-system}
data:
  kubeconfig.conf: |
    clusters: [{name: a, cluster: {server: "https://10.0.0.1:6443"}}]
    users: [{name: u, user: {%s}}]
`, user))
	p := get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0")
	p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "own",
		VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "own"}},
		}})
}

// token is a JSON Web Token that ends.
func token(end time.Time) string {
	return "e30." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, end.Unix())) + ".c2ln"
}

// TestWhatMayNotBeRead: every read that fails is a finding, and the others go on.
func TestWhatMayNotBeRead(t *testing.T) {
	forbidden := func(kind string) func(string) error {
		return func(asked string) error {
			if asked == kind || kind == "*" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: asked}, "", errors.New("no"))
			}
			return nil
		}
	}
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
	c := newTestCluster(t)
	asked := 0
	c.refuse = func(kind string) error {
		if kind == "Pod" {
			if asked++; asked == 1 {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
					errors.New("not in all namespaces"))
			}
		}
		return nil
	}
	report := After(t.Context(), c.source())
	expect(t, report, []string{"unknown Read Pod: it could not be read, and only those in kube-system were looked at"})
	if !strings.Contains(lines(report, OK), "the wrapper is ready on each of 2 edge nodes") {
		t.Errorf("got\n%s", lines(report, OK))
	}
}

// TestExpiredPages: a list that expires between pages begins again, and nothing is counted twice.
func TestExpiredPages(t *testing.T) {
	c := newTestCluster(t)
	asked := 0
	c.refuse = func(kind string) error {
		if kind == "Node" {
			if asked++; asked == 2 {
				return apierrors.NewResourceExpired("too old")
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
	for name := range c.objects {
		if strings.Contains(name, "grid") || strings.Contains(name, "kube-proxy-edge") ||
			strings.Contains(name, "superedge.io") {
			delete(c.objects, name)
		}
	}
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

// TestBefore: each thing that matters before an installation has its finding.
func TestBefore(t *testing.T) {
	kubeletVersions := func(c *testCluster, version string) {
		for _, node := range []string{"cloud0", "edge0", "edge1"} {
			get[*corev1.Node](c, "Node /"+node).Status.NodeInfo.KubeletVersion = version
		}
	}
	for name, test := range map[string]struct {
		prepare func(c *testCluster)
		want    []string
	}{
		"a fresh cluster": {func(*testCluster) {}, nil},
		"no kube-proxy": {
			func(c *testCluster) {
				delete(c.objects, "DaemonSet kube-system/kube-proxy")
				for _, node := range []string{"cloud0", "edge0", "edge1"} {
					delete(c.objects, "Pod kube-system/kube-proxy-"+node)
				}
			},
			[]string{"failure KubeProxy DaemonSet kube-system/kube-proxy: there is no kube-proxy"},
		},
		"ipvs": {
			func(c *testCluster) {
				get[*corev1.ConfigMap](c,
					"ConfigMap kube-system/kube-proxy").Data["config.conf"] = "mode: ipvs\nclientConnection: " +
					"{kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}"
			},
			[]string{"warning KubeProxyMode DaemonSet kube-system/kube-proxy: its mode is ipvs"},
		},
		"a configuration that is not there": {
			func(c *testCluster) { delete(c.objects, "ConfigMap kube-system/kube-proxy") },
			[]string{"unknown KubeProxy DaemonSet kube-system/kube-proxy: its mode is not known: " +
				"--config=/var/lib/kube-proxy/config.conf", "unknown KubeProxy DaemonSet kube-system/kube-proxy: how " +
				"it gets its server is not known"},
		},
		"an affinity of its own": {
			func(c *testCluster) {
				get[*appsv1.DaemonSet](c,
					"DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key = "gpu"
			},
			[]string{"warning KubeProxy DaemonSet kube-system/kube-proxy: it has a required node affinity of its own"},
		},
		"a kube-proxy newer than the API server": {
			func(c *testCluster) {
				get[*appsv1.DaemonSet](c,
					"DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Containers[0].Image = "mirror:5000/kube-proxy:v1.38.0"
			},
			[]string{
				"warning KubeProxy DaemonSet kube-system/kube-proxy: it is v1.38.0, newer than the API server's " +
					"v1.37.1",
			},
		},
		"a managed cloud": {
			func(c *testCluster) { kubeletVersions(c, "v1.37.1-gke.100") },
			[]string{"failure Distribution Node: the cluster is GKE (node cloud0 has kubelet v1.37.1-gke.100): its " +
				"provider owns kube-proxy"},
		},
		"RKE2": {
			func(c *testCluster) { kubeletVersions(c, "v1.37.1+rke2r1") },
			[]string{"warning Distribution Node: the cluster is RKE2 (node cloud0 has kubelet v1.37.1+rke2r1), which " +
				"was not tried"},
		},
		"nobody knows what": {
			func(c *testCluster) { delete(c.objects, "ConfigMap kube-system/kubeadm-config") },
			[]string{"warning Distribution Node: what made this cluster cannot be told from its nodes"},
		},
		"too old": {
			func(c *testCluster) { c.server.Version = "v1.20.15"; kubeletVersions(c, "v1.20.15") },
			[]string{"failure Versions API server: it is v1.20.15, and does not serve discovery.k8s.io/v1",
				"warning Versions Node: the kubelet's version v1.20.15 is older than what is tested",
				"warning Distribution MutatingAdmissionPolicy: an API server of v1.20.15 has no such policies",
				"warning KubeProxy DaemonSet kube-system/kube-proxy: it is v1.37.1, newer than"},
		},
		"an architecture without images": {
			func(c *testCluster) { get[*corev1.Node](c, "Node /edge0").Status.NodeInfo.Architecture = "riscv64" },
			[]string{"warning Platform Node edge0: there are no images for the architecture riscv64"},
		},
		"no right": {
			func(c *testCluster) { c.denied = "daemonsets" },
			[]string{"failure Rights SelfSubjectAccessReview: you may not create daemonsets.apps in kube-system",
				"failure Rights SelfSubjectAccessReview: you may not patch daemonsets.apps in kube-system"},
		},
		"labelled already": {
			func(c *testCluster) {
				get[*corev1.Node](c, "Node /edge0").Labels = map[string]string{v1.LabelEdgeNode: "true"}
			},
			[]string{"warning OtherWorkloads Node: the label superedge.io/application-grid is on 1 node already"},
		},
		"SuperEdge": {
			func(c *testCluster) {
				c.add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: application-grid-wrapper, namespace: edge-system}, spec: {template: {spec: {hostNetwork: true, containers: [{name: w, image: superedge/application-grid-wrapper, command: [/usr/local/bin/application-grid-wrapper, --bind-address=127.0.0.1:51006]}]}}}}`)
			},
			[]string{"failure OtherWorkloads DaemonSet edge-system/application-grid-wrapper: another " +
				"application-grid-wrapper is installed"},
		},
		"SuperEdge that gives way": {
			func(c *testCluster) {
				c.add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: application-grid-wrapper, namespace: edge-system}, spec: {template: {spec: {hostNetwork: true, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
        {matchExpressions: [{key: superedge.io/application-grid, operator: NotIn, values: ["true", systemd, static]}]},
        {matchExpressions: [{key: superedge.io/application-grid, operator: NotIn, values: [systemd, static]}, {key: superedge.io/kube-proxy, operator: NotIn, values: [edge]}]}]}}}, containers: [{name: w, image: superedge/application-grid-wrapper, command: [/usr/local/bin/application-grid-wrapper]}]}}}}`)
				c.add(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-controller, namespace: edge-system}, spec: {replicas: 0, template: {spec: {containers: [{name: c, image: superedge/application-grid-controller:v0.9.0}]}}}}`)
			},
			nil,
		},
		"another that selects the nodes": {
			func(c *testCluster) {
				c.add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent, namespace: shop}, spec: {template: {spec: {nodeSelector: {superedge.io/application-grid: "true"}, containers: [{name: w, image: w}]}}}}`)
			},
			[]string{"warning OtherWorkloads DaemonSet shop/agent: its pods go to the nodes with the label " +
				"superedge.io/application-grid, too"},
		},
		"another takes the port": {
			func(c *testCluster) { c.add(grabber) },
			[]string{"warning Port DaemonSet shop/grabber: its pods take port 51006 of their nodes"},
		},
		"Cilium": {
			func(c *testCluster) { c.add(cilium) },
			[]string{"warning KubeProxyReplacement DaemonSet kube-system/cilium: Cilium sends pods' connections to " +
				"Services on itself"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := fresh(t)
			test.prepare(c)
			report := Before(t.Context(), c.source(), installOptions)
			expect(t, report, append(test.want, always))
			if (report.Install == nil) != report.Failed() {
				t.Errorf("it failed: %v, and the installation is %v", report.Failed(), report.Install)
			}
		})
	}
}

// TestInstall: what is printed to install with is for the cluster that was looked at.
func TestInstall(t *testing.T) {
	install := func(prepare func(c *testCluster)) *setup.Install {
		c := fresh(t)
		prepare(c)
		report := Before(t.Context(), c.source(), installOptions)
		if report.Install == nil {
			t.Fatalf("got\n%s", lines(report, Failure))
		}
		return report.Install
	}
	kubeadms := install(func(c *testCluster) {
		get[*appsv1.DaemonSet](c,
			"DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Containers[0].Image = "mirror:5000/k8s/kube-proxy:v1.37.0"
	})
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
	old := install(func(c *testCluster) {
		c.server.Version = "v1.28.0"
		get[*appsv1.DaemonSet](c,
			"DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Containers[0].Image = "registry.k8s.io/kube-proxy:v1.28.0"
	})
	if !strings.Contains(old.Kustomization, "$patch: delete") ||
		strings.Count(old.Kustomization, "$patch: delete") != 3 ||
		!strings.Contains(old.Kustomization, "target: {group: admissionregistration.k8s.io}") ||
		!strings.Contains(old.Values, "policy: false") ||
		!strings.Contains(old.Values, "flowControl:\n  enabled: false") {
		t.Errorf("got\n%s\n%s", old.Kustomization, old.Values)
	}
	between := install(func(c *testCluster) {
		c.server.Version = "v1.35.2"
		get[*appsv1.DaemonSet](c,
			"DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Containers[0].Image = "registry.k8s.io/kube-proxy:v1.35.2"
	})
	if strings.Count(between.Kustomization, "$patch: delete") != 1 || !strings.Contains(between.Kustomization,
		"name: kube-proxy.superedge.io}") || strings.Contains(between.Values, "flowControl") {
		t.Errorf("got\n%s\n%s", between.Kustomization, between.Values)
	}
	k3s := install(func(c *testCluster) {
		for _, node := range []string{"cloud0", "edge0", "edge1"} {
			c.k3s(node, `["agent"]`)
			delete(c.objects, "Pod kube-system/kube-proxy-"+node)
		}
		delete(c.objects, "DaemonSet kube-system/kube-proxy")
	})
	if !strings.Contains(k3s.Kustomization, "resources: [../manifests/k3s]") ||
		strings.Contains(k3s.Kustomization, "kube-proxy") || !strings.Contains(k3s.Values, "distribution: k3s") {
		t.Errorf("got\n%s\n%s", k3s.Kustomization, k3s.Values)
	}
	rke2 := install(func(c *testCluster) {
		for _, node := range []string{"cloud0", "edge0", "edge1"} {
			get[*corev1.Node](c, "Node /"+node).Status.NodeInfo.KubeletVersion = "v1.37.1+rke2r1"
		}
	})
	if !strings.Contains(rke2.Kubeconfig, "server: https://127.0.0.1:6443") ||
		!strings.Contains(rke2.Kustomization, "files: [kubeconfig.conf]") ||
		!strings.Contains(rke2.Values, "distribution: plain\nwrapper:\n  server: https://127.0.0.1:6443") {
		t.Errorf("got\n%s\n%s", rke2.Kustomization, rke2.Kubeconfig)
	}
	plain := install(func(c *testCluster) { delete(c.objects, "ConfigMap kube-system/kubeadm-config") })
	if !strings.Contains(plain.Kubeconfig, "set-this") || !strings.Contains(strings.Join(plain.Notes, "\n"),
		"Set the server in kubeconfig.conf") {
		t.Errorf("got\n%s", plain.Kubeconfig)
	}
}
