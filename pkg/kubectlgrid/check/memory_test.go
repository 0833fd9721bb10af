package check

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
)

// TestMemory: what is kept of a node and its three pods is small, however large the objects are.
func TestMemory(t *testing.T) {
	const nodes, limit = 2000, 4 << 10
	large := strings.Repeat("x", 20<<10)
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"large": large},
			Labels: map[string]string{"superedge.io/application-grid": "true"}},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", OperatingSystem: "linux",
			Architecture: "arm64"}},
	}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Annotations: map[string]string{"large": large}},
		Spec: corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
			Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:v1.37.1", Command: []string{"kube-proxy",
				"--master=http://localhost:51006"},
		}}},
	}
	c := &Cluster{documents: map[Object]*document{}, carries: map[Object]bool{},
		proxies: map[string]*proxyConfig{}}
	before := liveheap.Size()
	for i := range nodes {
		node.Name = fmt.Sprintf("node-%d", i)
		data, err := node.Marshal() // as it comes from an API server
		if err != nil {
			t.Fatal(err)
		}
		var n corev1.Node
		if err := n.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, nodeOf(&n))
		for j := range 3 {
			pod.Name, pod.Spec.NodeName = fmt.Sprintf("pod-%d-%d", i, j), node.Name
			data, err := pod.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			var p corev1.Pod
			if err := p.Unmarshal(data); err != nil {
				t.Fatal(err)
			}
			c.pods = append(c.pods, c.podOf(t.Context(), &p, containersOf(&p.Spec)[0]))
		}
	}
	per := (liveheap.Size() - before) / nodes
	t.Logf("%d bytes for a node with three pods, of %d", per, 4*len(large))
	if len(c.pods) != 3*nodes || len(c.nodes) != nodes || per > limit {
		t.Errorf("%d nodes and %d pods take %d bytes each, more than %d", len(c.nodes), len(c.pods),
			per, limit)
	}
	runtime.KeepAlive(c)
}
