// Package workloadpatch applies strategic merge patches to the specs of workloads. It uses the OpenAPI schema of the
// API server, so that lists are merged by their keys even in fields that this build does not know. The schema is read
// when the first patch needs it, and again when it is too old.
package workloadpatch

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/rest"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

const (
	// maxAge is how long a schema is used. An upgraded API server has new fields.
	maxAge = 10 * time.Minute
	// retryPause is the time between a failed read and the next one.
	retryPause  = 5 * time.Second
	readTimeout = 10 * time.Second
	// kindExtension is the extension with the kinds of a schema.
	kindExtension = "x-kubernetes-group-version-kind"
)

// Schemas are the schemas of workloads of one API server.
type Schemas struct {
	read func() (*spec3.OpenAPI, error)

	mu sync.Mutex // guards all below
	// schemas are the schemas that were read last; nil before that. They are read again at nextRead.
	schemas  map[string]*spec.Schema
	nextRead time.Time
	// failure is the error of the last read; nil if it has not failed.
	failure error
}

// NewForConfig makes Schemas with a client of their own.
func NewForConfig(config *rest.Config) (*Schemas, error) {
	config = rest.CopyConfig(config)
	config.Timeout = readTimeout
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the API server's schema: %w", err)
	}
	root := openapi3.NewRoot(client.OpenAPIV3())
	return &Schemas{read: func() (*spec3.OpenAPI, error) { return root.GVSpec(appsv1.SchemeGroupVersion) }}, nil
}

// Merge applies patches to the specs of one kind of workload.
func (s *Schemas) Merge(kind schema.GroupVersionKind) gridchild.Merge {
	return func(original, patch map[string]any) (map[string]any, error) {
		schemas, err := s.get()
		if err != nil {
			return nil, gridchild.Errorf(v1.ReasonSyncFailed, "reading the API server's schema: %s",
				gridchild.Shorten(err.Error()))
		}
		of := ofKind(schemas, kind)
		if of == nil {
			return nil, gridchild.Errorf(v1.ReasonSyncFailed, "the API server's schema has no %s", kind.Kind)
		}
		merged, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(
			map[string]any{"spec": original}, map[string]any{"spec": patch},
			strategicpatch.PatchMetaFromOpenAPIV3{SchemaList: schemas, Schema: of})
		if err != nil {
			return nil, gridchild.Errorf(v1.ReasonInvalidTemplate, "it cannot be applied: %s",
				gridchild.Shorten(err.Error()))
		}
		result, ok := merged["spec"].(map[string]any)
		if !ok {
			return nil, gridchild.Errorf(v1.ReasonInvalidTemplate, "it removes the whole template")
		}
		return result, nil
	}
}

// get returns the schemas by name. If it cannot read them, it returns the old ones.
func (s *Schemas) get() (map[string]*spec.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); !now.Before(s.nextRead) {
		document, err := s.read()
		if err == nil && document.Components == nil {
			err = errors.New("it is empty")
		}
		s.failure, s.nextRead = err, now.Add(retryPause)
		if err == nil {
			s.schemas, s.nextRead = document.Components.Schemas, now.Add(maxAge)
		}
	}
	if s.schemas == nil {
		return nil, s.failure
	}
	return s.schemas, nil
}

// ofKind returns the schema of a kind; nil if it is missing.
func ofKind(schemas map[string]*spec.Schema, kind schema.GroupVersionKind) *spec.Schema {
	for _, s := range schemas {
		var kinds []schema.GroupVersionKind
		if err := s.Extensions.GetObject(kindExtension, &kinds); err == nil && slices.Contains(kinds, kind) {
			return s
		}
	}
	return nil
}
