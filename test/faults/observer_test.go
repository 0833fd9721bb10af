package faults

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// observed are the resources that are watched and compared.
var observed = []schema.GroupVersionResource{
	corev1.SchemeGroupVersion.WithResource("services"),
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
}

// objects are those of one resource, by namespace/name, without their resourceVersion.
type objects map[string]map[string]any

// observer lists and watches through a wrapper as an informer does, and notes what no client should hear.
type observer struct {
	client dynamic.Interface

	mu    sync.Mutex
	state map[schema.GroupVersionResource]objects // guarded by mu
	// deleted are the UIDs of what was deleted; guarded by mu.
	deleted map[types.UID]bool
	// needless are events that told nothing new; guarded by mu.
	needless []string
	// events counts the others, broken the watches that ended, expired those that were refused with 410; guarded
	// by mu.
	events, broken, expired int
}

// observe begins to observe the node's wrapper, until the test ends.
func (s *site) observe() *observer {
	s.Helper()
	o := &observer{client: suite.Dynamic(s, s.node.WrapperConfig(cluster.RoleKubeProxy)),
		state: map[schema.GroupVersionResource]objects{}, deleted: map[types.UID]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for _, resource := range observed {
		done.Go(func() { o.follow(ctx, resource) })
	}
	s.Cleanup(func() {
		cancel()
		done.Wait()
	})
	s.Eventually("the observer has its first lists", func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if len(o.state) < len(observed) {
			return fmt.Errorf("it has %d", len(o.state))
		}
		return nil
	})
	return o
}

func (o *observer) follow(ctx context.Context, resource schema.GroupVersionResource) {
	version := ""
	for ; ctx.Err() == nil; time.Sleep(between) {
		if version == "" {
			var err error
			if version, err = o.list(ctx, resource); err != nil {
				continue
			}
		}
		w, err := o.client.Resource(resource).Watch(ctx,
			metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err == nil {
			version, err = o.drain(w, resource, version)
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			o.mu.Lock()
			o.expired++
			o.mu.Unlock()
			version = ""
		}
	}
}

func (o *observer) list(ctx context.Context, resource schema.GroupVersionResource) (version string, err error) {
	found, version, err := listed(ctx, o.client, resource)
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state[resource] = found
	return version, nil
}

// drain takes the events of a watch until it ends, and returns the version to go on from.
func (o *observer) drain(w watch.Interface, resource schema.GroupVersionResource, version string) (string, error) {
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return version, apierrors.FromObject(event.Object)
		}
		object := event.Object.(*unstructured.Unstructured)
		version = object.GetResourceVersion()
		o.noteEvent(event.Type, resource, object)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.broken++
	return version, nil
}

func (o *observer) noteEvent(
	kind watch.EventType, resource schema.GroupVersionResource, object *unstructured.Unstructured,
) {
	key := object.GetNamespace() + "/" + object.GetName()
	after := content(object)
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.state[resource][key]
	needless := ""
	switch kind {
	case watch.Added:
		switch {
		case known:
			needless = "it was there"
		case o.deleted[object.GetUID()]:
			needless = "it comes back"
		}
		o.state[resource][key] = after
	case watch.Modified:
		switch {
		case !known:
			needless = "it was not there"
		case reflect.DeepEqual(before, after):
			needless = "nothing differs"
		}
		o.state[resource][key] = after
	case watch.Deleted:
		if !known {
			needless = "it was not there"
		}
		o.deleted[object.GetUID()] = true
		delete(o.state[resource], key)
	default: // a bookmark; errors are the caller's
		return
	}
	if needless == "" {
		o.events++
		return
	}
	o.needless = append(o.needless, fmt.Sprintf("%s %s %s: %s", kind, resource.Resource, key, needless))
}

// expectNothingLost judges what the observer heard: that it has what a client gets that lists only now, that this is
// what the cloud has, and that it heard of differences only.
func (s *site) expectNothingLost() {
	s.Helper()
	cloud := suite.Dynamic(s, shared.RESTConfig())
	var stale []string
	compare := func(what string, resource schema.GroupVersionResource, got, want objects) {
		for key := range maps.Keys(union(got, want)) {
			if !reflect.DeepEqual(got[key], want[key]) {
				stale = append(stale, fmt.Sprintf("%s %s %s: %v, and not %v", what, resource.Resource, key,
					got[key], want[key]))
			}
		}
	}
	begin := time.Now()
	for { // other faults' Services change all the time
		stale = nil
		for _, resource := range observed {
			served, _, err := listed(s.ctx, s.observer.client, resource)
			s.Must(err)
			actual, _, err := listed(s.ctx, cloud, resource)
			s.Must(err)
			s.observer.mu.Lock()
			heard := maps.Clone(s.observer.state[resource])
			s.observer.mu.Unlock()
			compare("served", resource, served, pruned(actual))
			compare("heard", resource, heard, served)
		}
		if len(stale) == 0 || time.Since(begin) > deadline {
			break
		}
		time.Sleep(10 * between)
	}
	if len(stale) > 0 {
		s.lose("%d objects are stale", len(stale))
		s.Errorf("stale for %s after: %v", time.Since(begin).Round(time.Second), stale)
	}
	o := s.observer
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.needless) > 0 {
		s.lose("%d events told nothing new", len(o.needless))
		s.Errorf("%d of %d events told nothing new: %v", len(o.needless), len(o.needless)+o.events,
			o.needless[:min(5, len(o.needless))])
	}
	if o.events == 0 && !s.fault.restarts { // else the change may have been in its second list
		s.Error("the observer heard of nothing at all")
	}
	switch {
	case !s.fault.restarts && o.broken+o.expired > 0:
		s.lose("%d watches", o.broken+o.expired)
		s.Errorf("%d watches ended, %d were refused with 410, though the wrapper was not restarted", o.broken,
			o.expired)
	case s.fault.restarts && o.expired < len(observed):
		s.Errorf("after the restart %d of %d watches were refused with 410; the others went on from a version of the process before", o.expired, len(observed))
	}
	s.Logf("the observer heard %d events, %d watches ended, %d were refused with 410", o.events, o.broken, o.expired)
}

func listed(ctx context.Context, client dynamic.Interface, resource schema.GroupVersionResource) (objects, string,
	error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, "", err
	}
	found := objects{}
	for i := range list.Items {
		object := &list.Items[i]
		found[object.GetNamespace()+"/"+object.GetName()] = content(object)
	}
	return found, list.GetResourceVersion(), nil
}

// content is the object without what the wrapper gives its own value to, or drops, and of a slice without what changes
// with endpoints that the node is not shown: the wrapper passes on no change of these alone.
func content(object *unstructured.Unstructured) map[string]any {
	object.SetResourceVersion("")
	object.SetManagedFields(nil)
	if object.GetKind() == "EndpointSlice" {
		object.SetGeneration(0)
		annotations := object.GetAnnotations()
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		object.SetAnnotations(annotations)
	}
	return object.Object
}

// pruned takes from the cloud's slices the endpoints of the other site. Every Service of this package is governed.
func pruned(all objects) objects {
	for _, object := range all {
		endpoints, found, err := unstructured.NestedSlice(object, "endpoints")
		if !found || err != nil {
			continue
		}
		endpoints = slices.DeleteFunc(endpoints, func(endpoint any) bool {
			return endpoint.(map[string]any)["nodeName"] == far
		})
		object["endpoints"] = endpoints
	}
	return all
}

func union(a, b objects) objects {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}
