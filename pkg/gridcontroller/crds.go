package gridcontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/manifests"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// ensureCRDs waits until the API server serves the grids. If the controller manages CRDs, it installs and replaces them
// before that, because writes would lose fields that an older CRD does not have. Replicas of two versions do not undo
// each other's work, because the version of a CRD never goes down. It tries again until it succeeds, and returns an
// error if the API server refuses a CRD for good.
func ensureCRDs(ctx context.Context, api client.Client, c Config) error {
	namespace := append(c.Namespaces, "")[0] // of a role that allows only some of them
	for _, k := range v1.Kinds {
		crd, err := readCRD(k)
		if err != nil {
			return err
		}
		logged := ""
		err = wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
			var err error
			if c.ManageCRDs {
				err = installCRD(ctx, api, crd)
			}
			if err == nil {
				err = api.List(ctx, k.NewList(), client.InNamespace(namespace), client.Limit(1))
			}
			// An API server that has just started forbids all users everything until it has read their permissions.
			switch {
			case err == nil:
				return true, nil
			case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
				return false, fmt.Errorf("installing CRD %s (--manage-crds=off leaves that to you): %w", crd.GetName(),
					err)
			case logged != err.Error():
				logged = err.Error()
				klog.FromContext(ctx).Info("Waiting for a CRD", "crd", crd.GetName(), "reason", logged)
			}
			return false, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// installCRD installs a missing CRD. It replaces an older one, and one of ours that someone has altered: SuperEdge's
// controller, to which a user may have returned, writes its own spec into our CRDs and keeps the version. It leaves
// alone a CRD that is newer, or that is managed by a tool that would undo the change.
func installCRD(ctx context.Context, api client.Client, crd *unstructured.Unstructured) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "crd", crd.GetName())
	live := &apiextensionsv1.CustomResourceDefinition{}
	err := api.Get(ctx, client.ObjectKeyFromObject(crd), live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	ours, theirs, tool := crdVersion(crd), crdVersion(live), keeperOf(live)
	if theirs > ours || tool != "" {
		if theirs != ours {
			logger.Info("Leaving alone a CRD that is newer, or that belongs to someone else: update it there",
				"version", theirs, "own", ours, "owner", tool)
		}
		return nil
	}
	// It applies instead of creating, because the controller's role allows only these names, and a create request does
	// not name the object. It does not force a new CRD: someone else may create it meanwhile.
	var options []client.ApplyOption
	if err == nil {
		options = append(options, client.ForceOwnership)
	}
	u := crd.DeepCopy()
	// A CRD that was created with apiextensions.k8s.io/v1beta1 keeps unknown fields until preserveUnknownFields is set
	// to false. The generator of our CRDs leaves out false.
	if err = unstructured.SetNestedField(u.Object, false, "spec", "preserveUnknownFields"); err == nil {
		err = api.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...)
	}
	if err != nil {
		return err
	}
	if u.GetResourceVersion() != live.ResourceVersion {
		logger.Info("Applied a CRD", "from", theirs, "to", ours)
	}
	return nil
}

// crdVersion returns the value of a CRD's AnnotationCRDVersion; 0 if it has none, like SuperEdge's CRDs.
func crdVersion(crd metav1.Object) int {
	version, _ := strconv.Atoi(crd.GetAnnotations()[v1.AnnotationCRDVersion])
	return version
}

// toolMarks begin the keys of labels and annotations of tools that manage objects.
var toolMarks = []string{
	"argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "app.kubernetes.io/managed-by",
	"meta.helm.sh/",
}

// keeperOf names the tool that manages a CRD and would undo changes to it, or "". A tool is recognised by its labels
// and annotations, or by a server-side apply. A person's kubectl does not count.
func keeperOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	marks := labels.Merge(crd.Labels, crd.Annotations)
	for _, key := range slices.Sorted(maps.Keys(marks)) {
		if slices.ContainsFunc(toolMarks, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			return key + "=" + marks[key]
		}
	}
	for _, entry := range crd.ManagedFields {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" &&
			entry.Manager != v1.FieldManager && entry.Manager != "kubectl" {
			return entry.Manager
		}
	}
	return ""
}

// readCRD reads the CRD of a kind, as this build has it.
func readCRD(k v1.GridKind) (*unstructured.Unstructured, error) {
	crd := &unstructured.Unstructured{}
	data, err := manifests.CRDs.ReadFile("crds/superedge.io_" + k.Plural + ".yaml")
	if err == nil {
		err = yaml.Unmarshal(data, &crd.Object)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the CRD of %ss: %w", k.Kind, err)
	}
	return crd, nil
}
