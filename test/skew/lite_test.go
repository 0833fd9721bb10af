package skew

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// TestLite takes a node's lite-apiserver from the older program to today's and back. Each time it starts while the
// cloud is away, on what the other release has written, and the kubelet is answered what kube-apiserver has said last.
func TestLite(t *testing.T) {
	r := newReleases(t)
	const name = "west1"
	c, err := cluster.Start(t.Context(), cluster.Options{
		Components: suite.Binary(t, "components"), Wrapper: r.path(wrapper), Progress: os.Stdout, Kubelets: true,
		Nodes: []cluster.NodeSpec{{Name: name, LiteAPIServer: r.path(lite)}},
	})
	suite.Must(t, err)
	t.Cleanup(func() { suite.Must(t, c.Stop()) })
	test := suite.NewTest(t, c, 2*time.Minute, 100*time.Millisecond)
	node, client := test.Node(name), workload.In(c.Client(), metav1.NamespaceDefault)
	config, err := node.KubeletConfig()
	test.Must(err)
	kubelet, err := kubernetes.NewForConfig(config)
	test.Must(err)
	test.Must(client.CreateDeployment(t.Context(), "web", 1, nil))
	pods := func(of kubernetes.Interface) map[string]string {
		found := map[string]string{}
		list, err := of.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + name, ResourceVersion: "0"})
		if err != nil {
			found["error"] = err.Error()
			return found
		}
		for i := range list.Items {
			found[list.Items[i].Name] = string(list.Items[i].UID)
		}
		return found
	}
	for replicas, release := range []string{"", today, older, today} {
		if release != "" {
			r.use(t, lite, release)
			before := pods(c.Client())
			test.Must(node.CutLink(t.Context()))
			node.LiteAPIServer.Kill()
			test.Must(node.LiteAPIServer.Launch())
			test.Eventually(release+" answers what the other release has written", func() error {
				if got := pods(kubelet); !maps.Equal(got, before) {
					return fmt.Errorf("%v, not %v", got, before)
				}
				return nil
			})
			test.Must(node.RestoreLink(t.Context()))
			test.Must(node.LiteAPIServer.WaitReady(t.Context()))
		}
		test.Must(client.Scale(t.Context(), "web", int32(replicas+1)))
		test.Eventually("it is told of all pods, and has them on the disk", func() error {
			want, got := pods(c.Client()), pods(kubelet)
			if len(want) != replicas+1 || !maps.Equal(got, want) {
				return fmt.Errorf("the kubelet is answered %v, not %v", got, want)
			}
			return node.LiteHas(slices.Collect(maps.Keys(want))...)
		})
	}
}
