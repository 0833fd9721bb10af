package hub

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/wire"
)

// newGroup makes the sources of what the hub follows, and starts them.
func newGroup(config *rest.Config, f *facts.Facts) (*follow.Group, error) {
	group, err := follow.NewGroup(follow.GroupOptions{Config: config, Barrier: f})
	if err != nil {
		return nil, err
	}
	for _, o := range []follow.Options{
		{Name: facts.InputNodes, Resource: corev1.SchemeGroupVersion.WithResource("nodes"), Sink: nodeSink{
			whole: f.Input(facts.InputNode), labels: f.Input(facts.InputNodes),
		}},
		{
			Name: facts.InputServices, Resource: history.Services.GroupVersionResource,
			Sink: f.Input(facts.InputServices),
		},
		{
			Name: facts.InputEndpointSlices, Resource: history.EndpointSlices.GroupVersionResource,
			Sink: f.Input(facts.InputEndpointSlices),
		},
	} {
		source, err := group.Add(o)
		if err != nil {
			return nil, err
		}
		source.Start()
	}
	return group, nil
}

// nodeSink takes nodes once for two inputs: every node gets its own object whole, and the labels of others.
type nodeSink struct{ whole, labels *facts.Input }

// Apply implements follow.Sink.
func (s nodeSink) Apply(o *wire.Object) {
	s.whole.Apply(o)
	s.labels.Apply(o)
}

// Remove implements follow.Sink.
func (s nodeSink) Remove(namespace, name string) {
	s.whole.Remove(namespace, name)
	s.labels.Remove(namespace, name)
}

// Replace implements follow.Sink.
func (s nodeSink) Replace(objects []*wire.Object) {
	s.whole.Replace(objects)
	s.labels.Replace(objects)
}

// SetAbsent implements follow.Sink.
func (s nodeSink) SetAbsent() {
	s.whole.SetAbsent()
	s.labels.SetAbsent()
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
