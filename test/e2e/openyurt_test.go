package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/workload"
)

const (
	openYurtKeys = "openyurt.io/topologyKeys"
	nodePool     = "apps.openyurt.io/nodepool"
	zone         = "topology.kubernetes.io/zone"
)

// TestOpenYurt: kube-proxy's rules follow the annotation of OpenYurt, its changes and those of the pools, and
// topologyKeys where both are there.
func TestOpenYurt(t *testing.T) {
	f := newFixture(t)
	f.labelNodes(nodePool, map[string]string{"a1": "hangzhou", "b1": "hangzhou", "a2": "shanghai", "b2": "shanghai"})
	f.labelNodes(zone, map[string]string{"a1": "z1", "a2": "z1", "b1": "z1"}) // b2 is in none
	service := f.daemonSet("echo")
	f.ExpectReach("no annotation", service, everywhere)

	f.annotate("echo", openYurtKeys, "openyurt.io/nodepool")
	pools := reach{"a1": "a1 b1", "b1": "a1 b1", "a2": "a2 b2", "b2": "a2 b2"}
	f.ExpectReach("openyurt.io/nodepool", service, pools)
	explained := f.explain("a1", "echo")
	for _, part := range []string{`"annotation":"openyurt.io/topologyKeys"`,
		`"topologyKeys":["apps.openyurt.io/nodepool"]`, `"site":{"apps.openyurt.io/nodepool":"hangzhou"}`} {
		if !strings.Contains(explained, part) {
			t.Errorf("explain has no %s: %s", part, explained)
		}
	}
	f.annotate("echo", openYurtKeys, "kubernetes.io/hostname")
	f.ExpectReach("kubernetes.io/hostname", service, reach{"a1": "a1", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.annotate("echo", openYurtKeys, "kubernetes.io/zone")
	f.ExpectReach("kubernetes.io/zone", service, reach{"a1": "a1 a2 b1", "a2": "a1 a2 b1", "b1": "a1 a2 b1", "b2": ""})

	f.annotate("echo", openYurtKeys, "openyurt.io/nodepool,kubernetes.io/hostname")
	f.ExpectReach("a value that OpenYurt does not know", service, nowhere)
	node := f.Node("a1")
	f.Answers(node, node.WrapperURL()+"/readyz", 0, fmt.Sprintf("service %s/echo: all endpoints hidden: annotation %s "+
		"does not parse: not one of", f.namespace, openYurtKeys))

	f.annotate("echo", openYurtKeys, "openyurt.io/nodepool")
	f.ExpectReach("openyurt.io/nodepool again", service, pools)
	f.Must(shared.RelabelNode(f.ctx, "b1", nodePool, "shanghai"))
	f.ExpectReach("b1 is in the other pool", service,
		reach{"a1": "a1", "a2": "a2 b1 b2", "b1": "a2 b1 b2", "b2": "a2 b1 b2"})
	f.Must(shared.RelabelNode(f.ctx, "b1", nodePool, ""))
	f.ExpectReach("b1 is in none", service, reach{"a1": "a1", "a2": "a2 b2", "b1": "", "b2": "a2 b2"})

	f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "echo", siteLabel))
	f.ExpectReach("topologyKeys beside it", service, siteLocal)
	f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "echo"))
	f.ExpectReach("topologyKeys gone", service, reach{"a1": "a1", "a2": "a2 b2", "b1": "", "b2": "a2 b2"})
	f.annotate("echo", openYurtKeys, "")
	f.ExpectReach("an empty value", service, everywhere)
}

// labelNodes gives nodes a label, which the cleanup takes away.
func (f *fixture) labelNodes(key string, values map[string]string) {
	f.Helper()
	for name, value := range values {
		f.Cleanup(func() {
			if err := shared.RelabelNode(context.Background(), name, key, ""); err != nil {
				f.Errorf("taking the label %s from %s: %v", key, name, err)
			}
		})
		f.Must(shared.RelabelNode(f.ctx, name, key, value))
	}
}

// annotate sets an annotation of a Service.
func (f *fixture) annotate(service, annotation, value string) {
	f.Helper()
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}}}`, annotation, value)
	_, err := f.client.CoreV1().Services(f.namespace).Patch(f.ctx, service, types.MergePatchType, patch,
		metav1.PatchOptions{})
	f.Must(err)
}

// explain is what the node's wrapper explains of a Service.
func (f *fixture) explain(node, service string) string {
	f.Helper()
	n := f.Node(node)
	reply, err := n.Get(f.ctx, n.WrapperURL()+"/debug/explain/"+f.namespace+"/"+service)
	f.Must(err)
	return reply.Body
}
