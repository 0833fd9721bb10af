package gridview

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/topology"
)

// TestRemediesOfAServiceGrid: what its controller would revert at the Service is changed at the grid.
func TestRemediesOfAServiceGrid(t *testing.T) {
	plain := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-svc"}}
	owned, isController := plain.DeepCopy(), true
	owned.OwnerReferences = []metav1.OwnerReference{{Kind: "ServiceGrid", Name: "web", Controller: &isController}}
	for got, want := range map[string]string{
		setKeys(plain, topology.Keys{"zone1", "*"}): `kubectl annotate --overwrite service -n ns web-svc ` +
			`'topologyKeys=["zone1","*"]'`,
		setKeys(owned, topology.Keys{"zone1", "*"}): `kubectl patch servicegrid -n ns web --type=merge -p ` +
			`'{"spec":{"gridUniqKey":"zone1","fallbackKeys":["*"]}}'`,
		setKeys(owned, topology.Keys{"zone1"}): `kubectl patch servicegrid -n ns web --type=merge -p ` +
			`'{"spec":{"gridUniqKey":"zone1","fallbackKeys":[]}}'`,
		useAllNodes(plain): `kubectl patch service -n ns web-svc -p '{"spec":{"internalTrafficPolicy":"Cluster"}}'`,
		useAllNodes(owned): `kubectl patch servicegrid -n ns web --type=merge -p ` +
			`'{"spec":{"template":{"internalTrafficPolicy":"Cluster"}}}'`,
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
