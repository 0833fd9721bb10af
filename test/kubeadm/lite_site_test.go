package kubeadm_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
)

const (
	// siteKustomization adds to edge/kustomization.yaml what docs/autonomy.md has in its blocks: %s.
	siteKustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../edge]\n%s"
	// askWrapper is the kubeconfig of a CoreDNS that asks the node's wrapper, of docs/coredns.md without TLS.
	askWrapper = "apiVersion: v1\nkind: Config\ncurrent-context: wrapper\n" +
		"contexts: [{name: wrapper, context: {cluster: wrapper}}]\n" +
		"clusters: [{name: wrapper, cluster: {server: \"http://127.0.0.1:51006\"}}]\n"
	// sitePatches put coredns-edge into the node's network, with that kubeconfig, and save time.
	sitePatches = `
  - target: {kind: DaemonSet, name: application-grid-wrapper}
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/-, value: --state-write-delay=1s}
  - target: {kind: DaemonSet, name: coredns-edge}
    patch: |
      - {op: add, path: /spec/template/spec/hostNetwork, value: true}
      - {op: add, path: /spec/template/spec/volumes/0/configMap/items/-, value: {key: wrapper.kubeconfig, path: wrapper.kubeconfig}}
`
	// statusesAreRight is how soon after the cloud's return kube-apiserver has the pods as they are.
	statusesAreRight = 60 * time.Second
)

// ordinarySite makes a site of the nodes, all of whose pods are the API's: the wrappers, which ask containerd and each
// other, kube-proxy, a CoreDNS that asks the wrapper, a Service's pods and a StatefulSetGrid's. Each kubelet asks
// lite-apiserver, until what it returns is called.
func (o *operator) ordinarySite(nodes ...*kubeadm.Node) (end func()) {
	o.Helper()
	o.Shell("cd manifests/coredns-edge\n" +
		"sed -i 's|ip6.arpa {|&\\n       kubeconfig /etc/coredns/wrapper.kubeconfig|' Corefile\n" +
		"sed -i 's|\\[Corefile\\]|[Corefile, wrapper.kubeconfig]|' kustomization.yaml\n" +
		"cat >wrapper.kubeconfig <<'END'\n" + askWrapper + "END")
	manual := o.Reading("autonomy.md")
	site := manual.YAML("### Turning it on", "site-exchange") +
		strings.TrimPrefix(manual.YAML("## This node's pods", "--cri="), "patches:\n") + sitePatches[1:]
	o.Must(os.MkdirAll(filepath.Join(o.Directory, "site"), 0o755))
	o.Must(os.WriteFile(filepath.Join(o.Directory, "site", "kustomization.yaml"),
		fmt.Appendf(nil, siteKustomization, site), 0o600))
	ends := make([]func(), 0, len(nodes))
	for _, node := range nodes {
		ends = append(ends, o.useLite(node))
		o.Shell("kubectl label node " + node.Name() + " --overwrite " + operate.SiteLabel + "=site")
	}
	o.Shell("kubectl apply -k site\nfor i in application-grid-wrapper coredns-edge\n" +
		"do kubectl -n kube-system rollout status daemonset $i --timeout=2m\ndone")
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// ordinaryPodsComeBackAlone makes a site as ordinarySite does, which loses its link and all its power. When power is
// back, all of its pods get ready by themselves; its Services and names answer from each node. When the link is back,
// nothing restarts, and kube-apiserver learns how the pods are.
func (o *operator) ordinaryPodsComeBackAlone(nodes ...*kubeadm.Node) {
	o.Helper()
	defer o.ordinarySite(nodes...)()
	names := make([]string, 0, len(nodes))
	for _, node := range nodes {
		names = append(names, node.Name())
	}
	dns := o.dnsAddress()
	for _, node := range nodes {
		o.Expect(node.Name(), names...)
		o.say(node, "/readyz", fmt.Sprintf("site-exchange: ok, %d of %[1]d neighbours take part", len(nodes)-1))
		o.namesAnswer(node, dns)
	}
	before := map[string]map[string]string{}
	pods := map[string]map[string]string{}
	for _, node := range nodes {
		o.Pause(node.Name())
		o.kept(node, o.Service.Name)
		pods[node.Name()] = o.readyPods(node)
		before[node.Name()] = map[string]string{"files": o.volumesOf(node)}
	}
	o.Pause(shared.ControlPlane().Name())

	took := o.recoverAlone(o.Service, nodes, func(node *kubeadm.Node) error { // as its kubelet says
		return o.kubeletHas(node, pods[node.Name()])
	})
	if took > startsAgain {
		o.Errorf("all pods were ready %s after power came back", took)
	}
	for _, node := range nodes {
		o.namesAnswer(node, dns)
		if now := o.volumesOf(node); now != before[node.Name()]["files"] {
			o.Errorf("the files of the pods of %s are\n%s, and were\n%s", node.Name(), now, before[node.Name()]["files"])
		}
		before[node.Name()]["processes"] = o.processesOfContainers(node)
	}
	o.cloudReturns(nodes, before, dns)
}

// cloudReturns joins the link. No connection fails, no process of a node but those that the kubelet starts for a moment
// ends, and kube-apiserver says in time how the pods are.
func (o *operator) cloudReturns(nodes []*kubeadm.Node, before map[string]map[string]string, dns string) {
	o.Helper()
	names := slices.Sorted(maps.Keys(before))
	for _, name := range names {
		o.Widen(name, names...)
	}
	o.Must(shared.ControlPlane().JoinLink())
	begin := time.Now()
	for _, node := range nodes {
		o.Eventually("kube-apiserver knows how the pods of "+node.Name()+" are", func() error {
			alone, err := o.podsOfKubelet(node)
			if err != nil {
				return err
			}
			return o.cloudHas(node, alone)
		})
	}
	if took := time.Since(begin); took > statusesAreRight {
		o.Errorf("kube-apiserver knew how the pods are %s after the link was back", took)
	} else {
		o.Logf("kube-apiserver knows how the pods are %.1f s after the link is back", took.Seconds())
	}
	for _, node := range nodes {
		o.say(node, "/readyz", "endpointslices: ok")
		o.namesAnswer(node, dns)
		o.Pause(node.Name())
		if now := o.processesOfContainers(node); now != before[node.Name()]["processes"] {
			o.Errorf("with the return of the cloud something has restarted on %s:\n%s\nand before\n%s", node.Name(), now,
				before[node.Name()]["processes"])
		}
	}
}

// namesAnswer waits until the CoreDNS of the site, at this address, answers, from the node, the name of the Service,
// and that of the StatefulSetGrid's pod with an address where this pod answers.
func (o *operator) namesAnswer(node *kubeadm.Node, dns string) {
	o.Helper()
	resolver := resolver(node, dns)
	o.Eventually("names of the site are answered on "+node.Name(), func() error {
		ctx, cancel := context.WithTimeout(o.Context(), 5*time.Second)
		defer cancel()
		service, err := resolver.LookupHost(ctx, "echo.default.svc.cluster.local.")
		if err == nil && !slices.Equal(service, []string{o.Service.Spec.ClusterIP}) {
			err = fmt.Errorf("the Service is %v", service)
		}
		if err != nil {
			return err
		}
		pod, err := resolver.LookupHost(ctx, "db-0.db-svc.default.svc.cluster.local.")
		if err != nil {
			return err
		}
		reply, err := node.Get(ctx, "http://"+net.JoinHostPort(pod[0], "8080")+"/hostname")
		if err == nil && reply.Body != "db-site-0" {
			err = fmt.Errorf("at %s answers %q", pod[0], reply.Body)
		}
		return err
	})
}

// readyPods are the pods that kube-apiserver has of a node, their names by UIDs, when all of them are ready.
func (o *operator) readyPods(node *kubeadm.Node) map[string]string {
	o.Helper()
	found := map[string]string{}
	o.Eventually("all pods of "+node.Name()+" are ready", func() error {
		list, err := o.listPods("", node.Name())
		if err != nil {
			return err
		}
		clear(found)
		for _, pod := range list {
			if !kubeadm.Ready(&pod) {
				return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
			}
			found[string(pod.UID)] = pod.Name
		}
		return nil
	})
	return found
}

// podsOfKubelet are the pods that the node's kubelet says it runs (its PodsAPI), by UID.
func (o *operator) podsOfKubelet(node *kubeadm.Node) (map[string]*corev1.Pod, error) {
	connection, err := grpc.NewClient("unix://"+filepath.Join(shared.Dir(), node.Name(),
		"var/lib/kubelet/pods-api/pods-api.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	list, err := v1alpha1.NewPodsClient(connection).ListPods(o.Context(), &v1alpha1.ListPodsRequest{})
	if err != nil {
		return nil, err
	}
	found := map[string]*corev1.Pod{}
	for _, encoded := range list.GetPods() {
		pod := &corev1.Pod{}
		if err := pod.Unmarshal(encoded); err != nil {
			return nil, err
		}
		found[string(pod.UID)] = pod
	}
	return found, nil
}

// kubeletHas is nil if the node's kubelet says that exactly these pods are there, and ready.
func (o *operator) kubeletHas(node *kubeadm.Node, want map[string]string) error {
	pods, err := o.podsOfKubelet(node)
	if err != nil {
		return err
	}
	got := map[string]string{}
	for uid, pod := range pods {
		if kubeadm.Ready(pod) {
			got[uid] = pod.Name
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("of %v there are ready %v", slices.Sorted(maps.Values(want)), slices.Sorted(maps.Values(got)))
	}
	return nil
}

// cloudHas is nil if kube-apiserver has these pods of a ready node as they are here.
func (o *operator) cloudHas(node *kubeadm.Node, alone map[string]*corev1.Pod) error {
	if err := shared.NodeReady(o.Context(), node.Name()); err != nil {
		return err
	}
	list, err := o.listPods("", node.Name())
	if err != nil {
		return err
	}
	for _, pod := range list {
		here := alone[string(pod.UID)]
		if here == nil || !kubeadm.Ready(&pod) || pod.Status.PodIP != here.Status.PodIP ||
			pod.Status.ContainerStatuses[0].ContainerID != here.Status.ContainerStatuses[0].ContainerID {
			return fmt.Errorf("%s is said to be %s at %s", pod.Name, pod.Status.Phase, pod.Status.PodIP)
		}
	}
	return nil
}

// volumesOf are the checksums of what pods on the node are given of ConfigMaps and Secrets.
func (o *operator) volumesOf(node *kubeadm.Node) string {
	o.Helper()
	output, err := node.Run(o.Context(), "sh", "-ec", "cd /var/lib/kubelet/pods; find -L . -type f "+
		"-regex '.*/volumes/kubernetes.io~\\(configmap\\|secret\\|projected\\)/.*' -not -path '*/..*' -not -name token "+
		"-exec sha256sum {} + | sort -k2")
	o.Must(err)
	return output
}

// processesOfContainers are the numbers of the processes of the node's containers, by the container, and the kubelet's.
func (o *operator) processesOfContainers(node *kubeadm.Node) string {
	o.Helper()
	output, err := node.Run(o.Context(), "sh", "-ec",
		"ctr -n k8s.io tasks ls 2>/dev/null | awk '{print $1, $2}' | sort; pgrep -x kubelet; pgrep -x lite-apiserver")
	o.Must(err)
	return output
}
