package columns

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// A label whose key begins with labelRolePrefix gives a node the role that follows in the key. The label labelRole
	// gives it the role that is its value. kubectl defines both; they are not part of an API.
	labelRolePrefix = "node-role.kubernetes.io/"
	labelRole       = "kubernetes.io/role"
)

var nodeColumns = []metav1.TableColumnDefinition{
	nameColumn(),
	text("Status", "The status of the node"),
	text("Roles", "The roles of the node"),
	ageColumn(),
	text("Version", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
	wideText("Internal-IP", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
	wideText("External-IP", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
	wideText("OS-Image", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
	wideText("Kernel-Version", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
	wideText("Container-Runtime", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
}

func nodeCells(n *corev1.Node, now time.Time) []any {
	info := n.Status.NodeInfo
	kernel := cmp.Or(info.KernelVersion, unknown)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Name, nodeStatus(n), cmp.Or(strings.Join(roles(n), ","), none), age(n.CreationTimestamp, now),
		info.KubeletVersion,
		addressOf(n, corev1.NodeInternalIP), addressOf(n, corev1.NodeExternalIP),
		cmp.Or(info.OSImage, unknown), kernel, cmp.Or(info.ContainerRuntimeVersion, unknown),
	}
}

func nodeStatus(n *corev1.Node) string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		status = "NotReady"
		if c.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// roles returns the node's roles, sorted, without duplicates.
func roles(n *corev1.Node) []string {
	var all []string
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, labelRolePrefix); ok && role != "" {
			all = append(all, role)
		} else if key == labelRole && value != "" {
			all = append(all, value)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func addressOf(n *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}
