package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/workload"
)

// adminPort is the second port of Services here. Pods listen on one.
const adminPort = workload.Port + 1

// TestEachPortHasItsKey: of several keys each port of a Service follows the first one that has an endpoint for it, and
// endpoints that are ending are used where none is ready. The kube-proxies here are in nftables and in iptables mode.
func TestEachPortHasItsKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Must(workload.In(f.client, f.namespace).CreateDaemonSet(f.ctx, "echo"))
	addresses := f.addresses("echo")
	everyone := func(ofA, ofB string) reach { return reach{"a1": ofA, "a2": ofA, "b1": ofB, "b2": ofB} }
	for name, test := range map[string]struct {
		keys []string
		// web and admin are the nodes of the endpoints of each port; a name that ends with ! is ending.
		web, admin         string
		wantWeb, wantAdmin reach
	}{
		"each port by itself": {[]string{siteLabel, "*"}, "a1 b1", "b1", everyone("a1", "b1"), everyone("b1", "b1")},
		"no port of one site": {[]string{siteLabel}, "a1 b1", "b1", everyone("a1", "b1"), everyone("", "b1")},
		"the only one of the site ends": {
			[]string{corev1.LabelHostname, siteLabel}, "a1!", "", everyone("a1", ""), everyone("", ""),
		},
		"all end":             {[]string{siteLabel, "*"}, "a1! b1!", "", everyone("a1", "b1"), everyone("", "")},
		"ready before ending": {[]string{siteLabel, "*"}, "a1! b1", "", everyone("b1", "b1"), everyone("", "")},
		"ending for one port": {[]string{siteLabel, "*"}, "a1 b1", "a1! b2", everyone("a1", "b1"), everyone("b2", "b2")},
		"the node before its site": {
			[]string{corev1.LabelHostname, siteLabel}, "a1 a2 b1", "b2",
			reach{"a1": "a1", "a2": "a2", "b1": "b1", "b2": "b1"}, everyone("", "b2"),
		},
	} {
		t.Run(name, func(*testing.T) {
			service := f.withoutSelector(test.keys)
			f.listPort(service, "web", test.web, addresses)
			f.listPort(service, "admin", test.admin, addresses)
			for port, want := range map[int]reach{workload.Port: test.wantWeb, adminPort: test.wantAdmin} {
				for node, reached := range want {
					f.Eventually(fmt.Sprintf("%s reaches %q on port %d", node, reached, port), func() error {
						return f.reaches(node, service, port, reached)
					})
				}
			}
		})
	}
}

// addresses are those of the workload's pods by node.
func (f *fixture) addresses(name string) map[string]string {
	f.Helper()
	addresses := map[string]string{}
	f.Eventually("the pods have addresses", func() error {
		for _, node := range []string{"a1", "a2", "b1", "b2"} {
			names, err := workload.In(f.client, f.namespace).PodsOn(f.ctx, name, node)
			if err != nil || len(names) == 0 {
				return cmp.Or(err, errors.New("there is no pod on "+node))
			}
			pod, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, names[0], metav1.GetOptions{})
			if err != nil || pod.Status.PodIP == "" {
				return cmp.Or(err, errors.New("it has no address"))
			}
			addresses[node] = pod.Status.PodIP
		}
		return nil
	})
	return addresses
}

// withoutSelector makes a Service whose slices nobody else writes.
func (f *fixture) withoutSelector(keys []string) *corev1.Service {
	f.Helper()
	service, err := f.client.CoreV1().Services(f.namespace).Create(f.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "ports-", Annotations: map[string]string{
			workload.TopologyKeys: `["` + strings.Join(keys, `","`) + `"]`,
		}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "web", Port: workload.Port}, {Name: "admin", Port: adminPort},
		}},
	}, metav1.CreateOptions{})
	f.Must(err)
	return service
}

// listPort makes a slice of one port, with endpoints on these nodes.
func (f *fixture) listPort(service *corev1.Service, port, nodes string, addresses map[string]string) {
	f.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: service.Name + "-", Labels: map[string]string{discoveryv1.LabelServiceName: service.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(port), Port: ptr.To[int32](workload.Port)}},
	}
	for node := range strings.FieldsSeq(nodes) {
		node, ending := strings.CutSuffix(node, "!")
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addresses[node]}, NodeName: ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(!ending), Serving: ptr.To(true), Terminating: ptr.To(ending),
			},
		})
	}
	_, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).Create(f.ctx, slice, metav1.CreateOptions{})
	f.Must(err)
}

// reaches checks whom a node reaches on a port.
func (f *fixture) reaches(node string, service *corev1.Service, port int, want string) error {
	url := fmt.Sprintf("http://%s:%d/", service.Spec.ClusterIP, port)
	found := map[string]bool{}
	for range workload.Tries {
		ctx, cancel := context.WithTimeout(f.ctx, time.Second)
		answer, err := workload.Ask(ctx, f.Node(node), url)
		cancel()
		if err == nil {
			found[answer.Node] = true
		} else if want != "" {
			return err
		}
	}
	if got := strings.Join(slices.Sorted(maps.Keys(found)), " "); got != want {
		return fmt.Errorf("it reaches %q", got)
	}
	return nil
}
