package hub

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// sources are what the hub follows, by the part of the version that each has.
type sources [len(hubv1alpha1.Version{})]*follow.Source

// newGroup makes the sources of what the hub follows, and starts them.
func newGroup(config *rest.Config, f *facts.Facts, s *shares) (*follow.Group, sources, error) {
	order := &sync.Mutex{}
	group, err := follow.NewGroup(follow.GroupOptions{Config: config, Barrier: orderedBarrier{f, order}})
	if err != nil {
		return nil, sources{}, err
	}
	var all sources
	for part, o := range [len(all)]follow.Options{
		hubv1alpha1.VersionNodes: {
			Name: facts.InputNodes, Resource: corev1.SchemeGroupVersion.WithResource("nodes"),
			Sink: nodeSink{f.Input(facts.InputNodes), s},
		},
		hubv1alpha1.VersionServices: {
			Name: facts.InputServices, Resource: history.Services.GroupVersionResource,
			Sink: f.Input(facts.InputServices),
		},
		hubv1alpha1.VersionSlices: {
			Name: facts.InputEndpointSlices, Resource: history.EndpointSlices.GroupVersionResource,
			Sink: f.Input(facts.InputEndpointSlices),
		},
	} {
		o.Sink, o.Verified = versionedSink{o.Sink, f, s, order, part}, true
		if all[part], err = group.Add(o); err != nil {
			return nil, sources{}, err
		}
		all[part].Start()
	}
	return group, all, nil
}

// versionedSink tells the shares the versions of what it takes. With its siblings it takes one thing at a time, so that
// the shares have a version exactly when they have what it brought.
type versionedSink struct {
	follow.Sink

	facts  *facts.Facts
	shares *shares
	order  *sync.Mutex
	part   int
}

// At implements follow.Versioned.
func (v versionedSink) At(version string, change func()) {
	v.order.Lock()
	defer v.order.Unlock()
	v.shares.arrive(v.part, number(version), change != nil)
	if change != nil {
		change()
	} else {
		v.facts.Touch()
	}
}

// orderedBarrier holds the facts back, in order with versionedSinks.
type orderedBarrier struct {
	facts *facts.Facts
	order *sync.Mutex
}

// Hold implements follow.Barrier.
func (b orderedBarrier) Hold() {
	b.order.Lock()
	defer b.order.Unlock()
	b.facts.Hold()
}

// Release implements follow.Barrier.
func (b orderedBarrier) Release() {
	b.order.Lock()
	defer b.order.Unlock()
	b.facts.Release()
}

// nodeSink hands a node's own object on to its streams, and keeps the labels of nodes.
type nodeSink struct {
	*facts.Input

	shares *shares
}

// Apply implements follow.Sink.
func (s nodeSink) Apply(o *wire.Object) {
	s.shares.setOwn(o.Name, o)
	s.Input.Apply(labelsOf(o))
}

// Remove implements follow.Sink.
func (s nodeSink) Remove(namespace, name string) {
	s.shares.setOwn(name, nil)
	s.Input.Remove(namespace, name)
}

// Replace implements follow.Sink.
func (s nodeSink) Replace(objects []*wire.Object) {
	for _, name := range s.shares.ownNames() {
		s.shares.setOwn(name, nil)
	}
	labels := make([]*wire.Object, len(objects))
	for i, o := range objects {
		s.shares.setOwn(o.Name, o)
		labels[i] = labelsOf(o)
	}
	s.Input.Replace(labels)
}

// labelsOf is a node without what the facts do not need of it.
func labelsOf(o *wire.Object) *wire.Object {
	return &wire.Object{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Labels: o.Labels}
}

// stalePatience is how long a source may fail before others should be asked: longer than an API server takes to start.
// It counts from the failure. Long before that the source may have heard nothing, because nothing changed.
const stalePatience = 30 * time.Second

// failing reports whether a source cannot be followed at the moment.
func failing(states []follow.State) bool {
	return slices.ContainsFunc(states, func(s follow.State) bool { return s.Err != nil || !s.Synced })
}

// notCurrent says why what is shared may not be what the cluster has; nil if it is.
func notCurrent(states []follow.State, now time.Time) error {
	for _, s := range states {
		switch {
		case !s.Synced && s.Err != nil:
			return fmt.Errorf("%s: not synced with the API server yet: %w", s.Name, s.Err)
		case !s.Synced:
			return fmt.Errorf("%s: not synced with the API server yet", s.Name)
		case s.Err != nil && now.Sub(s.FailingSince) > stalePatience:
			return fmt.Errorf("%s: cannot be followed since %s: %w",
				s.Name, s.FailingSince.UTC().Format(time.RFC3339), s.Err)
		}
	}
	return nil
}
