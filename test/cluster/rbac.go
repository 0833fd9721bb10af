package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/application-grid/application-grid/manifests"
)

// coreDNSRules is what CoreDNS' manifests give to it.
var coreDNSRules = []rbacv1.PolicyRule{
	{APIGroups: []string{""}, Resources: []string{"services", "namespaces"}, Verbs: []string{"list", "watch"}},
	{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
}

// grantRoles gives the roles that Kubernetes does not know their permissions: the product's are the shipped ones.
func (c *Cluster) grantRoles(ctx context.Context) error {
	objects, err := ShippedRBAC()
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: string(RoleCoreDNS)}
	objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: coreDNSRules}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: string(RoleCoreDNS)},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: string(RoleCoreDNS)}},
	})
	for _, object := range objects {
		// kube-apiserver makes the namespace kube-system a moment after it is ready.
		err := c.poll(ctx, func(ctx context.Context) error { return unlessThere(c.create(ctx, object)) })
		if err != nil {
			return fmt.Errorf("granting roles: %w", err)
		}
	}
	return nil
}

// ShippedRBAC is what manifests/*/rbac.yaml contain.
func ShippedRBAC() ([]runtime.Object, error) {
	files, err := fs.Glob(manifests.RBAC, "*/rbac.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the shipped roles: %w", err)
	}
	var objects []runtime.Object
	for _, file := range files {
		data, err := fs.ReadFile(manifests.RBAC, file)
		if err != nil {
			return nil, fmt.Errorf("reading the shipped roles: %w", err)
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
			if err != nil {
				return nil, fmt.Errorf("manifests/%s: %w", file, err)
			}
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// create creates an object of ShippedRBAC's kinds.
func (c *Cluster) create(ctx context.Context, object runtime.Object) error {
	var err error
	options := metav1.CreateOptions{}
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		_, err = c.client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, options)
	case *rbacv1.ClusterRole:
		_, err = c.client.RbacV1().ClusterRoles().Create(ctx, o, options)
	case *rbacv1.ClusterRoleBinding:
		_, err = c.client.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
	case *rbacv1.Role:
		_, err = c.client.RbacV1().Roles(o.Namespace).Create(ctx, o, options)
	case *rbacv1.RoleBinding:
		_, err = c.client.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, options)
	case *coordinationv1.Lease:
		_, err = c.client.CoordinationV1().Leases(o.Namespace).Create(ctx, o, options)
	default:
		err = fmt.Errorf("%T is no kind that the embedded cluster expects in an rbac.yaml", object)
	}
	return err
}
