package gridcontroller

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/manifests"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// crdPause is the pause between two looks at CRDs that are not there yet.
const crdPause = time.Second

// CRDPolicy is what the controller does about the grids' CRDs.
type CRDPolicy int

const (
	// CRDsOff waits until someone else has installed them.
	CRDsOff CRDPolicy = iota
	// CRDsAuto installs those that are missing, and as the leader replaces older ones, unless they are somebody else's.
	CRDsAuto
)

// installCRDs waits until the API server serves the grids, after having installed those of their CRDs that are not
// there if the policy says so. Every replica may do that: it changes nothing that there is.
func installCRDs(ctx context.Context, api client.Client, policy CRDPolicy) error {
	return eachCRD(ctx, func(crd *unstructured.Unstructured) error {
		err := established(ctx, api, crd)
		if !apierrors.IsNotFound(err) || policy == CRDsOff {
			return err
		}
		// An apply, for the role allows to create these names only, and a plain create names nothing to authorize.
		// Without force it takes nothing from someone who has made the CRD meanwhile.
		u := crd.DeepCopy()
		if err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(u),
			client.FieldOwner(v1.FieldManager)); err != nil {
			return err
		}
		return established(ctx, api, crd)
	})
}

// crdUpgrade replaces older CRDs. It runs on the leader, so that replicas of two versions do not undo each other's
// work, and before the leader reconciles anything: fields that an older CRD does not know would be lost.
type crdUpgrade struct {
	api    client.Client
	policy CRDPolicy
	done   chan struct{}
}

// NeedLeaderElection is part of manager.LeaderElectionRunnable.
func (*crdUpgrade) NeedLeaderElection() bool { return true }

// Start is part of manager.Runnable.
func (u *crdUpgrade) Start(ctx context.Context) error {
	if u.policy == CRDsAuto {
		if err := eachCRD(ctx,
			func(crd *unstructured.Unstructured) error { return upgradeCRD(ctx, u.api, crd) }); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end that was asked for
			}
			return err
		}
	}
	close(u.done)
	return nil
}

// afterUpgrade is a reconciler that waits for the CRDs.
type afterUpgrade struct {
	reconcile.Reconciler

	done <-chan struct{}
}

// Reconcile is part of reconcile.Reconciler.
func (r afterUpgrade) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	select {
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	case <-r.done:
		return r.Reconciler.Reconcile(ctx, request)
	}
}

// upgradeCRD replaces a CRD with ours if that is newer, or if somebody has altered ours, and the one that there is no
// tool's that would put it back. SuperEdge's controller, to which one may have gone back meanwhile, writes its own spec
// into our CRDs and leaves our version at them.
func upgradeCRD(ctx context.Context, api client.Client, crd *unstructured.Unstructured) error {
	logger := klog.FromContext(ctx)
	live := &apiextensionsv1.CustomResourceDefinition{}
	if err := api.Get(ctx, types.NamespacedName{Name: crd.GetName()}, live); err != nil {
		return err
	}
	ours, theirs := crdVersion(crd), crdVersion(live)
	switch {
	case theirs > ours:
		logger.Info("Leaving alone a CRD that is newer than this controller's",
			"crd", crd.GetName(), "version", theirs, "own", ours)
		return nil
	case theirs == ours:
		applied, err := applyCRD(ctx, api, crd, client.DryRunAll)
		if err != nil || equality.Semantic.DeepEqual(applied.Spec, live.Spec) {
			return err
		}
	}
	if tool := keeperOf(live); tool != "" {
		logger.Info("Leaving alone an older or altered CRD that belongs to someone else; update it there",
			"crd", crd.GetName(), "version", theirs, "own", ours, "owner", tool)
		return nil
	}
	if _, err := applyCRD(ctx, api, crd); err != nil {
		return err
	}
	logger.Info("Updated a CRD", "crd", crd.GetName(), "from", theirs, "to", ours)
	return established(ctx, api, crd)
}

// applyCRD applies our CRD by force, and returns what it has become.
func applyCRD(
	ctx context.Context, api client.Client, crd *unstructured.Unstructured, options ...client.ApplyOption,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	u := crd.DeepCopy()
	// A CRD that was once made through apiextensions.k8s.io/v1beta1 lets every unknown field pass, and goes on
	// doing so until it is told not to. The tool that generates ours leaves false out.
	if err := unstructured.SetNestedField(u.Object, false, "spec", "preserveUnknownFields"); err != nil {
		return nil, fmt.Errorf("CRD %s has no spec: %w", u.GetName(), err)
	}
	options = append(options, client.FieldOwner(v1.FieldManager), client.ForceOwnership)
	if err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return nil, err
	}
	applied := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, applied); err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", u.GetName(), err)
	}
	return applied, nil
}

// crdVersion is the number of a CRD; 0 if it has none, as those of SuperEdge.
func crdVersion(crd metav1.Object) int {
	version, err := strconv.Atoi(crd.GetAnnotations()[v1.AnnotationCRDVersion])
	if err != nil {
		return 0
	}
	return version
}

// keeperOf names the tool that keeps a CRD as its own source says: one that says so in labels or annotations, or that
// applies it on the server. A person's kubectl is none.
func keeperOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, marks := range []map[string]string{crd.Labels, crd.Annotations} {
		for _, key := range slices.Sorted(maps.Keys(marks)) {
			for _, prefix := range []string{
				"argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/",
				"app.kubernetes.io/managed-by", "meta.helm.sh/",
			} {
				if strings.HasPrefix(key, prefix) {
					return key + "=" + marks[key]
				}
			}
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

// eachCRD does something with each of our CRDs until it succeeds. What the API server refuses is an error; that it
// cannot be reached is waited out.
func eachCRD(ctx context.Context, do func(*unstructured.Unstructured) error) error {
	logger := klog.FromContext(ctx)
	crds, err := readCRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		told := ""
		for {
			err := do(crd)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if isFinal(err) {
				return fmt.Errorf("installing CRD %s (--manage-crds=off leaves that to you): %w", crd.GetName(), err)
			}
			if told != err.Error() {
				told = err.Error()
				logger.Info("Waiting for a CRD", "crd", crd.GetName(), "reason", told)
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(crdPause):
			}
		}
	}
	return nil
}

func readCRDs() ([]*unstructured.Unstructured, error) {
	files, err := fs.Glob(manifests.CRDs, "crds/superedge.io_*.yaml")
	if err != nil {
		return nil, fmt.Errorf("listing the CRDs: %w", err)
	}
	var crds []*unstructured.Unstructured
	for _, file := range files {
		data, err := fs.ReadFile(manifests.CRDs, file)
		if err != nil {
			return nil, fmt.Errorf("reading CRD %s: %w", file, err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &u.Object); err != nil {
			return nil, fmt.Errorf("reading CRD %s: %w", file, err)
		}
		crds = append(crds, u)
	}
	return crds, nil
}

// established returns nil once the CRD is there and served.
func established(ctx context.Context, api client.Client, crd *unstructured.Unstructured) error {
	live := &apiextensionsv1.CustomResourceDefinition{}
	if err := api.Get(ctx, types.NamespacedName{Name: crd.GetName()}, live); err != nil {
		return err
	}
	for _, condition := range live.Status.Conditions {
		if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
			return nil
		}
		if condition.Type == apiextensionsv1.NamesAccepted && condition.Status == apiextensionsv1.ConditionFalse {
			return fmt.Errorf("its names are taken: %s", condition.Message)
		}
	}
	return fmt.Errorf("CRD %s is not established yet", crd.GetName())
}
