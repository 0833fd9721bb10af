package upstream

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// SourceShare is the name of the source that follows this node's share.
const SourceShare = "share"

const (
	// shareTimeout is how long a stream lasts at least; it lasts up to twice as long. The next one may reach another
	// replica.
	shareTimeout = 10 * time.Minute
	// shareSilence is how long a stream may be silent: the hub sends a step, if only an empty one, every half a minute.
	shareSilence = 75 * time.Second
	// shortStream is how long a stream must last for the next one to begin at once.
	shortStream = time.Second
)

// shareInputs are the inputs that objects of a share go to, by their kind in its frames.
var shareInputs = map[string]string{
	"Service": facts.InputServices, "EndpointSlice": facts.InputEndpointSlices, "Node": facts.InputNode,
	"PartialObjectMetadata": facts.InputNodes,
}

// shareResources are the hub's names for inputs that have other names there.
var shareResources = map[string]string{facts.InputNode: "nodes", facts.InputNodes: "labels"}

// shareState identifies the state of a share, as a mark of the facts.
type shareState struct {
	Version hubv1alpha1.Version
	Digests hubv1alpha1.Digests
}

// encode makes a mark of the facts.
func (s *shareState) encode() []byte {
	encoded, _ := binary.Append(nil, binary.BigEndian, s) // numbers can be encoded
	return encoded
}

// decodeShareState reads the result of encode; known reports whether it could.
func decodeShareState(encoded []byte) (s *shareState, known bool) {
	s = &shareState{}
	_, err := binary.Decode(encoded, binary.BigEndian, s)
	return s, err == nil
}

// errEnded means that the hub has ended a stream at its timeout.
var errEnded = errors.New("the hub has ended the stream")

// nextStep reads a step of a stream. It changes state from the client's state before the step to that after it.
func nextStep(stream <-chan watch.Event, state *shareState) (step facts.ShareStep, err error) {
	var whole [hubv1alpha1.Buckets]bool
	step.Objects = make(map[string]map[types.NamespacedName]*wire.Object)
	step.Drops = func(input string, name types.NamespacedName) bool {
		return whole[hubv1alpha1.BucketOf(cmp.Or(shareResources[input], input), name)]
	}
	for event := range stream {
		o, ok := event.Object.(follow.Object)
		if !ok {
			return step, apierrors.FromObject(event.Object)
		}
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		switch input := shareInputs[o.Kind]; {
		case event.Type == watch.Bookmark:
			mark, err := hubv1alpha1.ParseBookmark(o.ResourceVersion, o.Annotations())
			if err != nil {
				return step, err
			}
			mark.AddTo(&state.Digests, &whole)
			if mark.Ends {
				state.Version = mark.Version
				step.Mark = state.encode()
				return step, nil
			}
		case input == "": // of a newer hub
		case event.Type == watch.Deleted:
			step.Put(input, name, nil)
		default:
			step.Put(input, name, o.Object)
		}
	}
	return step, errEnded
}

// addShare adds the source that follows the share of this node, which replaces Services, slices and nodes of the API
// server. config is the client configuration of the hub's API server.
func (u *Upstream) addShare(config *rest.Config) (err error) {
	if u.node == "" {
		return errors.New("the share needs the name of this node")
	}
	if u.hub, err = follow.NewGroup(config, nil); err != nil {
		return err
	}
	share, err := u.hub.Add(follow.Options{
		Name: SourceShare, Resource: hubv1alpha1.GroupVersion.WithResource(hubv1alpha1.Shares),
		Stream: u.followShare, Silence: shareSilence,
	})
	u.shared = []*follow.Source{share}
	return err
}

// followShare follows one stream to its end. It is a follow.Options.Stream.
func (u *Upstream) followShare(ctx context.Context, stepped func(version string)) error {
	began := time.Now()
	mark := u.facts.ShareMark()
	state, known := decodeShareState(mark)
	seconds := int64(wait.Jitter(shareTimeout, 1).Seconds())
	request := u.shared[0].Request("hub-share").
		Param("watch", "true").Param("allowWatchBookmarks", "true").
		Param("fieldSelector", "metadata.name="+u.node).Param("resourceVersion", state.Version.String()).
		Param("timeoutSeconds", strconv.FormatInt(seconds, 10)).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch,"+runtime.ContentTypeProtobuf)
	if known {
		request.SetHeader(hubv1alpha1.DigestsHeader, state.Digests.String())
	}
	stream, err := request.Watch(ctx)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for steps := 0; ; steps++ {
		step, err := nextStep(stream.ResultChan(), state)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errEnded) && steps > 0 && time.Since(began) >= shortStream:
			return nil
		case err != nil:
			return err
		}
		step.Base, mark = mark, step.Mark
		if err := u.facts.ApplyShare(step); err != nil {
			return err
		}
		stepped(state.Version.String())
	}
}
