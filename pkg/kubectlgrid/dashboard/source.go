package dashboard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// pause is the time before a resource is requested again. A forbidden resource, or one that is not served, may become
// readable: someone grants a right, or installs the CRDs.
const pause = 3 * time.Second

// SourceState is whether a resource is followed.
type SourceState string

// The states. SourceReading is the first. Objects of a resource that is SourceFailing are known, and may be old.
const (
	SourceReading   SourceState = "Reading"
	SourceFollowing SourceState = "Following"
	SourceForbidden SourceState = "Forbidden"
	SourceNotServed SourceState = "NotServed"
	SourceFailing   SourceState = "Failing"
)

// SourceStatus is the state of a followed resource.
type SourceStatus struct {
	Resource string      `json:"resource"`
	State    SourceState `json:"state"`
	// Known is whether the resource was read, even if long ago. Other resources are left out of answers.
	Known bool `json:"known"`
	// Message is why the resource is not followed.
	Message string `json:"message,omitempty"`
}

// source follows one resource into the facts. It is the store of client-go's reflector.
type source struct {
	resource

	client    client.WithWatch
	namespace string
	facts     *facts

	status SourceStatus // guarded by facts.mu
	// plain is set while the objects are those of a plain list, which is useful only with the watch after it. It is not
	// read after the reflector has returned because of its context.
	plain bool
}

// run follows the resource until ctx is done.
func (s *source) run(ctx context.Context) {
	// client-go would log failures, which the page shows.
	ctx = klog.NewContext(ctx, logr.Discard())
	for ctx.Err() == nil {
		reflector := toolscache.NewReflectorWithOptions(&toolscache.ListWatch{
			ListWithContextFunc: s.list, WatchFuncWithContext: s.watch,
		}, nil, s, toolscache.ReflectorOptions{Name: s.name, Logger: new(logr.Discard())})
		_ = reflector.ListAndWatchWithContext(ctx) // list and watch have noted the error
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s *source) options(raw *metav1.ListOptions) *client.ListOptions {
	raw.LabelSelector = s.selector
	options := &client.ListOptions{Raw: raw, Limit: raw.Limit, Continue: raw.Continue}
	if s.name != nodes {
		options.Namespace = s.namespace
	}
	return options
}

func (s *source) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	s.plain = true
	list := s.newList()
	if err := s.client.List(ctx, list, s.options(&options)); err != nil {
		s.failed(err)
		return nil, err
	}
	return list, nil
}

func (s *source) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	initial := ptr.Deref(options.SendInitialEvents, false)
	s.plain = !initial
	watcher, err := s.client.Watch(ctx, s.newList(), s.options(&options))
	var answer apierrors.APIStatus
	switch {
	case err == nil && !initial:
		s.become(SourceFollowing, "")
	case err != nil && (!initial || !errors.As(err, &answer)):
		s.failed(err)
	default: // the objects follow; or the API server has no streaming lists, and a plain one is next
	}
	return watcher, err
}

// failed notes why the resource is not followed.
func (s *source) failed(err error) {
	switch {
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err): // it is listed again
	case apierrors.IsForbidden(err):
		s.become(SourceForbidden, err.Error())
	case cluster.IsNotServed(err):
		s.become(SourceNotServed, cluster.Explain(err).Error())
	default:
		s.become(SourceFailing, err.Error())
	}
}

// become sets the state. Known objects stay known while the source fails, even if they may be old.
func (s *source) become(state SourceState, message string) {
	s.facts.update(func() bool {
		before := s.status
		s.status.State, s.status.Message = state, message
		s.status.Known = state == SourceFollowing || (state == SourceFailing && s.facts.known[s.name])
		return s.facts.know(s.name, s.status.Known) || s.status != before
	})
}

func (s *source) Add(object any) error { return s.Update(object) }

func (s *source) Update(object any) error { return s.replace(object, false) }

func (s *source) Delete(object any) error { return s.replace(object, true) }

func (s *source) replace(object any, gone bool) error {
	o, ok := object.(client.Object)
	if !ok {
		return fmt.Errorf("%T is not an object of an API server", object)
	}
	name := client.ObjectKeyFromObject(o)
	if trim(o); gone {
		o = nil
	}
	s.facts.update(func() bool { return s.facts.set(s.name, name, o) })
	return nil
}

// Replace implements toolscache.ReflectorStore. It is called with the first list, and with the list after each watch
// that could not continue.
func (s *source) Replace(objects []any, _ string) error {
	listed := map[types.NamespacedName]client.Object{}
	for _, object := range objects {
		if o, ok := object.(client.Object); ok {
			trim(o)
			listed[client.ObjectKeyFromObject(o)] = o
		}
	}
	s.facts.update(func() (changed bool) {
		for name := range s.facts.objects[s.name] {
			if listed[name] == nil {
				changed = s.facts.set(s.name, name, nil) || changed
			}
		}
		for name, o := range listed {
			changed = s.facts.set(s.name, name, o) || changed
		}
		return changed
	})
	if !s.plain {
		s.become(SourceFollowing, "")
	}
	return nil
}

// Resync implements toolscache.ReflectorStore. It does nothing.
func (s *source) Resync() error { return nil }

// Transformer implements toolscache.TransformingStore, so that a streaming list is trimmed as it arrives.
func (s *source) Transformer() toolscache.TransformFunc {
	return func(object any) (any, error) {
		trim(object)
		return object, nil
	}
}
