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
)

// sources are what the hub follows, by the part of the version that each has.
type sources [len(hubv1alpha1.Version{})]*follow.Source

// newGroup makes the sources of what the hub follows, and starts them.
func newGroup(config *rest.Config, f *facts.Facts) (*follow.Group, sources, error) {
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
		input := versionInputs[part]
		all[part], err = group.Add(follow.Options{
			Name: input, Resource: resource, Sink: f.Input(input), Verified: true,
		})
		if err != nil {
			return nil, sources{}, err
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
