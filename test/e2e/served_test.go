package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// through is a client of a node's wrapper, in the name of a role; "" for none.
func (f *fixture) through(node string, role cluster.Role) kubernetes.Interface {
	f.Helper()
	n := f.Node(node)
	config := n.WrapperConfig(role)
	if role == "" {
		config.BearerToken = ""
	}
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
	return client
}

// TestKubernetesIsTheLocalAPIServer: annotated, default/kubernetes leads to this node's API server, for which an
// echo pod stands in, in the rules as in both kinds of endpoints.
func TestKubernetesIsTheLocalAPIServer(t *testing.T) {
	f := newFixture(t)
	f.Must(workload.In(f.client, f.namespace).CreateDaemonSet(f.ctx, "local"))
	var local *corev1.Pod
	f.Eventually("an echo pod has an address", func() error {
		for _, name := range f.podsOn("local", "a1") {
			pod, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, name, metav1.GetOptions{})
			if err == nil && pod.Status.PodIP != "" {
				local = pod
				return nil
			}
		}
		return fmt.Errorf("none yet")
	})
	annotate := func(annotations string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":%s}}`, annotations)
		_, err := f.client.CoreV1().Endpoints("default").Patch(context.Background(), "kubernetes", types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		f.Must(err)
	}
	const remove = `{"superedge.io/local-endpoint":null,"superedge.io/local-port":null}`
	t.Cleanup(func() { annotate(remove) })
	service, err := f.client.CoreV1().Services("default").Get(f.ctx, "kubernetes", metav1.GetOptions{})
	f.Must(err)
	url := "http://" + net.JoinHostPort(service.Spec.ClusterIP, "443") + "/"

	valid := fmt.Sprintf(`{"superedge.io/local-endpoint":%q,"superedge.io/local-port":"8080"}`, local.Status.PodIP)
	// answered waits until the Service is answered by the echo pod from every node, or by none.
	answered := func(what, pod string) {
		t.Helper()
		f.eachNode(func(node *cluster.Node) error {
			f.Eventually(what, func() error {
				// kube-apiserver answers plain HTTP too, but is no echo.
				if answer, _ := workload.Ask(f.ctx, node, url); answer.Pod != pod {
					return fmt.Errorf("answered by %+v", answer)
				}
				return nil
			})
			return nil
		})
	}

	annotate(valid)
	answered("default/kubernetes leads to the local API server", local.Name)
	f.eachNode(func(node *cluster.Node) error {
		client := f.through(node.Spec.Name, cluster.RoleKubeProxy)
		found, err := client.DiscoveryV1().EndpointSlices("default").List(f.ctx,
			metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"})
		if err != nil {
			return err
		}
		for _, s := range found.Items {
			if len(s.Endpoints) != 1 || s.Endpoints[0].Addresses[0] != local.Status.PodIP || len(s.Ports) != 1 ||
				*s.Ports[0].Port != 8080 || *s.Ports[0].Name != "https" {
				return fmt.Errorf("the slice is %v %v", s.Endpoints, s.Ports)
			}
		}
		endpoints, err := client.CoreV1().Endpoints("default").Get(f.ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(endpoints.Subsets) != 1 || endpoints.Subsets[0].Addresses[0].IP != local.Status.PodIP ||
			endpoints.Subsets[0].Ports[0].Port != 8080 {
			return fmt.Errorf("the Endpoints are %v", endpoints.Subsets)
		}
		return nil
	})
	annotate(`{"superedge.io/local-endpoint":"not-an-address"}`)
	answered("with an invalid annotation it is as the API server says", "")
	annotate(valid)
	answered("with a valid one it is local again", local.Name)
	annotate(remove)
	answered("without annotations it is as the API server says", "")
}

// TestKubeProxyReports: the events of a real kube-proxy arrive through the wrapper: that it starts, about its Node,
// and that a health check's port is taken, about a Service.
func TestKubeProxyReports(t *testing.T) {
	f := newFixture(t)
	node := f.Node("a1")
	reported := func(kind, namespace, name, reason string) {
		t.Helper()
		f.Eventually("kube-proxy's "+reason+" about "+kind+" "+name, func() error {
			list, err := f.client.EventsV1().Events(namespace).List(f.ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range list.Items {
				if e.ReportingController == "kube-proxy" && e.Regarding.Kind == kind && e.Regarding.Name == name &&
					e.Reason == reason {
					return nil
				}
			}
			return fmt.Errorf("not among %d events", len(list.Items))
		})
	}
	reported("Node", "default", "a1", "Starting")

	// The port of its health check is taken, so kube-proxy cannot listen on it.
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "taken"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort: 31999,
			Selector:            map[string]string{"app": "none"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	listener, err := node.Listen(f.ctx, ":31999")
	f.Must(err)
	t.Cleanup(func() { _ = listener.Close() })
	_, err = f.client.CoreV1().Services(f.namespace).Create(f.ctx, service, metav1.CreateOptions{})
	f.Must(err)
	reported("Service", f.namespace, "taken", "FailedToStartServiceHealthcheck")
}

func sorted(names []string) string {
	slices.Sort(names)
	return strings.Join(names, " ")
}
