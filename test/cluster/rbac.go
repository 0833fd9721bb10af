package cluster

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// wrapperRules is all that the wrapper's own identity may do; more would hide that it lends its identity to
// its callers.
var wrapperRules = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"nodes", "services", "endpoints"}, Verbs: read},
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
	{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs"}, Verbs: []string{"get", "list", "watch"}},
}

// coreDNSRules is what CoreDNS' manifests give to it.
var coreDNSRules = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"services", "namespaces"}, Verbs: read},
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
}

// ControllerRules is what manifests/application-grid-controller.yaml gives to the controller, in ClusterRole and
// Role.
var ControllerRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"superedge.io"}, Resources: grids(""), Verbs: []string{"get", "list", "watch", "patch"}},
	{APIGroups: []string{"superedge.io"}, Resources: grids("/status"), Verbs: []string{"patch"}},
	{APIGroups: []string{"superedge.io"}, Resources: grids("/finalizers"), Verbs: []string{"update"}},
	{APIGroups: []string{"apps"}, Resources: []string{"deployments", "statefulsets", "daemonsets"}, Verbs: write},
	{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: write},
	{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"}, Verbs: []string{"get", "create"}},
	{
		APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"},
		ResourceNames: grids(".superedge.io"), Verbs: []string{"patch"},
	},
	{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
	{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"},
		ResourceNames: []string{"application-grid-controller"}, Verbs: []string{"get", "update"},
	},
}

// write is what the controller may do with children.
var write = []string{"get", "list", "watch", "create", "patch", "delete"}

func grids(suffix string) []string {
	resources := []string{"deploymentgrids", "statefulsetgrids", "daemonsetgrids", "servicegrids"}
	for i := range resources {
		resources[i] += suffix
	}
	return resources
}

// read is what an informer needs.
var read = []string{"list", "watch"}

// grantRoles gives the roles that Kubernetes does not know their permissions.
func grantRoles(ctx context.Context, client kubernetes.Interface) error {
	for role, rules := range map[Role][]rbacv1.PolicyRule{RoleWrapper: wrapperRules, RoleController: ControllerRules, RoleCoreDNS: coreDNSRules, RoleDNSDaemon: dnsDaemonRules} {
		meta := metav1.ObjectMeta{Name: string(role)}
		clusterRole := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
		if _, err := client.RbacV1().ClusterRoles().Create(ctx, clusterRole, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating ClusterRole %s: %w", role, err)
		}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: string(role)},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: string(role)}},
		}
		if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating ClusterRoleBinding %s: %w", role, err)
		}
	}
	return nil
}
