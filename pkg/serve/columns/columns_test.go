package columns

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// now is five minutes after everything was created.
var (
	created = metav1.Unix(1700000000, 0)
	now     = created.Add(5 * time.Minute)
)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: created}
}

func service(spec corev1.ServiceSpec, ingress ...corev1.LoadBalancerIngress) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: named("s"), Spec: spec,
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
	}
}

func slice(ports []discoveryv1.EndpointPort, addresses ...[]string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: named("s"), AddressType: discoveryv1.AddressTypeIPv4, Ports: ports}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: a})
	}
	return s
}

func port(number int32) discoveryv1.EndpointPort { return discoveryv1.EndpointPort{Port: &number} }

func endpoints(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: named("e"), Subsets: subsets}
}

func addresses(ips ...string) (list []corev1.EndpointAddress) {
	for _, ip := range ips {
		list = append(list, corev1.EndpointAddress{IP: ip})
	}
	return list
}

// TestCells has the cells as kube-apiserver 1.37 makes them; test/e2e/columns compares the two.
func TestCells(t *testing.T) {
	http := []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}
	tests := []struct {
		name   string
		object runtime.Object
		want   []any
	}{
		{"ClusterIP",
			service(corev1.ServiceSpec{
				Type: "ClusterIP", ClusterIPs: []string{"10.0.0.1", "fd00::1"}, Ports: http,
				Selector: map[string]string{"b": "2", "a": "1"},
			}),
			[]any{"s", "ClusterIP", "10.0.0.1", "<none>", "80/TCP", "5m", "a=1,b=2"}},
		{"headless without ports", service(corev1.ServiceSpec{Type: "ClusterIP", ClusterIPs: []string{"None"}}),
			[]any{"s", "ClusterIP", "None", "<none>", "<none>", "5m", "<none>"}},
		{"NodePort with external IPs",
			service(corev1.ServiceSpec{Type: "NodePort", ClusterIP: "10.0.0.1",
				ExternalIPs: []string{"1.1.1.1", "2.2.2.2"},
				Ports: []corev1.ServicePort{
					{Port: 80, NodePort: 30080, Protocol: "TCP"}, {Port: 53, Protocol: "UDP"},
				}}),
			[]any{"s", "NodePort", "10.0.0.1", "1.1.1.1,2.2.2.2", "80:30080/TCP,53/UDP", "5m", "<none>"}},
		{
			"LoadBalancer pending", service(corev1.ServiceSpec{Type: "LoadBalancer", Ports: http}),
			[]any{"s", "LoadBalancer", "<none>", "<pending>", "80/TCP", "5m", "<none>"},
		},
		{
			"LoadBalancer",
			service(corev1.ServiceSpec{Type: "LoadBalancer", Ports: http, ExternalIPs: []string{"9.9.9.9"}},
				corev1.LoadBalancerIngress{Hostname: "z.example"}, corev1.LoadBalancerIngress{IP: "3.3.3.3"},
				corev1.LoadBalancerIngress{IP: "3.3.3.3"}, corev1.LoadBalancerIngress{}),
			[]any{"s", "LoadBalancer", "<none>", "3.3.3.3,z.example,9.9.9.9", "80/TCP", "5m", "<none>"},
		},
		{
			"ExternalName", service(corev1.ServiceSpec{Type: "ExternalName", ExternalName: "x.example"}),
			[]any{"s", "ExternalName", "<none>", "x.example", "<none>", "5m", "<none>"},
		},
		{
			"of an unknown type", service(corev1.ServiceSpec{Type: "New"}),
			[]any{"s", "New", "<none>", "<unknown>", "<none>", "5m", "<none>"},
		},
		{"never created", &corev1.Service{}, []any{"", "", "<none>", "<unknown>", "<none>", "<unknown>", "<none>"}},

		{"slice",
			slice([]discoveryv1.EndpointPort{port(80), {Name: new("http")}, {}}, []string{"1.1.1.1"}, []string{
				"2.2.2.2",
			}),
			[]any{"s", "IPv4", "80,http,*", "1.1.1.1,2.2.2.2", "5m"}},
		{"slice with much",
			slice([]discoveryv1.EndpointPort{port(1), port(2), port(3), port(4)}, []string{"1.1.1.1", "2.2.2.2"},
				[]string{"3.3.3.3", "4.4.4.4", "5.5.5.5"}),
			[]any{"s", "IPv4", "1,2,3 + 1 more...", "1.1.1.1,2.2.2.2,3.3.3.3 + 2 more...", "5m"}},
		{"slice with nothing", slice(nil), []any{"s", "IPv4", "<unset>", "<unset>", "5m"}},

		{
			"endpoints",
			endpoints(corev1.EndpointSubset{
				Addresses: addresses("1.1.1.1", "::1"), Ports: []corev1.EndpointPort{{Port: 80}},
			}),
			[]any{"e", "1.1.1.1:80,[::1]:80", "5m"},
		},
		{"endpoints with much", endpoints(
			corev1.EndpointSubset{
				Addresses: addresses("1.1.1.1", "2.2.2.2"), Ports: []corev1.EndpointPort{{Port: 80}, {Port: 81}},
			}, corev1.EndpointSubset{Addresses: addresses("3.3.3.3")}),
			[]any{"e", "1.1.1.1:80,2.2.2.2:80,1.1.1.1:81 + 2 more...", "5m"}},
		{
			"endpoints, none ready",
			endpoints(corev1.EndpointSubset{
				NotReadyAddresses: addresses("1.1.1.1"), Ports: []corev1.EndpointPort{{Port: 80}},
			}),
			[]any{"e", "", "5m"},
		},
		{"no endpoints", endpoints(), []any{"e", "<none>", "5m"}},

		{"node", &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "n", CreationTimestamp: created,
				Labels: map[string]string{
					"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge", "node-role.kubernetes.io/": "x",
				},
			},
			Spec: corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{
					{Type: "MemoryPressure", Status: "True"}, {Type: "Ready", Status: "True"},
				},
				Addresses: []corev1.NodeAddress{
					{Type: "Hostname", Address: "n"}, {Type: "InternalIP", Address: "1.1.1.1"},
					{Type: "ExternalIP", Address: "2.2.2.2"},
				},
				NodeInfo: corev1.NodeSystemInfo{
					KubeletVersion: "v1.37.1", OSImage: "Debian", KernelVersion: "6.1",
					ContainerRuntimeVersion: "containerd://2", Architecture: "arm64",
				},
			},
		}, []any{
			"n", "Ready,SchedulingDisabled", "edge,worker", "5m", "v1.37.1", "1.1.1.1", "2.2.2.2", "Debian",
			"6.1 (arm64)", "containerd://2",
		}},
		{
			"node that says nothing", &corev1.Node{ObjectMeta: named("n")},
			[]any{"n", "Unknown", "<none>", "5m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"},
		},
		{"node that is not ready",
			&corev1.Node{
				ObjectMeta: named("n"),
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "Unknown"}}},
			},
			[]any{"n", "NotReady", "<none>", "5m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"}},
	}
	for _, test := range tests {
		got, err := Cells(test.object, now)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
		definitions, err := Definitions(test.object)
		if err != nil || len(definitions) != len(got) {
			t.Errorf("%s: %d cells for %d columns, %v", test.name, len(got), len(definitions), err)
		}
	}
}

func TestNoColumns(t *testing.T) {
	if got, err := Cells(&corev1.Pod{}, now); err == nil {
		t.Errorf("got %v", got)
	}
	if got, err := Definitions(&corev1.Pod{}); err == nil {
		t.Errorf("got %v", got)
	}
}
