package grid

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/suite"
)

// TestServices: every change of a grid reaches its Service, and what the API server has chosen stays.
func TestServices(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo, labels: {team: a}, annotations: {note: b}}, spec: {gridUniqKey: KEY,
		template: {type: NodePort, selector: {app: x, tier: y1}, ports: [{name: http, port: 80, targetPort: 8080}, {name: extra, port: 81}]}}}`)
	f.expectCondition("ServiceGrid", "demo", "Ready=True", "Ready")
	service := func() *corev1.Service {
		f.Helper()
		s, err := f.client.CoreV1().Services(f.namespace).Get(f.ctx, "demo-svc", metav1.GetOptions{})
		f.Must(err)
		return s
	}
	before := service()
	if before.Annotations["topologyKeys"] != `["`+f.key+`"]` || before.Annotations["note"] != "b" ||
		before.Labels["team"] != "a" ||
		before.Labels["superedge.io/grid-selector"] != "demo" || before.Labels["superedge.io/grid-uniq-key"] != f.key {
		f.Errorf("got %v, %v", before.Labels, before.Annotations)
	}
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: other,
		template: {type: NodePort, selector: {app: x}, ports: [{name: http, port: 80, targetPort: 9090}]}}}`)
	f.Eventually("what was removed or changed is removed or changed", func() error {
		s := service()
		if len(s.Spec.Ports) != 1 || s.Spec.Ports[0].TargetPort.IntVal != 9090 || len(s.Spec.Selector) != 1 ||
			s.Annotations["topologyKeys"] != `["other"]` || s.Annotations["note"] != "" || s.Labels["team"] != "" ||
			s.Labels["superedge.io/grid-uniq-key"] != "other" {
			return fmt.Errorf("%+v %+v", s.ObjectMeta, s.Spec)
		}
		return nil
	})
	after := service()
	if after.UID != before.UID || after.Spec.ClusterIP != before.Spec.ClusterIP ||
		after.Spec.Ports[0].NodePort != before.Spec.Ports[0].NodePort {
		f.Errorf("cluster IP and node port were to stay: %+v, %+v", before.Spec, after.Spec)
	}
	f.patch("Service", "demo-svc", `{metadata: {annotations: {topologyKeys: null, injected: x}}, spec: {selector: {app: theirs}}}`)
	f.Eventually("drift is reverted", func() error {
		s := service()
		if s.Annotations["topologyKeys"] != `["other"]` || s.Spec.Selector["app"] != "x" ||
			s.Annotations["injected"] != "x" {
			return fmt.Errorf("%v, %v", s.Annotations, s.Spec.Selector)
		}
		return nil
	})
	f.patch("ServiceGrid", "demo", `spec: {fallbackKeys: [region, "*"]}`)
	f.Eventually("further keys follow the first",
		suite.Is(`["other","region","*"]`, func() string { return service().Annotations["topologyKeys"] }))
	f.patch("ServiceGrid", "demo", `spec: {template: {clusterIP: 10.96.77.77}}`)
	f.expectCondition("ServiceGrid", "demo", "Degraded=True", "Rejected", "may not change once set")
	f.Must(f.of("ServiceGrid").Delete(f.ctx, "demo", metav1.DeleteOptions{}))
	f.expectNames("the Service goes with the grid", "Service", "")
}
