package hub

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// followed is what the hub follows, by the part of the version that each has.
var followed = [len(hubv1alpha1.Version{})]struct {
	input    string
	resource schema.GroupVersionResource
}{
	hubv1alpha1.VersionNodes:    {facts.InputNodes, served.Nodes.GroupVersionResource},
	hubv1alpha1.VersionServices: {facts.InputServices, served.Services.GroupVersionResource},
	hubv1alpha1.VersionSlices:   {facts.InputEndpointSlices, served.EndpointSlices.GroupVersionResource},
}

// sources are those of followed.
type sources [len(followed)]*follow.Source

// newGroup makes the sources of what the hub follows, and starts them.
func newGroup(config *rest.Config, f *facts.Facts) (group *follow.Group, all sources, err error) {
	if group, err = follow.NewGroup(follow.GroupOptions{Config: config, Barrier: f}); err != nil {
		return nil, all, err
	}
	for part, o := range followed {
		all[part], err = group.Add(follow.Options{
			Name: o.input, Resource: o.resource, Sink: f.Input(o.input), Verified: true,
		})
		if err != nil {
			return nil, all, err
		}
		all[part].Start()
	}
	return group, all, nil
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
