package takeover

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const nodePool = "apps.openyurt.io/nodepool"

// pools are the nodes, and the NodePools that they are in.
var pools = map[string]string{"node0": "hangzhou", "node1": "hangzhou", "node2": "shanghai"}

// TestFromOpenYurt follows docs/migrate.md, there and back: a node with the label reaches what the annotation says,
// with the command line of the page's kube-proxy; one without goes on as it was.
func TestFromOpenYurt(t *testing.T) {
	var nodes []cluster.NodeSpec
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		nodes = append(nodes, cluster.NodeSpec{Name: name, Labels: map[string]string{nodePool: pools[name]}})
	}
	o := newOperator(t, "migrate.md", cluster.Options{Nodes: nodes})
	o.installKubeProxy()
	root := suite.Repository(o)
	images := map[string]*image{}
	var err error
	for _, name := range []string{"application-grid-controller", "application-grid-wrapper",
		"statefulset-grid-daemon"} {
		images[registry+name+":v1"], err = ourImage(filepath.Join(root, "build", name+".Dockerfile"),
			suite.Binary(t, name))
		o.Must(err)
	}
	// These pods have the network of their node, where the pods of the shop have the controller's port.
	controller := images[registry+"application-grid-controller:v1"]
	controller.entrypoint = append(controller.entrypoint, "--metrics-bind-address=127.0.0.1:0")
	kubelets := startKubelets(t, o.Cluster, images)

	o.Shell("kubectl create namespace " + shop)
	services := map[string]*corev1.Service{}
	for name, keys := range map[string]string{"pooled": "openyurt.io/nodepool", "zonal": "kubernetes.io/zone",
		"nodal": "kubernetes.io/hostname"} {
		o.Must(workload.In(o.client, shop).CreateDaemonSet(o.ctx, name))
		services[name], err = workload.In(o.client, shop).CreateService(o.ctx, name, workload.ServiceOptions{})
		o.Must(err)
		o.Shell("kubectl -n " + shop + " annotate service " + name + " openyurt.io/topologyKeys=" + keys)
	}
	reaches := func(node, service, want string) {
		t.Helper()
		o.ExpectReach(node+" reaches "+service, services[service], map[string]string{node: want})
	}
	all := "node0 node1 node2"
	for name := range services {
		reaches("node0", name, all)
	}

	// kwok runs no kube-proxy: the node's own is started as the pod's says.
	o.follow("### The steps from OpenYurt", map[string]func(){"kubectl label node node0": func() {
		o.runPodsKubeProxy(kubelets, "node0")
	}})
	reaches("node0", "pooled", "node0 node1")
	reaches("node0", "zonal", "node0 node1")
	reaches("node0", "nodal", "node0")
	reaches("node1", "pooled", all)
	view := o.Shell("kubectl grid view pooled -n " + shop + " || true") // node1 is no edge node
	for _, part := range []string{`topologyKeys ["apps.openyurt.io/nodepool"] (annotation openyurt.io/topologyKeys)`,
		"FAILURE  Node node1: it is in the site apps.openyurt.io/nodepool="} {
		if !strings.Contains(view, part) {
			t.Errorf("view has no %q:\n%s", part, view)
		}
	}

	node := o.Node("node0")
	direct := node.KubeProxy.Args()
	o.follow("## The way back to OpenYurt", nil)
	o.Eventually("the wrapper has gone from node0", func() error { return o.gone("app=application-grid-wrapper") })
	node.KubeProxy.SetArgs(withoutMaster(direct))
	o.Must(node.KubeProxy.Restart(o.ctx))
	for name := range services {
		reaches("node0", name, all)
	}
}

// withoutMaster is a command line as the embedded cluster's kube-proxies have it.
func withoutMaster(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "--master=") })
}

// installKubeProxy makes what kubeadm has of kube-proxy in the cluster, as YurtHub hands it on: without the kubeconfig
// in its configuration.
func (o *operator) installKubeProxy() {
	o.Helper()
	file := filepath.Join(o.Directory, "kube-proxy.yaml")
	o.Must(os.WriteFile(file, []byte(`{apiVersion: v1, kind: ServiceAccount, metadata: {name: kube-proxy, namespace: kube-system}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-proxy, namespace: kube-system}
data:
  config.conf: "{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration}"
  kubeconfig.conf: |
    apiVersion: v1
    kind: Config
    current-context: default
    clusters: [{name: default, cluster: {certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt, server: "https://10.0.0.1:6443"}}]
    contexts: [{name: default, context: {cluster: default, user: default}}]
    users: [{name: default, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template:
    metadata: {labels: {k8s-app: kube-proxy}}
    spec:
      serviceAccountName: kube-proxy
      hostNetwork: true
      tolerations: [{operator: Exists}]
      containers: [{name: kube-proxy, image: "registry.k8s.io/kube-proxy:v1.37.1", command: [/usr/local/bin/kube-proxy, --config=/var/lib/kube-proxy/config.conf]}]
`), 0o600))
	o.Shell("kubectl apply -f " + file)
}

// runPodsKubeProxy gives a node's kube-proxy the --master that the pod of kube-proxy-edge there has.
func (o *operator) runPodsKubeProxy(k *kubelets, node string) {
	o.Helper()
	var master string
	o.Eventually("kube-proxy-edge is on "+node, func() error {
		pods, err := k.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.ctx, metav1.ListOptions{
			LabelSelector: "app=kube-proxy-edge", FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		for _, arg := range pods.Items[0].Spec.Containers[0].Command {
			if strings.HasPrefix(arg, "--master=") {
				master = arg
			}
		}
		return nil
	})
	if master == "" {
		o.Fatal("the page's kube-proxy has no --master")
	}
	o.says(node, wrapperReady, "endpointslices: ok")
	n := o.Node(node)
	n.KubeProxy.SetArgs(append(n.KubeProxy.Args(), master))
	o.Must(n.KubeProxy.Restart(o.ctx))
}

// gone says why pods of kube-system with this label are still there.
func (o *operator) gone(selector string) error {
	pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.ctx, metav1.ListOptions{LabelSelector: selector})
	if err == nil && len(pods.Items) > 0 {
		err = fmt.Errorf("there are %d", len(pods.Items))
	}
	return err
}
