package gridchild

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestListedTwice: a template in whose lists entries have the same key, which server-side apply does not take, is told
// as a refusal, with the lists and the keys.
func TestListedTwice(t *testing.T) {
	d := &appsv1.Deployment{}
	if err := yaml.Unmarshal([]byte(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: dns-a, namespace: default}
spec:
  template:
    spec:
      containers:
      - name: web
        ports:
        - {containerPort: 53, hostPort: 53, hostIP: 127.0.0.1, protocol: UDP}
        - {containerPort: 53, hostPort: 53, hostIP: 169.254.20.10, protocol: UDP}
        env: [{name: A, value: default}, {name: A, value: override}]
`), d); err != nil {
		t.Fatal(err)
	}
	_, err := applyconfigurations.NewTypeConverter(scheme.Scheme).ObjectToTyped(d)
	if err == nil {
		t.Fatal("server-side apply takes it")
	}
	err = apierrors.NewInternalError(fmt.Errorf("failed to create typed patch object (default/dns-a; apps/v1, "+
		"Kind=Deployment): %w", err))
	told := ErrorFrom(Rejected(err))
	for _, part := range []string{
		`.spec.template.spec.containers[name="web"].ports: duplicate entries for key ` +
			`[containerPort=53,protocol="UDP"]`,
		`.spec.template.spec.containers[name="web"].env: duplicate entries for key [name="A"]`,
	} {
		if told.Reason != v1.ReasonRejected || !strings.Contains(told.Message, part) {
			t.Errorf("told %s: %s; want %s", told.Reason, told.Message, part)
		}
	}
	if other := ErrorFrom(Rejected(apierrors.NewBadRequest("no"))); other != (Error{v1.ReasonRejected, "no"}) {
		t.Errorf("another refusal is told as %+v", other)
	}
}
