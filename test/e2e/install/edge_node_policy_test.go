package install

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
)

// TestEdgeNodePolicy: kube-apiserver refuses edge nodes, in words that say why, where something else than kubeadm's
// kube-proxy programs Services, and takes them where that is as it should be.
func TestEdgeNodePolicy(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, NoKwok: true, NoScheduler: true,
		Nodes: []cluster.NodeSpec{{Name: "edge1"}}})
	for _, file := range []string{
		"edge-node-policy/policy.yaml", "edge-node-policy/removal.yaml", "kubeadm/edge-nodes-policy.yaml",
	} {
		f.kubectl("apply", "-f", manifests+"/"+file, "--validate=strict")
	}
	nonCalico := func(value string) {
		f.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "-p",
			`{"spec": {"template": {"spec": {"nodeSelector": {"non-calico": `+value+`}}}}}`)
	}

	f.taken("there is no kube-proxy, and Nodes can be written all the same")
	f.Must(f.apply(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: kube-proxy, namespace: kube-system}, spec: {selector: {matchLabels: {k8s-app: kube-proxy}},
 template: {metadata: {labels: {k8s-app: kube-proxy}}, spec: {containers: [{name: kube-proxy, image: kube-proxy, command: [kube-proxy, --v=2]}]}}}}`))
	f.refused("the kube-proxy is not kubeadm's", "is not kubeadm's")
	f.kubectl("-n", "kube-system", "delete", "daemonset", "kube-proxy")
	f.writeKubeadmsKubeProxy("apply")
	f.taken("kubeadm's kube-proxy is there")

	nonCalico(`"true"`)
	f.refused("Calico has taken kube-proxy's place", "Calico's eBPF data plane")
	nonCalico(`null`)
	f.taken("it is back")

	f.Must(f.apply(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ciliumnodes.cilium.io}, spec: {group: cilium.io,
 scope: Cluster, names: {plural: ciliumnodes, singular: ciliumnode, kind: CiliumNode}, versions: [{name: v2, served: true, storage: true,
 schema: {openAPIV3Schema: {type: object}}}]}}`))
	f.refused("there is Cilium", "Cilium is installed")
	f.deleteCRDs("crd", "ciliumnodes.cilium.io")
	f.taken("Cilium is gone")

	// manifests/cilium has another policy in place of that one.
	f.Must(f.apply(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ciliumnodeconfigs.cilium.io},
 spec: {group: cilium.io, scope: Namespaced, names: {plural: ciliumnodeconfigs, singular: ciliumnodeconfig, kind: CiliumNodeConfig},
 versions: [{name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {
 nodeSelector: {type: object, x-kubernetes-preserve-unknown-fields: true}, defaults: {type: object, additionalProperties: {type: string}}}}}}}}]}}`))
	f.kubectl("apply", "-f", manifests+"/cilium/policy.yaml", "--validate=strict")
	f.Eventually("the CiliumNodeConfig can be applied", func() error {
		_, err := f.tryKubectl("", "apply", "-f", manifests+"/cilium/node-config.yaml")
		return err
	})
	f.taken("Cilium's agents ask the wrapper")
	urls := func(value string) {
		f.kubectl("-n", "kube-system", "patch", "ciliumnodeconfig", "application-grid", "--type=merge", "-p",
			`{"spec": {"defaults": {"k8s-api-server-urls": "`+value+`"}}}`)
	}
	for _, value := range []string{"https://127.0.0.1:51006,https://192.0.2.1:6443", "https://192.0.2.1:6443"} {
		urls(value)
		f.refused("Cilium's agents ask "+value, "as the only one")
	}
	urls("https://127.0.0.1:51006")
	f.taken("they ask the wrapper again")

	// What is an edge node already stays one, and can be written.
	f.Must(f.labelEdge1("true"))
	nonCalico(`"true"`)
	f.kubectl("label", "node", "edge1", "zone1=a")
	f.kubectl("-n", "kube-system", "delete", "daemonset", "kube-proxy")
	f.kubectl("label", "node", "edge1", "zone1=b", "--overwrite")
	f.unlabelEdge1()
	f.noWarnings("edge-nodes-without-cilium.superedge.io", "edge-nodes-with-kubeadms-kube-proxy.superedge.io")
}

// TestLabelAfterKubeProxy: kube-apiserver refuses to take the label from a node whose k3s leads kube-proxy to
// the wrapper.
func TestLabelAfterKubeProxy(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, NoKwok: true, NoScheduler: true,
		Nodes: []cluster.NodeSpec{{Name: "edge1"}}})
	f.kubectl("apply", "-f", manifests+"/edge-node-policy/k3s.yaml", "--validate=strict")
	started := func(annotation, args string) {
		f.kubectl("annotate", "--overwrite", "node", "edge1", annotation+"="+args)
	}
	f.Must(f.labelEdge1("true"))
	for _, annotation := range []string{"k3s.io/node-args", "rke2.io/node-args"} {
		for _, args := range []string{
			`["agent","--kube-proxy-arg","master=http://localhost:51006"]`,
			`["agent","--kube-proxy-arg=master=http://localhost:51006"]`,
			`["server","--kube-proxy-arg","v=4","--kube-proxy-arg","--kubeconfig=/etc/rancher/k3s/wrapper.kubeconfig"]`,
		} {
			started(annotation, args)
			f.Eventually("the label stays with "+args, func() error {
				_, err := f.tryKubectl("", "label", "node", "edge1", v1.LabelEdgeNode+"-")
				if err == nil {
					f.Must(f.labelEdge1("true"))
					return fmt.Errorf("it was removed")
				}
				if !strings.Contains(err.Error(), "node edge1: k3s or RKE2 was last started with a kube-proxy-arg") {
					return err
				}
				return nil
			})
			f.kubectl("label", "node", "edge1", v1.LabelEdgeNode+"=systemd", "--overwrite") // it stays an edge node
			f.kubectl("label", "node", "edge1", v1.LabelEdgeNode+"=true", "zone1=a", "--overwrite")
		}
		f.kubectl("annotate", "node", "edge1", annotation+"-")
	}
	for _, args := range []string{
		`["agent","--kube-proxy-arg","metrics-bind-address=0.0.0.0"]`,
		`["agent","--kubelet-arg","kubeconfig=/etc/other"]`, `[]`,
	} {
		started("k3s.io/node-args", args)
		f.unlabelEdge1()
		f.Must(f.labelEdge1("true"))
	}
	f.noWarnings("label-after-kube-proxy.superedge.io")
	started("k3s.io/node-args", `["agent","--kube-proxy-arg","master=http://localhost:51006"]`)
	f.kubectl("delete", "node", "edge1") // a node that never comes back
}

// labelEdge1 makes edge1 an edge node.
func (f *fixture) labelEdge1(value string) error {
	_, err := f.tryKubectl("", "label", "node", "edge1", v1.LabelEdgeNode+"="+value)
	return err
}

func (f *fixture) unlabelEdge1() {
	f.Helper()
	f.kubectl("label", "node", "edge1", v1.LabelEdgeNode+"-")
}

// refused waits until edge1 cannot become an edge node of any kind, for a reason that the message says.
func (f *fixture) refused(why, says string) {
	f.Helper()
	for _, value := range []string{"true", "systemd", "static"} {
		f.Eventually(value+" is refused: "+why, func() error {
			switch err := f.labelEdge1(value); {
			case err == nil:
				f.unlabelEdge1()
				return fmt.Errorf("it was taken")
			case !strings.Contains(err.Error(), says):
				return err
			}
			return nil
		})
	}
	f.kubectl("label", "node", "edge1", "zone1=a", "--overwrite") // everything else can be done
	f.kubectl("label", "node", "edge1", "zone1-")
}

// taken waits until edge1 can become an edge node, and makes it an ordinary one again.
func (f *fixture) taken(why string) {
	f.Helper()
	f.Eventually("it is taken: "+why, func() error { return f.labelEdge1("true") })
	f.kubectl("label", "node", "edge1", v1.LabelEdgeNode+"=systemd", "--overwrite")
	f.unlabelEdge1()
}
