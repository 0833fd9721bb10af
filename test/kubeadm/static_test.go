package kubeadm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/workload"
)

const manifestsDir = "/etc/kubernetes/manifests/"

// staticPods cuts the power of a node whose link is down, gives it the wrapper and kube-proxy-edge as static pods, and
// the snapshot that the site's wrapper has left, and switches the node on. They start, and kube-proxy writes the rules
// of the snapshot. Once more, with --cri, the wrapper learns from containerd that the node runs none of the Service's
// pods, and kube-proxy refuses connections. Then they are taken away again; the node is off in the end.
func (o *operator) staticPods(node *kubeadm.Node) {
	o.Helper()
	wrapper, proxy := o.staticWrapper(node), o.staticProxy(node)
	o.Must(node.PowerCut())
	o.start(node, wrapper, proxy)
	o.Must(node.PowerOn())
	o.Must(node.CutLink())
	hasRules := func(table string) func() error {
		return func() error {
			rules, err := node.Run(o.Context(), "iptables-save", "-t", table)
			if err == nil && !strings.Contains(rules, "-d "+o.Service.Spec.ClusterIP+"/32") {
				err = fmt.Errorf("the table %s has none; there run %v", table, o.processesOn(node.Name()))
			}
			return err
		}
	}
	o.Eventually("kube-proxy has written rules for the Service, without a link", hasRules("nat"))
	o.Must(node.PowerCut()) // without a link a kubelet ends no static pod
	askContainerd(wrapper)
	o.start(node, wrapper)
	o.Must(node.PowerOn())
	o.Must(node.CutLink())
	o.say(node, "/readyz", "cri: the upstream is away, and this node's pods are shown as the container runtime has them")
	// Without the API server a kubelet starts no pod but static ones.
	o.Eventually("kube-proxy refuses connections to the Service, none of whose pods runs", hasRules("filter"))
	o.end(node, wrapper, proxy)
	o.Must(node.PowerCut())
}

const (
	// answersAgain is how soon after all processes of a site are up the last connection may fail, observed how long
	// connections are tried after that.
	answersAgain, observed = 5 * time.Second, 10 * time.Second
	siteKeys               = "/etc/application-grid/site-exchange.keys"
)

// comesBackAlone makes a site of the nodes, whose wrappers exchange facts, all of static pods: wrapper, kube-proxy, and
// a Service's pods with addresses of the CNI. The site loses its link and all its power. When power is back, each node
// reaches the pods of all nodes at their new addresses, and goes on to while the link comes back. In the end the nodes
// are as before.
func (o *operator) comesBackAlone(nodes ...*kubeadm.Node) {
	o.Helper()
	manual := o.Reading("autonomy.md")
	manual.Shell(strings.TrimSuffix(manual.Commands("### Turning it on", "openssl rand"), "shred -u keys\n"))
	keys, err := os.ReadFile(filepath.Join(o.Directory, "keys"))
	o.Must(err)
	names, running := make([]string, len(nodes)), make([][]*corev1.Pod, len(nodes))
	for i, node := range nodes {
		names[i], running[i] = node.Name(), o.startStatic(node, string(keys))
	}
	service, err := workload.In(o.Client, metav1.NamespaceDefault).CreateService(o.Context(), "site",
		workload.ServiceOptions{TopologyKeys: []string{operate.SiteLabel}})
	o.Must(err)
	site := o.Asking(service)
	for _, node := range nodes {
		site.Expect(node.Name(), names...)
		o.Expect(node.Name(), names...)
		o.say(node, "/readyz", fmt.Sprintf("site-exchange: ok, %d of %[1]d neighbours take part", len(nodes)-1))
	}
	before := o.addresses(nodes)
	for _, node := range nodes {
		o.kept(node, service.Name)
		o.Pause(node.Name())
		site.Pause(node.Name())
	}
	o.Pause(shared.ControlPlane().Name())
	o.kubeletSays(nodes[0], service)

	o.recoverAlone(service, nodes, func(node *kubeadm.Node) error {
		if err := wrapperReady(o.Context(), node); err != nil {
			return err
		}
		if _, err := node.Run(o.Context(), "curl", "-sS", "--max-time", "1", "http://localhost:10256/livez"); err != nil {
			return err
		}
		return contains(o.processesOn(node.Name()), "echo")
	})

	for _, name := range names {
		site.Widen(name, names...)
	}
	o.Must(shared.ControlPlane().JoinLink())
	for _, node := range nodes {
		o.say(node, "/readyz", "cri: ok")
		o.say(node, "/readyz", "endpointslices: ok")
		o.say(node, "/metrics", "application_grid_wrapper_neighbours_corrected_pods 0\n")
	}
	after := o.addresses(nodes)
	o.Logf("the pods had the addresses %v before the power cut, and %v after it", before, after)
	for _, name := range names {
		if before[name] == after[name] {
			o.Errorf("the pod on %s has the address %s again, so this proves nothing", name, after[name])
		}
		site.Pause(name)
	}

	o.Must(o.Client.CoreV1().Services(metav1.NamespaceDefault).Delete(o.Context(), "site", metav1.DeleteOptions{}))
	for i, node := range nodes {
		o.endStatic(node, running[i])
	}
}

// startStatic makes a node one of the site "alone", of which everything is a static pod: the wrapper, with the keys of
// the exchange, kube-proxy, and a pod of the site's Service. It returns the pods.
func (o *operator) startStatic(node *kubeadm.Node, keys string) []*corev1.Pod {
	o.Helper()
	o.Must(node.WriteFile(siteKeys, keys))
	o.Must(node.Install(filepath.Join(o.Directory, "application-grid-wrapper.kubeconfig"), unitKubeconfig))
	o.Widen(node.Name(), operate.Everybody...)
	wrapper := o.staticWrapper(node)
	askContainerd(wrapper)
	mount(wrapper, "pods-api", "/var/lib/kubelet/pods-api") // as docs/autonomy.md says for the kubelet
	wrapper.Spec.Containers[0].Args = append(wrapper.Spec.Containers[0].Args, "--state-write-delay=1s",
		"--site-exchange=on", "--site-exchange-key-file="+siteKeys)
	mount(wrapper, "keys", siteKeys)
	echo := o.podOfDaemonSet(metav1.NamespaceDefault, "echo", node)
	echo.Name, echo.Labels = "site", workload.Labels("site")
	o.Shell("kubectl label node " + node.Name() + " --overwrite " + operate.SiteLabel +
		"=alone superedge.io/application-grid=static")
	o.Eventually("no DaemonSet's kube-proxy or wrapper is on "+node.Name(), func() error {
		for _, pod := range o.podsOn(node.Name()) {
			if strings.HasPrefix(pod, "kube-proxy-") || strings.HasPrefix(pod, "application-grid-wrapper-") {
				return fmt.Errorf("there is %s", pod)
			}
		}
		return nil
	})
	pods := []*corev1.Pod{wrapper, o.staticProxy(node), echo}
	o.start(node, pods...)
	return pods
}

// endStatic ends the static pods of a node.
func (o *operator) endStatic(node *kubeadm.Node, pods []*corev1.Pod) {
	o.Helper()
	o.end(node, pods...)
	o.Eventually("no static pod runs on "+node.Name(), func() error {
		names := o.processesOn(node.Name())
		if slices.Contains(names, "kube-proxy") || slices.Contains(names, "application-grid-wrapper") {
			return fmt.Errorf("there run %v", names)
		}
		return nil
	})
}

// recoverAlone takes the link and all power from the nodes, and gives power back. When all is up on each, after the
// time that it returns, they reach each other's pods as soon as is promised, and their wrappers exchange facts.
func (o *operator) recoverAlone(
	service *corev1.Service, nodes []*kubeadm.Node, up func(*kubeadm.Node) error,
) (took time.Duration) {
	o.Helper()
	o.Must(shared.ControlPlane().CutLink())
	for _, node := range nodes {
		o.Must(node.PowerCut())
	}
	for _, node := range nodes {
		o.Must(node.PowerOn())
	}
	begin := time.Now()
	for _, node := range nodes {
		o.Eventually("all is up on "+node.Name(), func() error { return up(node) })
	}
	took = time.Since(begin)
	o.Logf("all is up %.1f s after power came back", took.Seconds())
	report, err := workload.SiteRecovers(o.Context(), nodes, workload.URL(service), answersAgain, observed)
	o.Logf("all is up:\n%s", report)
	if err != nil {
		o.Error(err)
	}
	for _, node := range nodes {
		o.say(node, "/readyz", fmt.Sprintf("site-exchange: ok, %d of %[1]d neighbours take part; pods on ",
			len(nodes)-1))
	}
	return took
}

// kubeletSays cuts the link of a node, and changes what the readiness probe of its pod finds. The kubelet goes on
// probing, and what it says in its PodsAPI counts at the node's wrapper.
func (o *operator) kubeletSays(node *kubeadm.Node, service *corev1.Service) {
	o.Helper()
	pod, err := o.Client.CoreV1().Pods(service.Namespace).Get(o.Context(), "site-"+node.Name(), metav1.GetOptions{})
	o.Must(err)
	wrapper, err := kubernetes.NewForConfig(&rest.Config{Host: "http://localhost:51006", Dial: node.DialContext})
	o.Must(err)
	o.Must(node.CutLink())
	o.say(node, "/readyz", "cri: the upstream is away, and this node's pods are shown as the container runtime has them")
	for _, ready := range []bool{false, true} {
		begin := time.Now()
		o.Must(setProbe(o.Context(), pod, ready))
		o.Eventually(fmt.Sprintf("without a link the pod on %s is shown with ready=%v", node.Name(), ready), func() error {
			slices, err := wrapper.DiscoveryV1().EndpointSlices(service.Namespace).List(o.Context(),
				metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service.Name})
			if err == nil && (len(slices.Items) != 1 || shownReady(&slices.Items[0], pod.Status.PodIP) != ready) {
				err = fmt.Errorf("there are %v", slices.Items)
			}
			return err
		})
		o.Logf("without a link the kubelet's probe was followed %.1f s after it changed", time.Since(begin).Seconds())
	}
	o.Must(node.JoinLink())
	o.say(node, "/readyz", "cri: ok")
	o.say(node, "/readyz", "endpointslices: ok")
}

// addresses are those of the pods of the Service "site", by the nodes' names, when all of them are ready.
func (o *operator) addresses(nodes []*kubeadm.Node) map[string]string {
	o.Helper()
	found := map[string]string{}
	for _, node := range nodes {
		o.Eventually("the kubelet of "+node.Name()+" says that its pod is ready", func() error {
			pod, err := o.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(o.Context(), "site-"+node.Name(),
				metav1.GetOptions{})
			if err == nil && !kubeadm.Ready(pod) {
				err = fmt.Errorf("it is %s", pod.Status.Phase)
			}
			if err == nil {
				found[node.Name()] = pod.Status.PodIP
			}
			return err
		})
	}
	return found
}

// kept waits until the node's wrapper has written a snapshot that it has begun later than this. A change of this
// Service has it write.
func (o *operator) kept(node *kubeadm.Node, service string) {
	o.Helper()
	const metric = `application_grid_wrapper_snapshot_writes_total{result="ok"} `
	written := func() (count int, err error) {
		reply, err := node.Get(o.Context(), "http://127.0.0.1:51006/metrics")
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(reply.Body, "\n"+metric)
		rest, _, _ = strings.Cut(rest, "\n")
		return strconv.Atoi(rest)
	}
	for range 2 { // one may have been begun before
		before, err := written()
		o.Must(err)
		o.Shell("kubectl annotate --overwrite service " + service + " written=" + strconv.FormatInt(time.Now().UnixNano(), 10))
		o.Eventually("another snapshot is written on "+node.Name(), func() error {
			now, err := written()
			if err == nil && now == before {
				err = fmt.Errorf("there are %d", now)
			}
			return err
		})
	}
}

// say waits until a page of the node's wrapper has a part.
func (o *operator) say(node *kubeadm.Node, path, part string) {
	o.Helper()
	o.Answers(node, "http://127.0.0.1:51006"+path, 0, part)
}

// start gives a node static pods; end takes them away again.
func (o *operator) start(node *kubeadm.Node, pods ...*corev1.Pod) {
	o.Helper()
	for _, pod := range pods {
		data, err := json.Marshal(pod)
		o.Must(err)
		o.Must(node.WriteFile(manifestsDir+pod.Name+".json", string(data)))
	}
}

func (o *operator) end(node *kubeadm.Node, pods ...*corev1.Pod) {
	o.Helper()
	for _, pod := range pods {
		_, err := node.Run(o.Context(), "rm", manifestsDir+pod.Name+".json")
		o.Must(err)
	}
}

// staticWrapper is the DaemonSet's wrapper with files of the node: the kubeconfig and the state directory of the site.
func (o *operator) staticWrapper(node *kubeadm.Node) *corev1.Pod {
	o.Helper()
	wrapper := o.podOfDaemonSet(metav1.NamespaceSystem, "application-grid-wrapper", node)
	wrapper.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)} // the snapshot's owner
	files(wrapper, "kubeconfig", map[string]string{"kubeconfig.conf": unitKubeconfig})
	files(wrapper, "state", map[string]string{"": "/var/lib/application-grid-wrapper"})
	return wrapper
}

// staticProxy is kube-proxy-edge with files of the node, which it writes, for what comes from ConfigMaps otherwise.
func (o *operator) staticProxy(node *kubeadm.Node) *corev1.Pod {
	o.Helper()
	const configuration, kubeconfig = "/etc/static-config.conf", "/etc/static-kubeconfig.conf"
	for _, file := range []struct{ configMap, key, name string }{
		{"kube-proxy", "config.conf", configuration}, {"kube-proxy-edge", "kubeconfig.conf", kubeconfig},
	} {
		source, err := o.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(o.Context(), file.configMap,
			metav1.GetOptions{})
		o.Must(err)
		o.Must(node.WriteFile(file.name, source.Data[file.key]))
	}
	proxy := o.podOfDaemonSet(metav1.NamespaceSystem, "kube-proxy-edge", node)
	files(proxy, "kube-proxy", map[string]string{"config.conf": configuration, "kubeconfig.conf": kubeconfig})
	return proxy
}

// mount gives the pod's container a file or directory of the node, in the same place.
func mount(pod *corev1.Pod, name, path string) {
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts,
		corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
	})
}

// askContainerd lets the wrapper ask containerd, as docs/autonomy.md says for the DaemonSet.
func askContainerd(wrapper *corev1.Pod) {
	const directory = "/run/containerd"
	container := &wrapper.Spec.Containers[0]
	container.Args = append(container.Args, "--cri=unix://"+directory+"/containerd.sock")
	mount(wrapper, "cri", directory)
}

// podOfDaemonSet is what a DaemonSet runs on the node, as a static pod.
func (o *operator) podOfDaemonSet(namespace, name string, node *kubeadm.Node) *corev1.Pod {
	o.Helper()
	set, err := o.Client.AppsV1().DaemonSets(namespace).Get(o.Context(), name, metav1.GetOptions{})
	o.Must(err)
	spec := set.Spec.Template.Spec
	spec.ServiceAccountName, spec.DeprecatedServiceAccount, spec.AutomountServiceAccountToken = "", "", ptr.To(false)
	spec.NodeName, spec.NodeSelector, spec.Affinity = node.Name(), nil, nil
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: spec,
	}
}

// files gives the pod's container files of the node where it has a volume: by their names in that, or "" for a
// directory that takes the volume's place.
func files(pod *corev1.Pod, volume string, paths map[string]string) {
	container := &pod.Spec.Containers[0]
	var volumes []corev1.Volume
	for _, v := range pod.Spec.Volumes {
		if v.Name != volume {
			volumes = append(volumes, v)
		}
	}
	var mounts []corev1.VolumeMount
	for _, mount := range container.VolumeMounts {
		if mount.Name != volume {
			mounts = append(mounts, mount)
			continue
		}
		for name, path := range paths {
			source := volume + "-" + strings.ReplaceAll(name, ".", "-") + "file"
			volumes = append(volumes, corev1.Volume{Name: source,
				VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}})
			target := mount.MountPath
			if name != "" {
				target += "/" + name
			}
			mounts = append(mounts, corev1.VolumeMount{Name: source, MountPath: target, ReadOnly: mount.ReadOnly})
		}
	}
	pod.Spec.Volumes, container.VolumeMounts = volumes, mounts
}
