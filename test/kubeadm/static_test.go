package kubeadm_test

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/kubeadm"
)

const manifestsDir = "/etc/kubernetes/manifests/"

// staticPods cuts the power of a node whose link is down, gives it the wrapper and kube-proxy-edge as static pods,
// which have files for what comes from the API server otherwise, and the snapshot that the unit's wrapper has left, and
// switches the node on. They start, and kube-proxy writes the rules of the snapshot. Once more, with --cri, the wrapper
// learns from containerd that the node runs none of the Service's pods, and kube-proxy refuses connections. Then they
// are taken away again; the node is off in the end.
func (s *sites) staticPods(node *kubeadm.Node) {
	s.Helper()
	wrapper, proxy := s.podOfDaemonSet("application-grid-wrapper", node), s.podOfDaemonSet("kube-proxy-edge", node)
	configuration, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(s.Context(), "kube-proxy",
		metav1.GetOptions{})
	s.must(err)
	server, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(s.Context(), "kube-proxy-edge",
		metav1.GetOptions{})
	s.must(err)
	s.must(node.PowerCut())
	s.must(node.WriteFile("/etc/static-config.conf", configuration.Data["config.conf"]))
	s.must(node.WriteFile("/etc/static-kubeconfig.conf", server.Data["kubeconfig.conf"]))
	wrapper.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0)} // the snapshot's owner
	files(wrapper, "kubeconfig", map[string]string{"kubeconfig.conf": unitKubeconfig})
	files(wrapper, "state", map[string]string{"": "/var/lib/application-grid-wrapper"})
	files(proxy, "kube-proxy", map[string]string{"config.conf": "/etc/static-config.conf",
		"kubeconfig.conf": "/etc/static-kubeconfig.conf"})
	write := func(pod *corev1.Pod) {
		data, err := json.Marshal(pod)
		s.must(err)
		s.must(node.WriteFile(manifestsDir+pod.Name+".json", string(data)))
	}
	write(wrapper)
	write(proxy)
	s.must(node.PowerOn())
	s.must(node.CutLink())
	hasRules := func(table string) func() error {
		return func() error {
			rules, err := node.Run(s.Context(), "iptables-save", "-t", table)
			if err == nil && !strings.Contains(rules, "-d "+s.service.Spec.ClusterIP+"/32") {
				err = fmt.Errorf("the table %s has none; there run %v", table, s.processesOn(node.Name()))
			}
			return err
		}
	}
	s.eventually("kube-proxy has written rules for the Service, without a link", hasRules("nat"))
	s.must(node.PowerCut()) // without a link a kubelet ends no static pod
	askContainerd(wrapper)
	write(wrapper)
	s.must(node.PowerOn())
	s.must(node.CutLink())
	s.eventually("the wrapper has containerd's word on the node's pods", func() error {
		reply, err := node.Get(s.Context(), "http://127.0.0.1:51006/readyz")
		if err != nil {
			return err
		}
		const says = "cri: the upstream is away, and this node's pods are shown as the container runtime has them"
		if !strings.Contains(reply.Body, says) {
			return fmt.Errorf("/readyz says %s", reply.Body)
		}
		return nil
	})
	// Without the API server a kubelet starts no pod but static ones.
	s.eventually("kube-proxy refuses connections to the Service, none of whose pods runs", hasRules("filter"))
	_, err = node.Run(s.Context(), "rm", manifestsDir+wrapper.Name+".json", manifestsDir+proxy.Name+".json")
	s.must(err)
	s.must(node.PowerCut())
}

// askContainerd lets the wrapper ask containerd, as docs/autonomy.md says for the DaemonSet.
func askContainerd(wrapper *corev1.Pod) {
	const directory = "/run/containerd"
	container := &wrapper.Spec.Containers[0]
	container.Args = append(container.Args, "--cri=unix://"+directory+"/containerd.sock")
	container.VolumeMounts = append(container.VolumeMounts,
		corev1.VolumeMount{Name: "cri", MountPath: directory, ReadOnly: true})
	wrapper.Spec.Volumes = append(wrapper.Spec.Volumes, corev1.Volume{
		Name: "cri", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory}},
	})
}

// podOfDaemonSet is what a DaemonSet of kube-system runs on the node, as a static pod.
func (o *operator) podOfDaemonSet(name string, node *kubeadm.Node) *corev1.Pod {
	o.Helper()
	set, err := o.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Get(o.Context(), name, metav1.GetOptions{})
	o.must(err)
	spec := set.Spec.Template.Spec
	spec.ServiceAccountName, spec.DeprecatedServiceAccount, spec.AutomountServiceAccountToken = "", "", ptr.To(false)
	spec.NodeName, spec.NodeSelector, spec.Affinity = node.Name(), nil, nil
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem}, Spec: spec,
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
