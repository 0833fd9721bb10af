package hub

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// sources are what the hub follows, by the part of the version that each has.
type sources [len(hubv1alpha1.Version{})]*follow.Source

// newGroup makes the sources of what the hub follows, and starts them.
func newGroup(config *rest.Config, f *facts.Facts, s *shares) (*follow.Group, sources, error) {
	group, err := follow.NewGroup(follow.GroupOptions{Config: config, Barrier: f})
	if err != nil {
		return nil, sources{}, err
	}
	var all sources
	for part, resource := range [len(all)]schema.GroupVersionResource{
		hubv1alpha1.VersionNodes:    corev1.SchemeGroupVersion.WithResource("nodes"),
		hubv1alpha1.VersionServices: served.Services.GroupVersionResource,
		hubv1alpha1.VersionSlices:   served.EndpointSlices.GroupVersionResource,
	} {
		input := f.Input(versionInputs[part])
		sink := versionedSink{input, input}
		if part == hubv1alpha1.VersionNodes {
			sink.Sink = nodeSink{input, s}
		}
		all[part], err = group.Add(follow.Options{
			Name: versionInputs[part], Resource: resource, Sink: sink, Verified: true,
		})
		if err != nil {
			return nil, sources{}, err
		}
		all[part].Start()
	}
	return group, all, nil
}

// versionedSink tells the input the versions of what it takes.
type versionedSink struct {
	follow.Sink

	input *facts.Input
}

// At implements follow.Versioned.
func (v versionedSink) At(version string, change func()) {
	if change == nil {
		v.input.Progress(number(version))
		return
	}
	v.input.Arrive(number(version))
	change()
}

// nodeSink hands nodes on to the shares, and their labels to the facts.
type nodeSink struct {
	*facts.Input

	shares *shares
}

// Apply implements follow.Sink.
func (s nodeSink) Apply(o *wire.Object) {
	s.shares.arrive(o.Name, o)
	s.Input.Apply(labelsOf(o))
}

// Remove implements follow.Sink.
func (s nodeSink) Remove(namespace, name string) {
	s.shares.arrive(name, nil)
	s.Input.Remove(namespace, name)
}

// Replace implements follow.Sink.
func (s nodeSink) Replace(objects []*wire.Object) {
	s.shares.arriveOnly(objects)
	labels := make([]*wire.Object, len(objects))
	for i, o := range objects {
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
