package columns

import (
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/discovery"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"

	"github.com/application-grid/application-grid/pkg/serve/columns"
)

// TestAgainstKubernetes compares columns and cells with those of kube-apiserver's printers.
func TestAgainstKubernetes(t *testing.T) {
	generator := printers.NewTableGenerator().With(printersinternal.AddHandlers)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		for _, pair := range []struct{ object, internal runtime.Object }{
			{randomService(random), &core.Service{}},
			{randomSlice(random), &discovery.EndpointSlice{}},
			{randomEndpoints(random), &core.Endpoints{}},
			{randomNode(random), &core.Node{}},
		} {
			if err := legacyscheme.Scheme.Convert(pair.object, pair.internal, nil); err != nil {
				t.Fatal(err)
			}
			// The printers ask the clock. A timestamp that is hours old reads the same for all of the test.
			want, err := generator.GenerateTable(pair.internal, printers.GenerateOptions{Wide: true})
			if err != nil {
				t.Fatal(err)
			}
			got, err := columns.Cells(pair.object, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want.Rows[0].Cells) {
				t.Fatalf("object %d: got %q, want %q\n%+v", i, got, want.Rows[0].Cells, pair.object)
			}
			definitions, err := columns.Definitions(pair.object)
			if err != nil || !reflect.DeepEqual(definitions, want.ColumnDefinitions) {
				t.Fatalf("got the columns %+v, %v, want %+v", definitions, err, want.ColumnDefinitions)
			}
		}
	}
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// several are up to n values.
func several[T any](r *rand.Rand, n int, value func(i int) T) []T {
	var all []T
	for i := range r.IntN(n + 1) {
		all = append(all, value(i))
	}
	return all
}

func randomMeta(r *rand.Rand) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: "name-" + strconv.Itoa(r.IntN(100))}
	if r.IntN(4) > 0 {
		// 30 minutes off every boundary at which the text changes.
		age := time.Duration(9+r.IntN(1000))*24*time.Hour + 30*time.Minute
		m.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
	}
	return m
}

func randomIP(r *rand.Rand) string {
	return pick(r, "10.0.0.", "fd00::") + strconv.Itoa(r.IntN(255))
}

func randomService(r *rand.Rand) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: randomMeta(r),
		Spec: corev1.ServiceSpec{
			Type: pick(r, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
				corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName, "Other"),
			ClusterIPs:   several(r, 2, func(int) string { return pick(r, "None", randomIP(r)) }),
			ExternalIPs:  several(r, 2, func(int) string { return randomIP(r) }),
			ExternalName: pick(r, "", "name.example"),
			Ports: several(r, 4, func(int) corev1.ServicePort {
				return corev1.ServicePort{Port: r.Int32N(65535), NodePort: pick[int32](r, 0, 30000),
					Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP)}
			}),
			Selector: pick(r, nil, map[string]string{}, map[string]string{"b": "1", "a": ""}),
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: several(r, 4,
			func(int) corev1.LoadBalancerIngress {
				return corev1.LoadBalancerIngress{IP: pick(r, "", randomIP(r)),
					Hostname: pick(r, "", strings.Repeat("h", r.IntN(30))+".example")}
			})}},
	}
}

func randomSlice(r *rand.Rand) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  randomMeta(r),
		AddressType: pick(r, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN),
		Ports: several(r, 5, func(int) discoveryv1.EndpointPort {
			return discoveryv1.EndpointPort{Port: pick(r, nil, new(r.Int32N(65535))),
				Name: pick(r, nil, new("http"), new(""))}
		}),
		Endpoints: several(r, 5, func(int) discoveryv1.Endpoint {
			return discoveryv1.Endpoint{Addresses: several(r, 2, func(int) string { return randomIP(r) })}
		}),
	}
}

func randomEndpoints(r *rand.Rand) *corev1.Endpoints {
	address := func(int) corev1.EndpointAddress { return corev1.EndpointAddress{IP: randomIP(r)} }
	return &corev1.Endpoints{ObjectMeta: randomMeta(r), Subsets: several(r, 3, func(int) corev1.EndpointSubset {
		return corev1.EndpointSubset{
			Addresses: several(r, 4, address), NotReadyAddresses: several(r, 2, address),
			Ports: several(r, 2, func(int) corev1.EndpointPort { return corev1.EndpointPort{Port: r.Int32N(65535)} }),
		}
	})}
}

func randomNode(r *rand.Rand) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: randomMeta(r),
		Spec:       corev1.NodeSpec{Unschedulable: r.IntN(3) == 0},
		Status: corev1.NodeStatus{
			Conditions: several(r, 3, func(int) corev1.NodeCondition {
				return corev1.NodeCondition{Type: pick(r, corev1.NodeReady, corev1.NodeMemoryPressure),
					Status: pick(r, corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown)}
			}),
			Addresses: several(r, 4, func(int) corev1.NodeAddress {
				return corev1.NodeAddress{Type: pick(r, corev1.NodeInternalIP, corev1.NodeExternalIP,
					corev1.NodeHostName), Address: randomIP(r)}
			}),
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: pick(r, "", "v1.37.1"), OSImage: pick(r, "", "Debian"),
				KernelVersion:           pick(r, "", "6.1"),
				ContainerRuntimeVersion: pick(r, "", "containerd://2"), Architecture: pick(r, "", "arm64"),
			},
		},
	}
	n.Labels = pick(r, nil, map[string]string{"node-role.kubernetes.io/a": "", "kubernetes.io/role": "b",
		"node-role.kubernetes.io/": ""}, map[string]string{"kubernetes.io/role": ""})
	return n
}
