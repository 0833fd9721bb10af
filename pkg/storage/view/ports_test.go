package view_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// sliceFrom reads an EndpointSlice of the Service svc in namespace ns from YAML, without its metadata.
func sliceFrom(t *testing.T, name, text string) *discoveryv1.EndpointSlice {
	t.Helper()
	s := &discoveryv1.EndpointSlice{}
	if err := yaml.UnmarshalStrict([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	s.Namespace, s.Name, s.Labels = "ns", name, map[string]string{discoveryv1.LabelServiceName: "svc"}
	return s
}

const (
	web = "{addressType: IPv4, ports: [{name: web, port: 8080, protocol: TCP}], endpoints: [" +
		"{addresses: [10.244.1.2], nodeName: node1, conditions: {ready: true}}, " +
		"{addresses: [10.244.1.5], nodeName: node2, conditions: {ready: true}}]}"
	admin = "{addressType: IPv4, ports: [{name: admin, port: 8080, protocol: TCP}], endpoints: [" +
		"{addresses: [10.244.1.3], nodeName: node2, conditions: {ready: true}}]}"
	both = "{addressType: IPv4, ports: [{name: admin, port: 8080}, {name: web, port: 8081}], endpoints: [" +
		"{addresses: [10.244.1.7], nodeName: node2}]}"
	bothEnding = "{addressType: IPv4, ports: [{name: admin, port: 8080}, {name: web, port: 8081}], endpoints: [" +
		"{addresses: [10.244.1.7], nodeName: node1, conditions: {ready: false, terminating: true}}]}"
	ipv4 = "{addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [" +
		"{addresses: [10.1.0.1], nodeName: node1, conditions: {ready: true}}]}"
	ipv6 = "{addressType: IPv6, ports: [{name: http, port: 8080}], endpoints: [" +
		"{addresses: ['fd00::2'], nodeName: node2, conditions: {ready: true}}]}"
	ending = "{addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [" +
		"{addresses: [10.244.1.2], nodeName: node1, conditions: {ready: false, serving: true, terminating: true}}, " +
		"{addresses: [10.244.1.5], nodeName: node2, conditions: {ready: false, serving: true, terminating: true}}]}"
)

// TestEachPortHasItsKey: inputs of people who run kube-proxy at the edge, as node1 is shown them.
func TestEachPortHasItsKey(t *testing.T) {
	for _, test := range []struct {
		name, keys string
		slices     []string
		want       string // the addresses and ports of each slice
		explained  string
	}{
		{
			"a port has pods elsewhere only", `["pool","*"]`, []string{web, admin},
			"10.244.1.2 web; 10.244.1.3 admin", "IPv4 admin: *, IPv4 web: pool",
		},
		{
			"a family has pods elsewhere only", `["pool","*"]`, []string{ipv4, ipv6},
			"10.1.0.1 http; fd00::2 http", "IPv4 http: pool, IPv6 http: *",
		},
		{
			"a slice has a port that others serve better", `["pool","*"]`, []string{web, both},
			"10.244.1.2 web; 10.244.1.7 admin", "IPv4 admin: *, IPv4 web: pool",
		},
		{"one key alone", `["pool"]`, []string{web, both}, "10.244.1.2 web;  admin,web", "pool"},
		{"not governed", ``, []string{web, both}, "10.244.1.2,10.244.1.5 web; 10.244.1.7 admin,web", ""},
		{
			"not governed: untouched", ``, []string{web, bothEnding},
			"10.244.1.2,10.244.1.5 web; 10.244.1.7 admin,web", "",
		},
		{
			"one key: no port is left out", `["pool"]`, []string{web, bothEnding},
			"10.244.1.2 web; 10.244.1.7 admin,web", "pool",
		},
		{
			"the only pod of the site ends", `["kubernetes.io/hostname","pool"]`, []string{ending},
			"10.244.1.2 http", "kubernetes.io/hostname",
		},
		{"all pods end", `["pool","*"]`, []string{ending}, "10.244.1.2 http", "pool"},
		{"all pods end, one key", `["pool"]`, []string{ending}, "10.244.1.2 http", "pool"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := storagetest.New(storagetest.Options{NodeName: "node1", KeepKubernetesEndpoint: true})
			s.NodeLabels().Replace(nil)
			s.Services().Replace(nil)
			s.EndpointSlices().Replace(nil)
			for i, text := range test.slices {
				s.EndpointSlices().Apply(wiretest.Object(sliceFrom(t, fmt.Sprint("svc-", i), text)))
			}
			s.Services().Apply(wiretest.Service("svc", test.keys))
			for node, pool := range map[string]string{"node1": "a", "node2": "b", "node3": "a"} {
				s.NodeLabels().Apply(wiretest.NodeWith(node,
					map[string]string{"pool": pool, corev1.LabelHostname: node}))
			}
			var got []string
			for i := range test.slices {
				got = append(got, described(shownAs[*discoveryv1.EndpointSlice](t, s.History, served.EndpointSlices,
					fmt.Sprint("svc-", i))))
			}
			if said := strings.Join(got, "; "); said != test.want {
				t.Errorf("shown %q, want %q", said, test.want)
			}
			e := explain(t, s, "svc", "")
			said := []string{}
			for _, port := range e.Ports {
				said = append(said, fmt.Sprintf("%s %s: %s", port.AddressType, port.Name, port.DecidingKey))
			}
			if told := e.DecidingKey + strings.Join(said, ", "); told != test.explained {
				t.Errorf("told %q, want %q", told, test.explained)
			}
		})
	}
}

func described(s *discoveryv1.EndpointSlice) string {
	var addresses, ports []string
	for _, e := range s.Endpoints {
		addresses = append(addresses, e.Addresses[0])
	}
	for _, p := range s.Ports {
		ports = append(ports, *p.Name)
	}
	return strings.Join(addresses, ",") + " " + strings.Join(ports, ",")
}
