package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// TestChangesElsewhereWakeNoKubeProxy: a real kube-proxy writes its rules for every difference that it is sent. 200
// changes of another site's endpoints must be none.
func TestChangesElsewhereWakeNoKubeProxy(t *testing.T) {
	const changes = 200
	f := newFixture(t)
	// Without a selector the endpoints are the test's own.
	service, err := f.client.CoreV1().Services(f.namespace).Create(f.ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "busy",
			Annotations: map[string]string{"topologyKeys": `["` + siteLabel + `"]`}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	f.Must(err)
	slices := f.client.DiscoveryV1().EndpointSlices(f.namespace)
	slice, err := slices.Create(f.ctx, busySlice(0), metav1.CreateOptions{})
	f.Must(err)
	// Everything that comes before has reached every kube-proxy once the nodes of site-a reach this.
	marker := f.daemonSet("marker", siteLabel)
	f.ExpectReach("the cluster is at rest", marker, siteLocal)
	f.awaitRest()

	before := map[string]int{}
	for _, node := range shared.Nodes() {
		before[node.Spec.Name] = f.syncs(node)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range changes {
		<-tick.C
		changed := busySlice(i + 1)
		changed.ResourceVersion = slice.ResourceVersion
		slice, err = slices.Update(f.ctx, changed, metav1.UpdateOptions{})
		f.Must(err)
	}
	// A change of the own site does come, behind all of these.
	f.Must(workload.In(f.client, f.namespace).SetReadyOn(f.ctx, "marker", "a1", corev1.ConditionFalse))
	f.ExpectReach("a change of the own site comes", marker, siteLocal.with(reach{"a1": "a2", "a2": "a2"}))
	for _, node := range shared.Nodes() {
		name := node.Spec.Name
		syncs := f.syncs(node) - before[name]
		t.Logf("%s (%s): %d syncs of kube-proxy's rules", name, node.Spec.ProxyMode, syncs)
		switch {
		// The change of the marker, which may come in two steps (the pod's condition, then the slice's), is a sync or
		// two.
		case node.Spec.Labels[siteLabel] == siteA && syncs > 2:
			t.Errorf("%s: kube-proxy wrote its rules %d times for %d changes elsewhere and one here", name, syncs,
				changes)
		case node.Spec.Labels[siteLabel] != siteA && syncs < 3:
			t.Errorf("%s: %d syncs in the site whose endpoints change; the counter does not count", name, syncs)
		}
	}
	f.Must(f.client.CoreV1().Services(f.namespace).Delete(f.ctx, service.Name, metav1.DeleteOptions{}))
}

// busySlice has one endpoint in site-a, which stays, and one in site-b, which is another one each time.
func busySlice(n int) *discoveryv1.EndpointSlice {
	endpoint := func(node, address string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}
	}
	now := time.Now().UTC().Format(time.RFC3339Nano)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "busy-1",
			Labels:      map[string]string{discoveryv1.LabelServiceName: "busy"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: now},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{endpoint("a1", "192.0.2.1"),
			endpoint("b1", fmt.Sprintf("198.51.100.%d", 1+n%250))},
		Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(80))}},
	}
}

// syncs is how often a node's kube-proxy has written its rules.
func (f *fixture) syncs(node *cluster.Node) int {
	f.Helper()
	reply, err := node.Get(f.ctx, "http://127.0.0.1:10249/metrics")
	f.Must(err)
	syncs, found := cluster.Metric(reply.Body, `kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`)
	if !found {
		f.Fatalf("%s: kube-proxy tells of no sync", node.Spec.Name)
	}
	return int(syncs)
}

// awaitRest waits until what earlier tests left is gone, and no kube-proxy has written its rules for longer than the
// time that it gathers changes.
func (f *fixture) awaitRest() {
	f.Helper()
	const rest = 3 * time.Second
	last, since, unrest := map[string]int{}, time.Now(), "nothing"
	f.Eventually("no kube-proxy writes rules", func() error {
		namespaces, err := f.client.CoreV1().Namespaces().List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, namespace := range namespaces.Items {
			if namespace.Status.Phase == corev1.NamespaceTerminating {
				since, unrest = time.Now(), "namespace "+namespace.Name+" went"
				return fmt.Errorf("namespace %s is not gone yet", namespace.Name)
			}
		}
		for _, node := range shared.Nodes() {
			if now := f.syncs(node); now != last[node.Spec.Name] {
				last[node.Spec.Name], since, unrest = now, time.Now(), node.Spec.Name+" wrote its rules"
			}
		}
		if time.Since(since) < rest {
			return fmt.Errorf("%s %s ago", unrest, time.Since(since).Round(time.Millisecond))
		}
		return nil
	})
}

// TestARestartedWrapperWakesNoKubeProxy: what is the same after an upgrade of the wrapper has the resourceVersion that
// it had, so kube-proxy, which lists everything again, finds nothing to write.
func TestARestartedWrapperWakesNoKubeProxy(t *testing.T) {
	f := newFixture(t)
	marker := f.daemonSet("marker", siteLabel)
	f.ExpectReach("the cluster is at rest", marker, siteLocal)
	f.awaitRest()
	before := map[string]int{}
	for _, node := range shared.Nodes() {
		before[node.Spec.Name] = f.syncs(node)
	}
	f.eachNode(func(node *cluster.Node) error {
		was, err := f.shown(node)
		if err != nil {
			return err
		}
		if err := node.Wrapper.Stop(); err != nil {
			return err
		}
		if err := node.Wrapper.Start(f.ctx); err != nil {
			return err
		}
		is, err := f.shown(node)
		if err != nil {
			return err
		}
		for name, object := range is {
			if object != was[name] {
				f.Errorf("%s: %s is not as it was:\n%s\n%s", node.Spec.Name, name, was[name], object)
			}
		}
		return nil
	})
	// kube-proxy hears of this by the new process.
	f.Must(workload.In(f.client, f.namespace).SetReadyOn(f.ctx, "marker", "a1", corev1.ConditionFalse))
	f.ExpectReach("a change comes by the new process", marker, siteLocal.with(reach{"a1": "a2", "a2": "a2"}))
	for _, node := range shared.Nodes() {
		syncs := f.syncs(node) - before[node.Spec.Name]
		t.Logf("%s (%s): %d syncs of kube-proxy's rules", node.Spec.Name, node.Spec.ProxyMode, syncs)
		if node.Spec.Labels[siteLabel] != siteA && syncs > 0 {
			t.Errorf("%s: kube-proxy wrote its rules %d times, and nothing has changed there", node.Spec.Name, syncs)
		}
	}
}

// shown is what a node's wrapper shows of what kube-proxy follows, resourceVersions and all.
func (f *fixture) shown(node *cluster.Node) (map[string]string, error) {
	objects := map[string]string{}
	for _, path := range []string{"/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"} {
		reply, err := node.Get(f.ctx, node.WrapperURL()+path)
		if err != nil {
			return nil, err
		}
		var list struct {
			Items []struct {
				Metadata struct{ Namespace, Name string }
			}
		}
		var raw struct{ Items []json.RawMessage }
		if err := errors.Join(json.Unmarshal([]byte(reply.Body), &list),
			json.Unmarshal([]byte(reply.Body), &raw)); err != nil {
			return nil, err
		}
		for i, item := range raw.Items {
			m := list.Items[i].Metadata
			objects[path+" "+m.Namespace+"/"+m.Name] = string(item)
		}
	}
	return objects, nil
}
