package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// defect is one of a cluster on which all else is well.
type defect struct {
	spoil func(c *testCluster)
	want  []string
}

// all are several defects in one.
func all(spoil ...func(c *testCluster)) func(c *testCluster) {
	return func(c *testCluster) {
		for _, one := range spoil {
			one(c)
		}
	}
}

// without is a cluster that lacks some objects.
func without(names ...string) func(c *testCluster) {
	return func(c *testCluster) {
		for _, name := range names {
			delete(c.objects, name)
		}
	}
}

// withoutAll is a cluster that lacks the objects whose name contains one of the texts.
func withoutAll(texts ...string) func(c *testCluster) {
	return func(c *testCluster) {
		maps.DeleteFunc(c.objects, func(name string, _ client.Object) bool {
			return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(name, text) })
		})
	}
}

// adding is a cluster with further objects, or with others of the same names.
func adding(objects string) func(c *testCluster) { return func(c *testCluster) { c.add(objects) } }

// altered is a cluster in which an object has other fields, but for those of lists.
func altered(name, fields string) func(c *testCluster) {
	return func(c *testCluster) {
		if err := yaml.Unmarshal([]byte(fields), get[client.Object](c, name)); err != nil {
			c.Fatal(err)
		}
	}
}

// labelled is a cluster with this value of the label of edge nodes on a node; the node has no labels if it is empty.
func labelled(node, value string) func(c *testCluster) {
	labels := "metadata: {labels: null}"
	if value != "" {
		labels = fmt.Sprintf("metadata: {labels: {superedge.io/application-grid: %q}}", value)
	}
	return altered("Node /"+node, labels)
}

// running is a cluster with a further pod of a DaemonSet.
func running(set, node string) func(c *testCluster) { return func(c *testCluster) { c.run(set, node) } }

// image is a cluster in which the first container of a pod or a workload has another image.
func image(name, image string) func(c *testCluster) {
	return func(c *testCluster) {
		switch o := c.objects[name].(type) {
		case *corev1.Pod:
			o.Spec.Containers[0].Image = image
		case *appsv1.DaemonSet:
			o.Spec.Template.Spec.Containers[0].Image = image
		case *appsv1.Deployment:
			o.Spec.Template.Spec.Containers[0].Image = image
		default:
			c.Fatalf("there is no %s with an image", name)
		}
	}
}

// kubelets is a cluster in which the kubelets of some nodes are of another version; none for all nodes.
func kubelets(version string, nodes ...string) func(c *testCluster) {
	if len(nodes) == 0 {
		nodes = []string{"cloud0", "edge0", "edge1"}
	}
	return func(c *testCluster) {
		for _, node := range nodes {
			get[*corev1.Node](c, "Node /"+node).Status.NodeInfo.KubeletVersion = version
		}
	}
}

// version is a cluster whose API server and kubelets are of another version.
func version(version string) func(c *testCluster) {
	return all(kubelets(version), func(c *testCluster) { c.server.Version = version })
}

// ipvs is a cluster whose kube-proxies use IPVS.
func ipvs(c *testCluster) {
	get[*corev1.ConfigMap](c, "ConfigMap kube-system/kube-proxy").Data["config.conf"] =
		"mode: ipvs\nclientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}"
}

// k3s is a cluster with a node of k3s', without pods of kube-proxy.
func k3s(name, args string) func(c *testCluster) {
	return all(kubelets("v1.37.1+k3s1", name), without("Pod kube-system/kube-proxy-edge-"+name), func(c *testCluster) {
		if args != "" {
			get[*corev1.Node](c, "Node /"+name).Annotations = map[string]string{"k3s.io/node-args": args}
		}
	})
}

// kubeconfigWith is a cluster in which the kubeconfig of edge nodes' kube-proxies has a text in place of another one.
func kubeconfigWith(old, text string) func(c *testCluster) {
	return func(c *testCluster) {
		m := get[*corev1.ConfigMap](c, "ConfigMap kube-system/kube-proxy-edge")
		m.Data["kubeconfig.conf"] = strings.ReplaceAll(m.Data["kubeconfig.conf"], old, text)
	}
}

// ofWrapper is a cluster in which the wrapper of a node has further arguments.
func ofWrapper(node string, args ...string) func(c *testCluster) {
	return func(c *testCluster) {
		p := get[*corev1.Pod](c, "Pod kube-system/application-grid-wrapper-"+node)
		p.Spec.Containers[0].Args = append(p.Spec.Containers[0].Args, args...)
	}
}

// overTLS is a cluster whose wrappers serve TLS, which their kube-proxies know.
func overTLS(c *testCluster) {
	all(kubeconfigWith("http:", "https:"), ofWrapper("edge0", "--insecure=false"), ofWrapper("edge1", "--insecure=false"))(c)
}

// onPort is a cluster whose wrappers have another port, which their kube-proxies know.
func onPort(port string) func(c *testCluster) {
	bind := "--bind-address=localhost:" + port
	return all(kubeconfigWith("51006", port), ofWrapper("edge0", bind), ofWrapper("edge1", bind))
}

// everywhere is a cluster with one kube-proxy that asks the wrapper, at a port, on every node.
func everywhere(port string) func(c *testCluster) {
	return func(c *testCluster) {
		for _, node := range []string{"edge0", "edge1"} {
			delete(c.objects, "Pod kube-system/kube-proxy-edge-"+node)
		}
		delete(c.objects, "DaemonSet kube-system/kube-proxy-edge")
		set := get[*appsv1.DaemonSet](c, "DaemonSet kube-system/kube-proxy")
		set.Spec.Template.Spec.Affinity = nil
		set.Spec.Template.Spec.Containers[0].Command = append(set.Spec.Template.Spec.Containers[0].Command,
			"--master=http://localhost:"+port)
		c.run("kube-proxy", "edge0")
		c.run("kube-proxy", "edge1")
	}
}

// credentialOf is a cluster whose wrapper has a kubeconfig with a credential.
func credentialOf(user string) func(c *testCluster) {
	return func(c *testCluster) {
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
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "own"}},
		}})
	}
}

// ofKubeProxy is a cluster in which the kube-proxy of edge0 has these arguments.
func ofKubeProxy(args ...string) func(c *testCluster) {
	return func(c *testCluster) {
		p := get[*corev1.Pod](c, "Pod kube-system/kube-proxy-edge-edge0")
		p.Labels = nil // those of its revision
		p.Spec.Containers[0].Command = append([]string{"kube-proxy"}, args...)
	}
}

// ofWrappers is a cluster whose wrappers have further arguments, in their DaemonSet, too.
func ofWrappers(args ...string) func(c *testCluster) {
	return func(c *testCluster) {
		spec := &get[*appsv1.DaemonSet](c, "DaemonSet kube-system/application-grid-wrapper").Spec.Template.Spec
		spec.Containers[0].Args = append(spec.Containers[0].Args, args...)
		all(ofWrapper("edge0", args...), ofWrapper("edge1", args...))(c)
	}
}

// crd is the definition of a kind of grid, of this version.
func crd(name, version string) string {
	return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
 metadata: {name: %s, annotations: {superedge.io/crd-version: %q}},
 status: {conditions: [{type: Established, status: "True"}]}}`, name, version)
}

// superEdgesController is a controller of SuperEdge's.
func superEdgesController(replicas int, tag string) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment,
 metadata: {name: application-grid-controller, namespace: edge-system}, spec: {replicas: %d,
 template: {spec: {containers: [{name: c, image: "superedge/application-grid-controller:%s"}]}}}}`, replicas, tag)
}
