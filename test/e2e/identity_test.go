package e2e

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
)

// What the wrapper does not serve itself it must ask for as its caller, never as itself.
func TestCallersKeepTheirIdentity(t *testing.T) {
	f := newFixture(t)
	node := f.Node("a1")
	connect := func(role cluster.Role) kubernetes.Interface {
		config := node.WrapperConfig(role)
		client, err := kubernetes.NewForConfig(config)
		f.Must(err)
		return client
	}

	if _, err := connect(cluster.RoleAdmin).CoreV1().Pods("").List(f.ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("an administrator lists pods: %v", err)
	}
	_, err := connect(cluster.RoleNobody).CoreV1().ConfigMaps("").List(f.ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `User "nobody"`) {
		t.Errorf("nobody lists ConfigMaps: want Forbidden in that name, got %v", err)
	}
	// The wrapper itself may list every node.
	_, err = connect(cluster.RoleNobody).CoreV1().Nodes().List(f.ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("nobody lists all nodes: want Forbidden, got %v", err)
	}
	_, err = connect(cluster.RoleNobody).CoreV1().Nodes().Get(f.ctx, "b1", metav1.GetOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("nobody gets another node: want Forbidden, got %v", err)
	}
	anonymous := node.WrapperConfig(cluster.RoleNobody)
	anonymous.BearerToken = ""
	client, err := kubernetes.NewForConfig(anonymous)
	f.Must(err)
	_, err = client.CoreV1().ConfigMaps("").List(f.ctx, metav1.ListOptions{})
	if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		t.Errorf("a caller without credentials lists ConfigMaps: want it refused, got %v", err)
	}
}
