package check

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestAfter: each defect has its finding, and no other one.
func TestAfter(t *testing.T) {
	for _, defects := range []map[string]defect{
		wrapperDefects, kubeProxyDefects, placementDefects, neighbourDefects, versionDefects, gridDefects,
		networkDefects, credentialDefects, newDefects,
	} {
		for name, d := range defects {
			t.Run(name, func(t *testing.T) {
				c := newTestCluster(t)
				d.spoil(c)
				expect(t, After(t.Context(), c.source()), d.want)
			})
		}
	}
}

// TestPraise: no Service is said to stay in its sites because others with the same topologyKeys do.
func TestPraise(t *testing.T) {
	const all = `
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: echo-1, namespace: shop, labels: {kubernetes.io/service-name: echo-svc}},
 addressType: IPv4, endpoints: [{addresses: [10.244.0.1], nodeName: edge0}, {addresses: [10.244.0.2], nodeName: edge1}]}`
	const lacking = `
---
{apiVersion: v1, kind: Service, metadata: {name: later, namespace: shop, annotations: {topologyKeys: '["zone1"]'}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: later-1, namespace: shop, labels: {kubernetes.io/service-name: later}},
 addressType: IPv4, endpoints: [{addresses: [10.244.0.3], nodeName: edge0}]}`
	for manifests, want := range map[string]bool{all: true, all + lacking: false} {
		c := newTestCluster(t)
		adding(manifests)(c)
		report := After(t.Context(), c.source())
		if strings.Contains(lines(report, OK), "each with the topologyKeys zone1 stays in its sites on 2 edge nodes") != want {
			t.Errorf("got\n%s", lines(report, OK))
		}
	}
}

// TestPraiseNeedsAll: what is well is said only if everything that it follows from was read.
func TestPraiseNeedsAll(t *testing.T) {
	for praise, kinds := range map[string][]string{
		"is stalled or degraded":     {"ServiceGrid", "Service"},
		"no node is half in a site":  {"DeploymentGrid", "ServiceGrid", "Node"},
		"to take kube-proxy's place": {"DaemonSet", "Node"},
	} {
		if report := After(t.Context(), newTestCluster(t).source()); !strings.Contains(lines(report, OK), praise) {
			t.Errorf("who may read all is not told: %s", praise)
		}
		for _, kind := range kinds {
			c := newTestCluster(t)
			c.refuse = forbidden(kind)
			if report := After(t.Context(), c.source()); strings.Contains(lines(report, OK), praise) {
				t.Errorf("%ss could not be read, and yet: %s", kind, praise)
			}
		}
	}
}

// TestLabelAloneIsNotEnough: for a node in a site that is not an edge node the action includes its data plane, which the
// label would make a failure.
func TestLabelAloneIsNotEnough(t *testing.T) {
	for manifests, want := range map[string]string{
		"":     v1.LabelEdgeNode + "=" + v1.EdgeNodePods,
		cilium: v1.LabelEdgeNode + "=" + v1.EdgeNodePods + "; then add manifests/cilium to your kustomization",
		cilium + ciliumAt("https://127.0.0.1:51006"): v1.LabelEdgeNode + "=" + v1.EdgeNodePods,
	} {
		c := newTestCluster(t)
		all(overTLS, adding(manifests))(c)
		get[*corev1.Node](c, "Node /cloud0").Labels = map[string]string{"zone1": "east"}
		report := After(t.Context(), c.source())
		i := slices.IndexFunc(report.Findings, func(f Finding) bool { return f.Node == "cloud0" })
		if i < 0 {
			t.Fatalf("not found: %v", report.Findings)
		}
		action := report.Findings[i].Action
		if !strings.Contains(action, want) || strings.Contains(want, "then") != strings.Contains(action, "then") {
			t.Errorf("got %q, want %q", action, want)
		}
	}
}

// wrapperDefects are of what edge nodes have: a label, the wrapper, the daemon.
var wrapperDefects = map[string]defect{
	"no edge nodes": {
		all(labelled("edge0", ""), labelled("edge1", ""), withoutAll("application-grid-wrapper-edge")),
		[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks http://localhost:51006 " +
			"(/var/lib/kube-proxy/kubeconfig.conf in ConfigMap kube-system/kube-proxy-edge), " +
			"where no wrapper serves",
			"failure KubeProxy Pod kube-system/kube-proxy-edge-edge1",
			"failure EdgeLabel Node: no node has the label superedge.io/application-grid, so nothing keeps 1 " +
				"Service"}},
	"no edge nodes, and a Service of single nodes": {
		func(c *testCluster) {
			get[*corev1.Service](c, "Service shop/echo-svc").Annotations[v1.AnnotationTopologyKeys] =
				`["kubernetes.io/hostname"]`
			for _, node := range []string{"edge0", "edge1"} {
				get[*corev1.Node](c, "Node /"+node).Labels = map[string]string{corev1.LabelHostname: node}
				withoutAll("-" + node)(c)
			}
		},
		[]string{"warning EdgeLabel Node: no node has the label"}},
	"a label that means nothing": {labelled("cloud0", "yes"),
		[]string{"warning EdgeLabel Node cloud0: the label superedge.io/application-grid=yes means nothing"}},
	"no wrapper": {without("Pod kube-system/application-grid-wrapper-edge0"),
		[]string{"failure Wrapper Node edge0: no application-grid-wrapper runs there"}},
	"a wrapper whose image is missing": {
		func(c *testCluster) {
			p := get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0")
			p.Status.Conditions = nil
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such host"},
			}
		},
		[]string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge0: on node edge0 it is not ready: " +
			"container application-grid-wrapper: ErrImagePull: no such host"}},
	"a node without a link": {
		func(c *testCluster) {
			get[*corev1.Node](c, "Node /edge0").Status.Conditions = nil
			for _, program := range []string{
				"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge",
			} {
				get[*corev1.Pod](c, "Pod kube-system/"+program+"-edge0").Status.Conditions = nil
			}
		},
		[]string{
			"warning Wrapper Pod kube-system/application-grid-wrapper-edge0: on node edge0 its state is that of the " +
				"last contact: the node is not ready",
			"warning Daemon Pod kube-system/statefulset-grid-daemon-edge0: on node edge0 its state is that of the last contact"}},
	"two wrappers": {
		func(c *testCluster) {
			p := c.run("application-grid-wrapper", "edge0").DeepCopy()
			p.Namespace, p.Name, p.UID = "edge-system", "wrapper-of-superedge", "x"
			c.objects["second"] = p
		},
		[]string{"failure Wrapper Node edge0: 2 pods of application-grid-wrapper run there: " +
			"edge-system/wrapper-of-superedge, kube-system/application-grid-wrapper-edge0"}},
	"systemd": {
		all(labelled("edge0", "systemd"), without("Pod kube-system/application-grid-wrapper-edge0",
			"Pod kube-system/statefulset-grid-daemon-edge0")),
		[]string{"unknown Wrapper Node edge0: the wrapper is a unit of systemd there",
			"unknown Credentials Node edge0: the wrapper's credentials are files on the node"}},
	"systemd, and a pod": {labelled("edge0", "systemd"),
		[]string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge0: on node edge0 it runs, and the node's " +
			"label says that its wrapper is a unit of systemd: both want port 51006",
			"unknown Credentials Node edge0"}},
	"static pods that the API server does not show": {
		all(labelled("edge0", "static"), without("Pod kube-system/application-grid-wrapper-edge0",
			"Pod kube-system/kube-proxy-edge-edge0", "Pod kube-system/statefulset-grid-daemon-edge0")),
		[]string{"unknown Wrapper Node edge0: the node starts the wrapper itself",
			"unknown KubeProxy Node edge0: the node starts kube-proxy itself",
			"unknown Credentials Node edge0: the wrapper's credentials are files on the node"}},
	"static pods, and a kube-proxy of the cluster": {all(labelled("edge0", "static"), running("kube-proxy", "edge0")),
		[]string{"failure KubeProxy Node edge0: 2 kube-proxies run there",
			"unknown Credentials Node edge0",
			"failure KubeProxy Pod kube-system/kube-proxy-edge0: on node edge0 it asks https://10.0.0.1:6443"}},
	"no daemon": {without("Pod kube-system/statefulset-grid-daemon-edge1"),
		[]string{"failure Daemon Node edge1: no statefulset-grid-daemon runs there"}},
}

// kubeProxyDefects are of whom kube-proxies ask.
var kubeProxyDefects = map[string]defect{
	"kube-proxy asks the API server": {
		kubeconfigWith("http://localhost:51006", "https://10.0.0.1:6443"),
		[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks https://10.0.0.1:6443 " +
			"(/var/lib/kube-proxy/kubeconfig.conf in ConfigMap kube-system/kube-proxy-edge), " +
			"past the wrapper",
			"failure KubeProxy Pod kube-system/kube-proxy-edge-edge1"}},
	"--master overrides the kubeconfig": {
		ofKubeProxy("--config=/var/lib/kube-proxy/config.conf", "--master", "https://10.0.0.1:6443"),
		[]string{
			"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks https://10.0.0.1:6443 (--master), " +
				"past the wrapper"}},
	"the wrapper's address in the environment": {
		all(overTLS, ofKubeProxy(), func(c *testCluster) {
			p := get[*corev1.Pod](c, "Pod kube-system/kube-proxy-edge-edge0")
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "127.0.0.1"},
				{Name: "KUBERNETES_SERVICE_PORT", Value: "51006"}}
		}), nil},
	"no server at all": {
		ofKubeProxy(),
		[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks https://kubernetes.default.svc " +
			"(its ServiceAccount, for want of a kubeconfig), past the wrapper"}},
	"a kubeconfig on the node's disk": {
		ofKubeProxy("--kubeconfig=/etc/kubernetes/kube-proxy.conf"),
		[]string{"unknown KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 the server that it asks is not known: " +
			"kubeconfig /etc/kubernetes/kube-proxy.conf: it is a file on the node"}},
	"a configuration that changed since": {
		func(c *testCluster) {
			get[*corev1.ConfigMap](c,
				"ConfigMap kube-system/kube-proxy-edge").ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1",
				FieldsType: "FieldsV1",
				FieldsV1:   metav1.NewFieldsV1("{}"), Time: &metav1.Time{Time: now.Add(-time.Minute)},
			}}
		},
		[]string{"warning KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 its configuration was changed after it " +
			"started",
			"warning KubeProxy Pod kube-system/kube-proxy-edge-edge1"}},
	"a wrapper with a port of its own": {
		ofWrapper("edge0", "--bind-address=localhost:51016"),
		[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks http://localhost:51006"}},
	"two kube-proxies": {running("kube-proxy", "edge0"),
		[]string{"failure KubeProxy Node edge0: 2 kube-proxies run there, and overwrite each other's rules: " +
			"kube-system/kube-proxy-edge-edge0, kube-system/kube-proxy-edge0",
			"failure KubeProxy Pod kube-system/kube-proxy-edge0: on node edge0 it asks https://10.0.0.1:6443"}},
	"no kube-proxy": {without("Pod kube-system/kube-proxy-edge-edge0"),
		[]string{"failure KubeProxy Node edge0: no kube-proxy runs there"}},
	"ipvs": {ipvs,
		[]string{"warning KubeProxyMode DaemonSet kube-system/kube-proxy-edge: its mode is ipvs",
			"warning KubeProxyMode DaemonSet kube-system/kube-proxy: its mode is ipvs"}},
	"k3s, with the server": {k3s("edge0", `["agent","--kube-proxy-arg","master=http://localhost:51006"]`), nil},
	"k3s, without": {k3s("edge0", `["agent"]`),
		[]string{"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, has no --master"}},
	"k3s, past the wrapper": {k3s("edge0", `["agent","--kube-proxy-arg=master=https://127.0.0.1:6444"]`),
		[]string{"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, asks https://127.0.0.1:6444, past the " +
			"wrapper"}},
	"k3s, past the wrapper with its scheme": {k3s("edge0", `["agent","--kube-proxy-arg=master=http://127.0.0.1:6444"]`),
		[]string{"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, asks http://127.0.0.1:6444, past the " +
			"wrapper"}},
	"k3s, over TLS at a plain wrapper": {k3s("edge0", `["agent","--kube-proxy-arg=master=https://localhost:51006"]`),
		[]string{"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, asks https://localhost:51006, and the " +
			"wrapper serves http: its rules stay as they are"}},
	"k3s, with no kube-proxy": {k3s("edge0", `["server","--disable-kube-proxy"]`),
		[]string{"failure KubeProxy Node edge0: its agent runs with --disable-kube-proxy"}},
	"k3s, with kube-proxy not disabled": {
		k3s("edge0", `["agent","--disable-kube-proxy","false",`+
			`"--kube-proxy-arg","master=http://localhost:51006"]`), nil},
	"k3s, with kube-proxy disabled by its file": {k3s("edge0", `["agent","--disable-kube-proxy","true"]`),
		[]string{"failure KubeProxy Node edge0: its agent runs with --disable-kube-proxy"}},
	"k3s, with the dashes of kube-proxy's flag": {
		k3s("edge0", `["agent","--kube-proxy-arg","--v","2",`+
			`"--kube-proxy-arg","--master","http://localhost:51006"]`), nil},
	"k3s, with a kubeconfig of kube-proxy's own": {
		k3s("edge0", `["agent","--kube-proxy-arg","kubeconfig=/etc/kube-proxy.conf"]`),
		[]string{"unknown KubeProxy Node edge0: kube-proxy is part of k3s's own process there, and only a file on"}},
	"k3s that says nothing": {k3s("edge0", ""),
		[]string{"unknown KubeProxy Node edge0: kube-proxy is part of k3s's own process there"}},
}

// placementDefects are of what keeps kubeadm's kube-proxy off edge nodes.
var placementDefects = map[string]defect{
	"a kube-proxy that waits": {
		func(c *testCluster) {
			c.run("kube-proxy", "edge0").Spec.Affinity = nil
			altered("Pod kube-system/kube-proxy-edge0", `spec: {nodeName: "", affinity: {nodeAffinity: {
 requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
 {matchFields: [{key: metadata.name, operator: In, values: [edge0]}]}]}}}}`)(c)
		},
		[]string{"warning KubeProxyPlacement Pod kube-system/kube-proxy-edge0: on node edge0 it waits for its turn beside another kube-proxy"}},
	"one kube-proxy that asks wrappers everywhere": {
		all(everywhere("51006"), without("Pod kube-system/kube-proxy-cloud0")),
		[]string{
			"warning KubeProxyPlacement DaemonSet kube-system/kube-proxy: it asks the wrapper on every node, which " +
				"the next upgrade by kubeadm undoes"}},
	"one kube-proxy that asks wrappers everywhere, at a port of theirs": {
		all(onPort("51016"), everywhere("51016"), running("kube-proxy", "cloud0")),
		[]string{
			"warning KubeProxyPlacement DaemonSet kube-system/kube-proxy: it asks the wrapper on every node",
			"failure KubeProxy Pod kube-system/kube-proxy-cloud0: on node cloud0 it asks http://localhost:51016 (--master), " +
				"where no wrapper serves"}},
	"kube-proxies outside of Kubernetes": {withoutAll("kube-proxy", "kubeadm"),
		[]string{"unknown KubeProxy Node edge0: no pod of this cluster runs kube-proxy",
			"unknown KubeProxy Node edge1"}},
	"an upgrade took the affinity": {
		altered("DaemonSet kube-system/kube-proxy", "spec: {template: {spec: {affinity: null}}}"),
		[]string{
			"failure KubeProxyPlacement DaemonSet kube-system/kube-proxy: its node affinity does not keep it off " +
				"edge nodes"}},
	"an affinity that does not wait for the wrapper": {
		func(c *testCluster) {
			affinity := get[*appsv1.DaemonSet](c, "DaemonSet kube-system/kube-proxy").Spec.Template.Spec.Affinity
			required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			required.NodeSelectorTerms = required.NodeSelectorTerms[:1]
		},
		[]string{"warning KubeProxyPlacement DaemonSet kube-system/kube-proxy: it leaves a node as soon as that is " +
			"labelled"}},
	"rules that are frozen since the label": {
		func(c *testCluster) {
			delete(c.objects, "Pod kube-system/kube-proxy-edge-edge0")
			get[*corev1.Node](c, "Node /edge0").ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager: "kubectl-label", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
				FieldsType: "FieldsV1", Time: &metav1.Time{Time: now.Add(-time.Hour)},
				FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:superedge.io/application-grid":{}}}}`),
			}}
		},
		[]string{"failure KubeProxy Node edge0: no kube-proxy runs there: its rules are frozen since " +
			"2026-11-21T11:00:00Z"}},
	"no policy": {without("MutatingAdmissionPolicyBinding /kube-proxy.superedge.io"),
		[]string{
			"failure KubeProxyPlacement MutatingAdmissionPolicy kube-proxy.superedge.io: the policy or its binding " +
				"is missing"}},
	"an API server without such policies": {
		all(without("MutatingAdmissionPolicy /kube-proxy.superedge.io"), version("v1.35.0"),
			image("DaemonSet kube-system/kube-proxy", "kube-proxy:v1.35.0"),
			image("DaemonSet kube-system/kube-proxy-edge", "kube-proxy:v1.35.0")),
		[]string{
			"warning KubeProxyPlacement MutatingAdmissionPolicy kube-proxy.superedge.io: an API server of v1.35.0 " +
				"has no such policies"}},
}

// neighbourDefects are of what else is installed, or was.
var neighbourDefects = map[string]defect{
	"a removal that left something": {
		all(withoutAll("wrapper", "kube-proxy-edge", "statefulset-grid-daemon"), labelled("edge0", ""), labelled("edge1", ""),
			running("kube-proxy", "edge0"), running("kube-proxy", "edge1")),
		[]string{"warning Removal DaemonSet kube-system/kube-proxy: it still has the node affinity",
			"warning Removal MutatingAdmissionPolicy kube-proxy.superedge.io: it is left of an installation",
			"failure EdgeLabel Node: no node has the label"}},
	"a hub's APIService without a hub": {
		adding(`{apiVersion: apiregistration.k8s.io/v1, kind: APIService,
 metadata: {name: v1alpha1.hub.superedge.io}}`),
		[]string{"failure Hub APIService v1alpha1.hub.superedge.io: it points to a hub that does not exist"}},
	"a controller outside of the cluster": {
		all(without("Deployment kube-system/application-grid-controller"), adding(`
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: application-grid-controller, namespace: kube-system},
 spec: {renewTime: "2026-11-21T11:59:30.000000Z"}}`)),
		nil,
	},
	"meshes and ingress controllers": {
		func(c *testCluster) {
			for name, container := range map[string]string{"istiod": "discovery", "linkerd-destination": "destination",
				"ingress-nginx-controller": "controller", "envoy-gateway": "envoy-gateway", "cilium-envoy": "cilium-envoy",
				"haproxy-kubernetes-ingress": "x", "traefik": "traefik", "nginx-ingress": "x", "contour": "contour",
				"kong": "proxy", "emissary-ingress": "ambassador", "skipper": "skipper-ingress", "kuma-cp": "x"} {
				c.add(fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s, namespace: mesh}, spec: {template: `+
					`{spec: {containers: [{name: %s, image: x}]}}}}`, name, container))
			}
		},
		[]string{"warning Bypass Deployment mesh/istiod: Istio reads",
			"warning Bypass Deployment mesh/linkerd-destination: Linkerd",
			"warning Bypass Deployment mesh/ingress-nginx-controller: ingress-nginx",
			"warning Bypass Deployment mesh/envoy-gateway: Envoy Gateway",
			"warning Bypass Deployment mesh/cilium-envoy: Cilium's Envoy",
			"warning Bypass Deployment mesh/haproxy-kubernetes-ingress: HAProxy",
			"warning Bypass Deployment mesh/traefik: Traefik",
			"warning Bypass Deployment mesh/nginx-ingress: NGINX Inc.'s", "warning Bypass Deployment mesh/kong: Kong",
			"warning Bypass Deployment mesh/contour: Contour", "warning Bypass Deployment mesh/kuma-cp: Kuma",
			"warning Bypass Deployment mesh/emissary-ingress: Emissary",
			"warning Bypass Deployment mesh/skipper: Skipper"}},
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
		[]string{"warning Bypass DaemonSet site/envoy-gateway: Envoy Gateway reads"}},
	"nothing is installed": {
		all(withoutAll("application-grid", "-grid-daemon", "kube-proxy-edge", "superedge.io"),
			labelled("edge0", ""), labelled("edge1", "")),
		[]string{"failure Installation Deployment: application-grid is not installed",
			"warning Removal DaemonSet kube-system/kube-proxy: it still has the node affinity"}},
	"nothing is installed, and k3s asks a wrapper": {
		all(withoutAll("application-grid", "-grid-daemon", "kube-proxy-edge", "superedge.io"),
			labelled("edge0", ""), labelled("edge1", ""),
			k3s("edge0", `["agent","--kube-proxy-arg=master=http://localhost:51006"]`)),
		[]string{"failure Installation Deployment: application-grid is not installed",
			"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, asks http://localhost:51006, where no wrapper " +
				"serves",
			"warning Removal DaemonSet kube-system/kube-proxy: it still has the node affinity"}},
	"SuperEdge's beside, stopped": {adding(superEdgesController(0, "v0.9.0")), nil},
	"SuperEdge's beside, running": {adding(superEdgesController(1, "v1")),
		[]string{"failure Controller Deployment kube-system/application-grid-controller: a second controller works",
			"failure Controller Deployment edge-system/application-grid-controller: none of its 1 pod is available"}},
}

// versionDefects are of versions that do not go together.
var versionDefects = map[string]defect{
	"wrappers of two versions": {
		image("Pod kube-system/application-grid-wrapper-edge0", "registry.example.org/application-grid-wrapper:v0"),
		[]string{
			"warning ProgramVersions DaemonSet in kube-system: the programs are of different versions: " +
				`application-grid-wrapper-edge0 has "v0"; application-grid-wrapper, `}},
	"programs of two versions": {
		image("Deployment kube-system/application-grid-controller",
			"registry.example.org/application-grid-controller:v2@sha256:0"),
		[]string{"warning ProgramVersions DaemonSet in kube-system: the programs are of different versions: " +
			`application-grid-wrapper, statefulset-grid-daemon has "v1"; application-grid-controller has "v2"`}},
	"kube-proxies of two versions": {
		image("DaemonSet kube-system/kube-proxy-edge", "registry.k8s.io/kube-proxy:v1.33.0"),
		[]string{
			"warning ProgramVersions DaemonSet kube-system/kube-proxy-edge: kube-proxy's version v1.33.0 is more " +
				"than 3 minor versions older than the API server's v1.37.1",
			"warning ProgramVersions DaemonSet in kube-system: the kube-proxies are of different versions: " +
				`kube-proxy-edge has "v1.33.0"; kube-proxy has "v1.37.1"`}},
	"a node newer than the API server": {kubelets("v1.38.0", "edge0"),
		[]string{"warning Versions Node edge0: its kubelet's version v1.38.0 is newer than the API server's v1.37.1"}},
	"nodes that are too old": {kubelets("v1.33.9", "edge0", "edge1"),
		[]string{
			"warning Versions Node edge0: its kubelet's version v1.33.9 is more than 3 minor versions older than the API " +
				"server's v1.37.1", "warning Versions Node edge1: its kubelet's version v1.33.9"}},
}

// gridDefects are of the controller, the CRDs, the grids and Services.
var gridDefects = map[string]defect{
	"a controller that is not available": {
		altered("Deployment kube-system/application-grid-controller", "status: {availableReplicas: 0}"),
		[]string{
			"failure Controller Deployment kube-system/application-grid-controller: none of its 2 pods is available"}},
	"half a controller": {
		altered("Deployment kube-system/application-grid-controller", "status: {availableReplicas: 1}"),
		[]string{"warning Controller Deployment kube-system/application-grid-controller: 1 of its 2 pods are " +
			"available"}},
	"no controller": {without("Deployment kube-system/application-grid-controller"),
		[]string{
			"failure Controller Deployment kube-system/application-grid-controller: no controller is installed: " +
				"grids are not being reconciled"}},
	"an older CRD": {adding(crd("servicegrids.superedge.io", "1")),
		[]string{
			"failure CRDs CustomResourceDefinition servicegrids.superedge.io: it is of version 1, older than this " +
				"program's "}},
	"a ServiceGrid whose Service lost its keys while the controller was away": {adding(serviceGrid("")),
		[]string{"failure Grids ServiceGrid shop/front: Service front-svc does not have the topologyKeys of this grid, " +
			`["zone1"]`}},
	"a ServiceGrid": {adding(serviceGrid(`annotations: {topologyKeys: '["zone1"]'}, `)), nil},
	"a newer CRD": {adding(crd("servicegrids.superedge.io", "99")),
		[]string{
			"warning CRDs CustomResourceDefinition servicegrids.superedge.io: it is of version 99, newer than this " +
				"program's "}},
	"SuperEdge's CRD": {adding(crd("servicegrids.superedge.io", "")),
		[]string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io: it is not application-grid's"}},
	"no CRD": {without("CustomResourceDefinition /servicegrids.superedge.io"),
		[]string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io: it is not there"}},
	"a CRD that is not served": {
		func(c *testCluster) {
			delete(get[*unstructured.Unstructured](c, "CustomResourceDefinition /servicegrids.superedge.io").Object,
				"status")
		},
		[]string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io: the API server does not serve it"}},
	"a stalled and degraded grid": {
		altered("DeploymentGrid shop/echo", `status: {conditions: [
 {type: Ready, status: "True", reason: Ready}, {type: Degraded, status: "True", reason: NameConflict, message: x is taken},
 {type: Stalled, status: "True", reason: SitesStalled, message: site east}]}`),
		[]string{
			"failure Grids DeploymentGrid shop/echo: Stalled (SitesStalled): site east; Degraded (NameConflict): x " +
				"is taken"}},
	"a grid that was made a moment ago": {all(altered("DeploymentGrid shop/echo", "status: {conditions: null}"),
		func(c *testCluster) {
			made := metav1.NewTime(now.Add(-time.Second))
			get[*v1.DeploymentGrid](c, "DeploymentGrid shop/echo").CreationTimestamp = made
		}), nil},
	"a grid that nobody answers": {altered("DeploymentGrid shop/echo", "status: {conditions: null}"),
		[]string{"failure Grids DeploymentGrid shop/echo: the controller has not reported on it yet"}},
	"an annotation that does not parse": {
		altered("Service shop/echo-svc", "metadata: {annotations: {topologyKeys: zone1}}"),
		[]string{
			"failure Services Service shop/echo-svc: its annotation topologyKeys does not parse, so no node sees " +
				"its endpoints"}},
	"OpenYurt's annotation that does not parse": {
		func(c *testCluster) {
			get[*corev1.Service](c,
				"Service shop/echo-svc").Annotations = map[string]string{v1.AnnotationOpenYurtTopologyKeys: "pool"}
		},
		[]string{
			"failure Services Service shop/echo-svc: its annotation openyurt.io/topologyKeys does not parse, so no " +
				"node sees its endpoints"}},
}

// withHub is a cluster with a hub, which the wrappers ask, and whose APIService has this status.
func withHub(status string) func(c *testCluster) {
	return all(ofWrappers("--hub=1"), adding(`
{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-hub, namespace: kube-system},
 spec: {replicas: 2, selector: {matchLabels: {app: hub}}, template: {spec: {containers: [{name: application-grid-hub, image: "registry.example.org/application-grid-hub:v1"}]}}},
 status: {availableReplicas: 2}}
---
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1alpha1.hub.superedge.io}, status: {`+status+`}}
`))
}

// newDefects are of what no condition of a pod shows.
var newDefects = map[string]defect{
	"a hub whose APIService is available": {withHub(`conditions: [{type: Available, status: "True", reason: Passed}]`), nil},
	"a hub whose APIService has no condition yet": {withHub(""),
		[]string{"failure Hub APIService v1alpha1.hub.superedge.io: it is not available (it has no condition Available)"}},
	"a hub whose APIService may be available": {
		withHub(`conditions: [{type: Available, status: Unknown, reason: Starting, message: "no answer"}]`),
		[]string{"failure Hub APIService v1alpha1.hub.superedge.io: it is not available (Starting: no answer)"}},
	"a hub that is not asked, by a flag": {all(withHub(`conditions: [{type: Available, status: "True"}]`),
		ofWrappers("--hub=f")),
		[]string{"warning Hub Deployment kube-system/application-grid-hub: the hub is installed, and no wrapper asks it"}},
	"wrappers over TLS, by a short word":                    {all(overTLS, ofWrappers("--insecure=0")), nil},
	"plain wrappers, by a flag that takes no word after it": {ofWrappers("--insecure", "false"), nil},
	"the wrapper's address without a scheme":                {ofKubeProxy("--master=127.0.0.1:51006"), nil},
	"the wrapper's address without a scheme, and an authority": {all(
		ofKubeProxy("--master=localhost:51006", "--config=/var/lib/kube-proxy/config.conf"),
		kubeconfigWith("{server:", "{certificate-authority: /ca.crt, server:")),
		[]string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks https://localhost:51006 (--master), " +
			"and the wrapper serves http"}},
	"an address without a scheme, and a kubeconfig on the node": {
		ofKubeProxy("--master=localhost:51006", "--kubeconfig=/etc/kube-proxy.conf"),
		[]string{"unknown KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 the server that it asks is not " +
			"known"}},
	"an address with a scheme, and a kubeconfig on the node": {
		ofKubeProxy("--master=http://localhost:51006", "--kubeconfig=/etc/kube-proxy.conf"), nil},
	"k3s, without a scheme": {k3s("edge0", `["agent","--kube-proxy-arg=master=localhost:51006"]`),
		[]string{"failure KubeProxy Node edge0: its kube-proxy, a part of k3s, asks https://localhost:51006, and the " +
			"wrapper serves http"}},
	"wrapper and kube-proxy in one pod": {all(func(c *testCluster) {
		spec := &get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0").Spec
		other := get[*corev1.Pod](c, "Pod kube-system/kube-proxy-edge-edge0").Spec
		spec.Containers = append(spec.Containers, other.Containers...)
		spec.Volumes = append(spec.Volumes, other.Volumes...)
	}, without("Pod kube-system/kube-proxy-edge-edge0")), nil},
	"kube-proxy, and a wrapper as its sidecar": {all(func(c *testCluster) {
		spec := &get[*corev1.Pod](c, "Pod kube-system/kube-proxy-edge-edge0").Spec
		wrapper := get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0").Spec.Containers[0]
		wrapper.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		wrapper.Ports = []corev1.ContainerPort{{ContainerPort: 51006}}
		spec.InitContainers = append(spec.InitContainers, wrapper)
	}, without("Pod kube-system/application-grid-wrapper-edge0")), nil},
	"a hub whose APIService is not available, of another version": {all(
		withHub(`conditions: [{type: Available, status: "False", reason: FailedDiscoveryCheck, message: "x509: unknown authority"}]`),
		image("Deployment kube-system/application-grid-hub", "registry.example.org/application-grid-hub:v0"),
	), []string{"failure Hub APIService v1alpha1.hub.superedge.io: it is not available (FailedDiscoveryCheck: x509: unknown " +
		"authority)", "warning ProgramVersions DaemonSet in kube-system: the programs are of different versions"}},
	"kube-proxy over TLS at a plain wrapper": {kubeconfigWith("http:", "https:"), []string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge0: on node edge0 it asks https://localhost:51006",
		"failure KubeProxy Pod kube-system/kube-proxy-edge-edge1"}},
	"wrappers that share a name": {ofWrappers("--hostname=edge0"), []string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge1: on node edge1 it is given the name"}},
	"wrappers that share a name of their environment": {func(c *testCluster) {
		for _, n := range []string{"edge0", "edge1"} {
			of := &get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-"+n).Spec.Containers[0]
			of.Args = append(of.Args, "--hostname=$(NODE_NAME)")
			of.Env = []corev1.EnvVar{{Name: "NODE_NAME", Value: "edge0"}}
		}
	}, []string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge1: on node edge1 it is given the name"}},
	"wrappers with the names of their nodes": {func(c *testCluster) {
		of := &get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge0").Spec.Containers[0]
		of.Args = append(of.Args, "--hostname=$(NODE_NAME)")
		of.Env = []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
		of = &get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge1").Spec.Containers[0]
		of.Args = append(of.Args, "--hostname=Edge1") // the wrapper reads it in lower case
	}, nil},
	"a grid whose last change nobody answers": {adding(`
{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: stuck, namespace: shop, generation: 7},
 spec: {gridUniqKey: zone1}, status: {observedGeneration: 3, conditions: [{type: Ready, status: "True", reason: Ready}]}}`),
		[]string{"failure Grids DeploymentGrid shop/stuck: the controller has not answered its last change"}},
	"k3s that asks a wrapper on a node that is not an edge node": {
		k3s("cloud0", `["agent","--kube-proxy-arg=master=http://localhost:51006"]`), []string{"failure KubeProxy Node cloud0: its kube-proxy, a part of k3s, asks http://localhost:51006, where no wrapper"}},
	"a site that does not reach a Service": {adding(`
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: echo-1, namespace: shop, labels: {kubernetes.io/service-name: echo-svc}},
 addressType: IPv4, endpoints: [{addresses: [10.244.0.1], nodeName: edge0}]}`),
		[]string{"failure Reach Service shop/echo-svc: 1 of 2 sites have no ready endpoint: west"}},
	"a key that no node has": {adding(`
{apiVersion: v1, kind: Service, metadata: {name: typo, namespace: shop, annotations: {topologyKeys: '["zon1"]'}}}`),
		[]string{"failure Reach Service shop/typo: no node has the label zon1"}},
	"a wrapper with another's name on a node that is not ready": {all(ofWrapper("edge1", "--hostname=edge0"),
		altered("Node /edge1", `status: {conditions: [{type: Ready, status: "False"}]}`)), []string{"failure Wrapper Pod kube-system/application-grid-wrapper-edge1: on node edge1 it is given the name",
		"warning Daemon Pod kube-system/statefulset-grid-daemon-edge1: on node edge1 its state is that of the last contact"}},
	"a name of something else, which has no endpoints": {func(c *testCluster) {
		get[*corev1.Service](c, "Service shop/echo-svc").Spec.Type = corev1.ServiceTypeExternalName
		delete(get[*corev1.Node](c, "Node /edge1").Labels, "zone1")
	}, nil},
	"a name of something else, and no edge nodes": {func(c *testCluster) {
		get[*corev1.Service](c, "Service shop/echo-svc").Spec.Type = corev1.ServiceTypeExternalName
		for _, node := range []string{"edge0", "edge1"} {
			get[*corev1.Node](c, "Node /"+node).Labels = nil
			delete(c.objects, "Pod kube-system/kube-proxy-edge-"+node)
		}
	}, []string{"warning EdgeLabel Node: no node has the label"}},
	"a wrapper that kube-proxy does not ask, on a node of a site without the label": {all(
		func(c *testCluster) { get[*corev1.Node](c, "Node /cloud0").Labels = map[string]string{"zone1": "east"} },
		running("application-grid-wrapper", "cloud0")),
		[]string{"failure Site Node cloud0: it is in the site zone1=east and is not an edge node"}},
	"a wrapper that is not ready, on a node without the label": {func(c *testCluster) {
		delete(get[*corev1.Node](c, "Node /edge1").Labels, v1.LabelEdgeNode)
		get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-edge1").Status.Conditions = nil
	}, []string{"failure KubeProxy Pod kube-system/kube-proxy-edge-edge1: on node edge1 it asks http://localhost:51006"}},
	"a Service that prefers its own node": {adding(`
{apiVersion: v1, kind: Service, metadata: {name: cache, namespace: shop, annotations: {topologyKeys: '["kubernetes.io/hostname","*"]'}}}`),
		nil},
}

// networkDefects are of what has the wrapper's port, or kube-proxy's place.
var networkDefects = map[string]defect{
	"another takes the port": {adding(grabber),
		[]string{"failure Port Pod shop/grabber-1: on node edge0 it takes port 51006, which the wrapper needs",
			"warning Port DaemonSet shop/grabber: its pods take port 51006 of their nodes"}},
	"Cilium at the API server": {adding(cilium),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks the API server",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks the API server"}},
	"Cilium at the wrapper": {all(overTLS, adding(cilium+ciliumAt("https://127.0.0.1:51006"))), nil},
	"Cilium at the wrapper, in a cluster of kubeadm without kube-proxy": {
		all(overTLS, adding(cilium+ciliumAt("https://127.0.0.1:51006")), withoutAll("kube-proxy")), nil},
	"Cilium at the wrapper everywhere": {all(overTLS, adding(cilium+ciliumEverywhere)), nil},
	"Cilium over TLS at a wrapper without": {adding(cilium + ciliumEverywhere),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks https://localhost:51006, and the " +
			"wrapper serves http", "failure KubeProxyReplacement Node edge1"}},
	"Cilium past the wrapper": {adding(cilium + ciliumEverywhere + ciliumAt("https://192.0.2.1:6443")),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks https://192.0.2.1:6443, past",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks https://192.0.2.1:6443, past"}},
	"Cilium in a namespace of its own": {all(overTLS, adding(
		strings.ReplaceAll(cilium+ciliumAt("https://127.0.0.1:51006"), "kube-system", "cilium"))), nil},
	"Cilium in a namespace of its own, at the wrapper everywhere": {all(overTLS, adding(
		strings.ReplaceAll(cilium+ciliumEverywhere, "kube-system", "cilium"))), nil},
	"Cilium with a configuration in another namespace": {all(overTLS, adding(cilium+
		strings.ReplaceAll(ciliumAt("https://127.0.0.1:51006"), "kube-system", "cilium"))),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks the API server",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks the API server"}},
	"Cilium with a later configuration of the same nodes": {all(overTLS, adding(cilium+
		ciliumAt("https://127.0.0.1:51006")+strings.Replace(ciliumAt("https://192.0.2.1:6443"),
		"name: application-grid", "name: later", 1))),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks https://192.0.2.1:6443, past",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks https://192.0.2.1:6443, past"}},
	"Cilium with a configuration of no nodes": {all(overTLS, adding(cilium+strings.Replace(
		ciliumAt("https://127.0.0.1:51006"), "nodeSelector", "without", 1))),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks the API server",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks the API server"}},
	"Cilium with the wrapper's address in its environment": {all(overTLS, adding(ciliumWithAddress("localhost", "51006"))), nil},
	"Cilium with another address in its environment": {adding(ciliumWithAddress("10.0.0.1", "6443")),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks https://10.0.0.1:6443, past",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks https://10.0.0.1:6443, past"}},
	"Cilium with several API servers": {adding(cilium + ciliumAt("https://127.0.0.1:51006,https://192.0.2.1:6443")),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium has several API servers",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium has several API servers"}},
	"another takes the default port, which the wrappers left to it": {all(onPort("51016"), adding(grabber)), nil},
	"Cilium at the wrapper's own port": {
		all(overTLS, onPort("51016"), adding(cilium+ciliumAt("https://127.0.0.1:51016"))), nil},
	"Cilium at a port that the wrapper does not have": {
		all(overTLS, onPort("51016"), adding(cilium+ciliumAt("https://127.0.0.1:51006"))),
		[]string{"failure KubeProxyReplacement Node edge0: its agent of Cilium asks https://127.0.0.1:51006, past",
			"failure KubeProxyReplacement Node edge1: its agent of Cilium asks https://127.0.0.1:51006, past"}},
	"Calico's eBPF": {adding(calico("Iptables", "true")),
		[]string{"failure KubeProxyReplacement Node edge0: Calico's eBPF data plane takes kube-proxy's place there " +
			"(FelixConfiguration default, bpfEnabled)", "failure KubeProxyReplacement Node edge1: Calico's eBPF"}},
	"Calico's eBPF on one edge node": {adding(strings.Replace(calico("Iptables", "true"), "hostNetwork: true,",
		"hostNetwork: true, nodeSelector: {zone1: west},", 1)),
		[]string{"failure KubeProxyReplacement Node edge1: Calico's eBPF data plane takes kube-proxy's place there"}},
	"Calico's eBPF by the configuration of one node": {adding(calico("Iptables", "false") + `---
{apiVersion: crd.projectcalico.org/v1, kind: FelixConfiguration, metadata: {name: node.edge0}, spec: {bpfEnabled: true}}`),
		[]string{"failure KubeProxyReplacement Node edge0: Calico's eBPF data plane takes kube-proxy's place there " +
			"(FelixConfiguration node.edge0, bpfEnabled)"}},
	"Calico for pods only": {adding(calico("Iptables", "false")), nil},
	"Cilium on nodes of the cloud alone": {adding(strings.Replace(cilium, "hostNetwork: true,", "hostNetwork: true, "+
		"affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: "+
		"[{key: superedge.io/application-grid, operator: DoesNotExist}]}]}}},", 1)), nil},
	"Calico's eBPF on nodes of the cloud alone": {adding(strings.Replace(calico("Iptables", "true"), "hostNetwork: true,",
		"hostNetwork: true, nodeSelector: {cloud: only},", 1)), nil},
	"Antrea": {adding(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: antrea-agent, namespace: kube-system},
 spec: {template: {spec: {hostNetwork: true, containers: [{name: antrea-agent, image: "antrea/antrea-agent-ubuntu:v2.4.0"},
 {name: antrea-ovs, image: "antrea/antrea-agent-ubuntu:v2.4.0", command: [start_ovs]}]}}}}`),
		[]string{"unknown KubeProxyReplacement Node edge0: antrea-agent runs there, and may send pods' connections",
			"unknown KubeProxyReplacement Node edge1: antrea-agent runs there"}},
	"Kube-OVN on nodes of the cloud alone": {adding(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: kube-ovn-cni,
 namespace: kube-system}, spec: {template: {spec: {hostNetwork: true, nodeSelector: {cloud: only}, containers: [
 {name: cni-server, image: "docker.io/kubeovn/kube-ovn:v1.14.0"}]}}}}`), nil},
	"NodeLocal DNSCache": {
		adding(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: node-local-dns, namespace: kube-system},
 spec: {template: {spec: {hostNetwork: true, containers: [{name: node-cache,
 image: "registry.k8s.io/dns/k8s-dns-node-cache:1.26.0"}]}}}}`),
		[]string{"warning NodeLocalDNS DaemonSet kube-system/node-local-dns: NodeLocal DNSCache answers the pods"}},
	"CoreDNS under another name, as kubespray and RKE2 have it, which does not stay in the sites": {
		all(twoFleets, adding(nameService("coredns", ""))),
		[]string{"warning Names Service kube-system/coredns: it has no topologyKeys with rack",
			"warning Names Service kube-system/coredns: it has no topologyKeys with zone1"}},
	"CoreDNS that a fleet does not reach": {all(twoFleets, adding(nameService("kube-dns", `["zone1"]`))),
		[]string{"failure Names Service kube-system/kube-dns: none of its topologyKeys is on 1 edge node with the " +
			"label rack: no name resolves there"}},
	"CoreDNS that a fleet reaches through NodeLocal DNSCache": {
		all(twoFleets, adding(nameService("kube-dns", `["zone1"]`)+nameService("kube-dns-upstream", `["zone1", "rack"]`)),
			nodeLocal),
		[]string{"warning NodeLocalDNS"}},
	"CoreDNS that a fleet does not reach through NodeLocal DNSCache": {
		all(twoFleets, adding(nameService("kube-dns", `["zone1", "rack"]`)+nameService("kube-dns-upstream", `["zone1"]`)),
			nodeLocal),
		[]string{"warning NodeLocalDNS", "failure Names Service kube-system/kube-dns-upstream: none of its " +
			"topologyKeys is on 1 edge node with the label rack: no name resolves there"}},
}

// serviceGrid is a ServiceGrid, with a Service that has more metadata.
func serviceGrid(more string) string {
	return `{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: front, namespace: shop, generation: 1},
 spec: {gridUniqKey: zone1}, status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", reason: Ready}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: front-svc, namespace: shop, ` + more + `ownerReferences: [
 {apiVersion: superedge.io/v1, kind: ServiceGrid, name: front, uid: ServiceGridshopfront, controller: true}]},
 spec: {ports: [{port: 80}]}}`
}

// twoFleets have sites by labels of their own, and a CoreDNS on each edge node.
func twoFleets(c *testCluster) {
	get[*corev1.Node](c, "Node /edge1").Labels = map[string]string{v1.LabelEdgeNode: "true", v1.LabelKubeProxy: "edge",
		"rack": "one"}
	c.add(`{apiVersion: v1, kind: Service, metadata: {name: of-racks, namespace: shop,
 annotations: {topologyKeys: '["rack"]'}}, spec: {ports: [{port: 80}]}}`)
	for _, node := range []string{"edge0", "edge1"} {
		c.add(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: coredns-%s, namespace: kube-system,
 labels: {k8s-app: kube-dns}}, spec: {nodeName: %s}, status: {conditions: [{type: Ready, status: "True"}]}}`, node, node))
	}
}

// nameService is a Service of CoreDNS, with topology keys or without.
func nameService(name, keys string) string {
	annotations := ""
	if keys != "" {
		annotations = ", annotations: {topologyKeys: '" + keys + "'}"
	}
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: kube-system%s},
 spec: {selector: {k8s-app: kube-dns}, ports: [{port: 53, protocol: UDP}]}}
---
`, name, annotations)
}

// nodeLocal is NodeLocal DNSCache, as Kubernetes' addon has it, on both edge nodes.
func nodeLocal(c *testCluster) {
	c.add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: node-local-dns, namespace: kube-system},
 spec: {template: {spec: {hostNetwork: true, containers: [{name: node-cache,
 image: "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4", args: [-localip, "169.254.20.10,10.96.0.10", -conf,
 /etc/Corefile, -upstreamsvc, kube-dns-upstream]}]}}}}`)
	c.run("node-local-dns", "edge0")
	c.run("node-local-dns", "edge1")
}

// credentialDefects are of what ends.
var credentialDefects = map[string]defect{
	"a certificate of the API server that ends": {
		func(c *testCluster) { c.server.CertificateEnd = now.AddDate(0, 0, 12) },
		[]string{"warning Credentials API server: the serving certificate ends on 2026-12-03, in 12d"}},
	"a token that ended": {credentialOf(`token: ` + token(now.Add(-time.Hour))),
		[]string{
			`failure Credentials ConfigMap kube-system/own: the token in key kubeconfig.conf ended on ` +
				"2026-11-21"}},
	"a token that ends": {credentialOf(`token: ` + token(now.Add(5*time.Hour))),
		[]string{
			`warning Credentials ConfigMap kube-system/own: the token in key kubeconfig.conf ends on ` +
				"2026-11-21, in 5h"}},
	"a token that lasts": {credentialOf(`token: ` + token(now.AddDate(1, 0, 0))), nil},
	"a certificate that ended": {
		func(c *testCluster) {
			file, _ := tlstest.NewAuthority(c.T).IssueFiles(c.T, c.TempDir(), "wrapper")
			data, err := os.ReadFile(file)
			if err != nil {
				c.Fatal(err)
			}
			credentialOf(`client-certificate-data: ` + base64.StdEncoding.EncodeToString(data))(c)
			c.now = now.AddDate(50, 0, 0)
			c.server.CertificateEnd = c.now.AddDate(1, 0, 0)
		},
		[]string{`failure Credentials ConfigMap kube-system/own: the certificate "CN=wrapper" in key kubeconfig.conf ` +
			"ended on"}},
}
