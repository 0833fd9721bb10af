package gridcontroller

import (
	"context"
	"fmt"
	"io/fs"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/manifests"
)

// crdPause is the pause between two looks at CRDs that are not there yet.
const crdPause = time.Second

// ensureCRDs waits until the API server serves the grids, after having installed or updated their CRDs if
// install is set. What the API server refuses to install is an error; that it cannot be reached is waited out.
func ensureCRDs(ctx context.Context, api client.Client, install bool) error {
	logger := klog.FromContext(ctx)
	crds, err := readCRDs()
	if err != nil {
		return err
	}
	for _, crd := range crds {
		told := ""
		for {
			err := ensureCRD(ctx, api, crd, install)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if install && isFinal(err) {
				return fmt.Errorf("installing CRD %s (--manage-crds=false leaves that to you): %w", crd.GetName(), err)
			}
			if told != err.Error() {
				told = err.Error()
				logger.Info("Waiting for a CRD", "crd", crd.GetName(), "because", told)
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

// ensureCRD returns nil once the CRD is installed and established.
func ensureCRD(ctx context.Context, api client.Client, crd *unstructured.Unstructured, install bool) error {
	if install {
		u := crd.DeepCopy()
		// A CRD that was once made through apiextensions.k8s.io/v1beta1 lets every unknown field pass, and goes on
		// doing so until it is told not to. The tool that generates ours leaves false out.
		if err := unstructured.SetNestedField(u.Object, false, "spec", "preserveUnknownFields"); err != nil {
			return fmt.Errorf("CRD %s has no spec: %w", u.GetName(), err)
		}
		if err := api.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(FieldManager), client.ForceOwnership); err != nil {
			return err
		}
	}
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
