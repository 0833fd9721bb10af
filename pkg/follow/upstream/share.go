package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// SourceShare is the name of the source that follows this node's share.
const SourceShare = "share"

const (
	// shareTimeout is how long a stream lasts at least; it lasts up to twice that. The next one may come to another
	// replica.
	shareTimeout = 10 * time.Minute
	// shareSilence is how long a stream may be silent: the hub sends a sign of life every half a minute.
	shareSilence = 75 * time.Second
	// shortStream is how long a stream must last for the next one to begin at once.
	shortStream = time.Second
)

// shareInputs are the inputs that objects of a share go to, by their kind in its frames; shareResources says what the
// hub calls the kind of an input.
var (
	shareInputs = map[string]string{
		"Service": facts.InputServices, "EndpointSlice": facts.InputEndpointSlices, "Node": facts.InputNode,
		"PartialObjectMetadata": facts.InputNodes,
	}
	shareResources = map[string]string{
		facts.InputServices: "services", facts.InputEndpointSlices: "endpointslices", facts.InputNode: "nodes",
		facts.InputNodes: "labels",
	}
)

// shareState names a share, as a mark of the facts.
type shareState struct {
	Version hubv1alpha1.Version
	Digests hubv1alpha1.Digests
}

// encode makes a mark of the facts.
func (s *shareState) encode() []byte {
	encoded, _ := binary.Append(nil, binary.BigEndian, s) // numbers can be encoded
	return encoded
}

// decodeShareState reads what encode returned; known reports whether it is anything.
func decodeShareState(encoded []byte) (s *shareState, known bool) {
	s = &shareState{}
	_, err := binary.Decode(encoded, binary.BigEndian, s)
	return s, err == nil
}

// errEnded is the end of a stream whose time is over.
var errEnded = errors.New("the hub has ended the stream")

// nextStep takes a step of a stream. state is what the client knows, and becomes what it knows after the step.
func nextStep(stream <-chan watch.Event, state *shareState) (step facts.ShareStep, restored bool, err error) {
	var whole [hubv1alpha1.Buckets]bool
	step.Objects = make(map[string]map[types.NamespacedName]*wire.Object)
	step.Whole = func(input string, name types.NamespacedName) bool {
		return whole[hubv1alpha1.BucketOf(shareResources[input], name)]
	}
	for event := range stream {
		o, kind := follow.Decoded(event.Object)
		if o == nil {
			return step, false, apierrors.FromObject(event.Object)
		}
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		switch input := shareInputs[kind]; {
		case event.Type == watch.Bookmark:
			mark, err := hubv1alpha1.ParseMark(o.ResourceVersion, o.Annotations())
			if err != nil {
				return step, false, err
			}
			mark.AddTo(&state.Digests, &whole)
			if mark.Ends {
				state.Version = mark.Version
				step.Mark = state.encode()
				return step, mark.Restored, nil
			}
		case input == "": // of a newer hub
		case event.Type == watch.Deleted:
			step.Put(input, name, nil)
		default:
			step.Put(input, name, o)
		}
	}
	return step, false, errEnded
}

// shareFollower follows this node's share at a hub.
type shareFollower struct {
	// group makes requests as others of the program are made. It has no sources.
	group  *follow.Group
	client rest.Interface
	node   string
	facts  *facts.Facts
	random func() float64
	// shown is the version of what is shown, if that is not the share; it is a lower bound for the share.
	shown func() hubv1alpha1.Version
	// stop ends start, and forgets what was received.
	stop func()

	mu sync.Mutex
	// state is guarded by mu.
	state follow.State
	// retry has a value when the next attempt is not to wait.
	retry chan struct{}
}

func newShareFollower(
	config *rest.Config, node string, f *facts.Facts, random func() float64, shown func() hubv1alpha1.Version,
) (*shareFollower, error) {
	group, err := follow.NewGroup(follow.GroupOptions{Config: config})
	if err != nil {
		return nil, err
	}
	s := &shareFollower{
		group: group, node: node, facts: f, random: random, shown: shown, retry: make(chan struct{}, 1),
		state: follow.State{Name: SourceShare}, stop: func() {},
	}
	s.client, err = group.Client(hubv1alpha1.GroupVersion, func(*http.Request) time.Duration {
		s.update(func(state *follow.State) { state.Answered = true })
		return shareSilence
	})
	return s, err
}

// State returns the follower's state.
func (s *shareFollower) State() follow.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *shareFollower) update(change func(*follow.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// reached returns the version of the last step.
func (s *shareFollower) reached() hubv1alpha1.Version {
	state, _ := decodeShareState(s.facts.ShareMark())
	return state.Version
}

// Request makes a GET request for the nodes of the share. agent distinguishes it in the User-Agent.
func (s *shareFollower) Request(agent string) *rest.Request {
	return s.client.Get().AbsPath(hubv1alpha1.SharesPath, s.node).Param("kind", "Node").
		SetHeader("User-Agent", s.group.UserAgent("hub-"+agent)).MaxRetries(0)
}

// Retry makes the next attempt begin at once.
func (s *shareFollower) Retry() {
	select {
	case s.retry <- struct{}{}:
	default:
	}
}

// start begins to follow the share, until stop is called or ctx is done. What comes is applied to the facts.
func (s *shareFollower) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	s.update(func(state *follow.State) { state.Started = true })
	go func() {
		defer close(done)
		s.run(ctx)
	}()
	s.stop = func() {
		cancel()
		<-done
		s.update(func(state *follow.State) {
			*state = follow.State{Name: SourceShare, Lists: state.Lists, LastContact: state.LastContact}
		})
	}
}

func (s *shareFollower) run(ctx context.Context) {
	pause := follow.Pauses(s.random)
	for {
		began, steps := time.Now(), 0
		err := s.follow(ctx, func() {
			pause = follow.Pauses(s.random)
			steps++
		})
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errEnded) && steps > 0 && time.Since(began) >= shortStream {
			continue
		}
		s.fail(ctx, err)
		timer := time.NewTimer(max(pause(), follow.RetryAfter(err)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.retry:
		}
		timer.Stop()
	}
}

// open begins a stream. state names what is there already, if it is known.
func (s *shareFollower) open(ctx context.Context, state *shareState, known bool) (watch.Interface, error) {
	version := s.shown()
	for part := range version {
		version[part] = max(version[part], state.Version[part])
	}
	seconds := int64((shareTimeout + time.Duration(s.random()*float64(shareTimeout))).Seconds())
	request := s.client.Get().AbsPath(hubv1alpha1.SharesPath).
		Param("watch", "true").Param("allowWatchBookmarks", "true").
		Param("fieldSelector", "metadata.name="+s.node).Param("resourceVersion", version.String()).
		Param("timeoutSeconds", strconv.FormatInt(seconds, 10)).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch,"+runtime.ContentTypeProtobuf).
		SetHeader("User-Agent", s.group.UserAgent("hub-share")).MaxRetries(0)
	if known {
		request.SetHeader(hubv1alpha1.DigestsHeader, state.Digests.String())
	}
	return request.Watch(ctx)
}

// follow follows one stream to its end. progress is called after every step.
func (s *shareFollower) follow(ctx context.Context, progress func()) error {
	state, known := decodeShareState(s.facts.ShareMark())
	stream, err := s.open(ctx, state, known)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for {
		before := state.Version
		step, restored, err := nextStep(stream.ResultChan(), state)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if restored {
			klog.FromContext(ctx).Info("The API server was restored from a backup, going back to what it has",
				"version", state.Version, "known", before)
		}
		s.facts.ApplyShare(step)
		s.update(func(now *follow.State) {
			if !now.Synced {
				now.Lists++
			}
			now.Synced, now.Err, now.Forbidden, now.Absent = true, nil, false, false
			now.LastContact, now.ResourceVersion = time.Now(), state.Version.String()
		})
		progress()
	}
}

// lastingRefusal is how long the hub must refuse for that to be more than a moment.
const lastingRefusal = 30 * time.Second

// fail notes why an attempt failed.
func (s *shareFollower) fail(ctx context.Context, err error) {
	s.update(func(state *follow.State) {
		if state.Err == nil || state.Err.Error() != err.Error() {
			klog.FromContext(ctx).Info("Cannot follow the share, trying again",
				"err", err, "lastContact", state.LastContact)
		}
		if state.Err == nil {
			state.FailingSince = time.Now()
		}
		state.Err = err
		refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
		state.Forbidden = refused && time.Since(state.FailingSince) >= lastingRefusal
		state.Absent = !state.Synced && apierrors.IsNotFound(err)
	})
}
