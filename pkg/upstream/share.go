package upstream

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/wire"
)

// SourceShare is the name of the source that follows this node's share.
const SourceShare = "share"

const (
	// shareTimeout is how long a stream lasts at least; it lasts up to twice that.
	shareTimeout = 30 * time.Minute
	// shareSilence is how long a stream may be silent: the hub sends a sign of life every half a minute.
	shareSilence = 75 * time.Second
	// shortStream is how long a stream must last for the next one to begin at once.
	shortStream = time.Second
	// maxFrame is the most bytes of one frame. By default etcd stores no object above 1.5 MiB.
	maxFrame = 64 << 20
)

// shareInputs are the inputs that objects of a share go to, by their kind in its frames. resource is what the hub calls
// the kind.
var shareInputs = map[string]struct{ input, resource string }{
	"Service":               {facts.InputServices, "services"},
	"EndpointSlice":         {facts.InputEndpointSlices, "endpointslices"},
	"Node":                  {facts.InputNode, "nodes"},
	"PartialObjectMetadata": {facts.InputNodes, "labels"},
}

// shareState names the share that the facts have.
type shareState struct {
	version hubv1alpha1.Version
	digests hubv1alpha1.Digests
}

// advance takes in a mark.
func (s *shareState) advance(mark *hubv1alpha1.Mark) {
	s.version = mark.Version
	for bucket, digest := range mark.Digests {
		s.digests[bucket] = digest
	}
}

// encode makes a mark of the facts.
func (s *shareState) encode() []byte {
	encoded, _ := binary.Append(nil, binary.BigEndian, s.version) // arrays of numbers can be encoded
	encoded, _ = binary.Append(encoded, binary.BigEndian, s.digests)
	return encoded
}

// decodeShareState reads what encode returned; nil if it is nothing.
func decodeShareState(encoded []byte) *shareState {
	s := &shareState{}
	n, err := binary.Decode(encoded, binary.BigEndian, &s.version)
	if err == nil {
		_, err = binary.Decode(encoded[n:], binary.BigEndian, &s.digests)
	}
	if err != nil {
		return nil
	}
	return s
}

// objectsOf are objects by input.
type objectsOf map[string]map[types.NamespacedName]*wire.Object

func (a objectsOf) put(input string, o *wire.Object) {
	if a[input] == nil {
		a[input] = make(map[types.NamespacedName]*wire.Object)
	}
	a[input][types.NamespacedName{Namespace: o.Namespace, Name: o.Name}] = o
}

// shareStep is a step of a share, as it was received.
type shareStep struct {
	put     objectsOf
	removed map[string][]types.NamespacedName
	mark    *hubv1alpha1.Mark
}

// isWhole reports whether an object is gone if the step does not have it.
func (s *shareStep) isWhole(input string, name types.NamespacedName) bool {
	for _, kind := range shareInputs {
		if kind.input == input {
			return s.mark.Whole[hubv1alpha1.BucketOf(kind.resource, name)]
		}
	}
	return false
}

// apply makes the step one of the facts. state is that after it; nil if it is not a hub's.
func (s *shareStep) apply(f *facts.Facts, state *shareState) {
	step := facts.ShareStep{Put: make(map[string][]*wire.Object, len(s.put))}
	if state != nil {
		step.Mark = state.encode()
	}
	for input, objects := range s.put {
		step.Put[input] = slices.Collect(maps.Values(objects))
	}
	step.Removed = s.removed
	if s.mark.Whole != [hubv1alpha1.Buckets]bool{} {
		step.Whole = s.isWhole
	}
	f.ApplyShare(step)
}

// merge applies a later step to one that has a whole share.
func (s *shareStep) merge(later *shareStep) {
	for input, objects := range s.put {
		maps.DeleteFunc(objects, func(name types.NamespacedName, _ *wire.Object) bool {
			return later.isWhole(input, name) || slices.Contains(later.removed[input], name)
		})
	}
	for input, objects := range later.put {
		for _, o := range objects {
			s.put.put(input, o)
		}
	}
}

// shareStream is an open stream of steps.
type shareStream struct {
	body   io.ReadCloser
	frames *bufio.Reader
	length [4]byte
}

// errEnded is the end of a stream whose time is over.
var errEnded = errors.New("the hub has ended the stream")

// next reads the next step.
func (s *shareStream) next() (*shareStep, error) {
	step := &shareStep{put: make(objectsOf), removed: make(map[string][]types.NamespacedName)}
	for {
		event, err := s.event()
		if err != nil {
			return nil, err
		}
		kind, message, err := wire.Unwrap(event.Object.Raw)
		if err != nil {
			return nil, fmt.Errorf("decoding a step of the share: %w", err)
		}
		if event.Type == string(watch.Error) {
			status := &metav1.Status{}
			if err := status.Unmarshal(message); err != nil {
				return nil, fmt.Errorf("decoding an error of the share: %w", err)
			}
			return nil, &apierrors.StatusError{ErrStatus: *status}
		}
		o, err := wire.ParseObject(message)
		if err != nil {
			return nil, fmt.Errorf("decoding an object of the share: %w", err)
		}
		if event.Type == string(watch.Bookmark) {
			if step.mark, err = hubv1alpha1.ParseMark(o.ResourceVersion, o.Annotations()); err != nil {
				return nil, err
			}
			for input, names := range step.removed {
				// What one part of a share has no more, another one may have now.
				step.removed[input] = slices.DeleteFunc(names, func(name types.NamespacedName) bool {
					return step.put[input][name] != nil
				})
			}
			return step, nil
		}
		switch input := shareInputs[kind.Kind].input; {
		case input == "": // of a newer hub
		case event.Type == string(watch.Deleted):
			step.removed[input] = append(step.removed[input],
				types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		default:
			step.put.put(input, o)
		}
	}
}

// event reads a frame.
func (s *shareStream) event() (*metav1.WatchEvent, error) {
	if _, err := io.ReadFull(s.frames, s.length[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errEnded
		}
		return nil, fmt.Errorf("reading the share: %w", err)
	}
	n := binary.BigEndian.Uint32(s.length[:])
	if n > maxFrame {
		return nil, fmt.Errorf("the hub sent a frame of %d bytes", n)
	}
	frame := make([]byte, n)
	if _, err := io.ReadFull(s.frames, frame); err != nil {
		return nil, fmt.Errorf("reading the share: %w", err)
	}
	event := &metav1.WatchEvent{}
	if err := event.Unmarshal(frame); err != nil {
		return nil, fmt.Errorf("decoding a frame of the share: %w", err)
	}
	return event, nil
}

func (s *shareStream) close() { _ = s.body.Close() } // nothing more is read from it

// shareFollower follows this node's share at a hub.
type shareFollower struct {
	// group makes requests as others of the program are made. It has no sources.
	group  *follow.Group
	client rest.Interface
	node   string
	facts  *facts.Facts
	random func() float64

	mu sync.Mutex
	// state is guarded by mu.
	state follow.State
	// version is that of the last step; guarded by mu.
	version hubv1alpha1.Version
	// retry has a value when the next attempt is not to wait.
	retry chan struct{}
}

func newShareFollower(config *rest.Config, node string, f *facts.Facts, random func() float64) (*shareFollower, error) {
	group, err := follow.NewGroup(follow.GroupOptions{Config: config})
	if err != nil {
		return nil, err
	}
	s := &shareFollower{
		group: group, node: node, facts: f, random: random, retry: make(chan struct{}, 1),
		state: follow.State{Name: SourceShare},
	}
	s.client, err = group.Client(hubv1alpha1.GroupVersion, s.silence)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Request makes a GET request for the nodes of the share. agent distinguishes it in the User-Agent.
func (s *shareFollower) Request(agent string) *rest.Request {
	return s.client.Get().AbsPath(hubv1alpha1.SharePath(s.node), "api/v1/nodes").
		SetHeader("Accept", runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON).
		SetHeader("User-Agent", s.group.UserAgent("hub-"+agent)).MaxRetries(0)
}

// Retry makes the next attempt begin at once.
func (s *shareFollower) Retry() {
	select {
	case s.retry <- struct{}{}:
	default:
	}
}

// open begins a stream. known names what is there already; nil for nothing. The share is at least of the version.
func (s *shareFollower) open(
	ctx context.Context, version hubv1alpha1.Version, known *shareState,
) (*shareStream, error) {
	seconds := int64((shareTimeout + time.Duration(s.random()*float64(shareTimeout))).Seconds())
	request := s.client.Get().AbsPath(hubv1alpha1.SharesPath).
		Param("watch", "true").Param("allowWatchBookmarks", "true").
		Param("fieldSelector", "metadata.name="+s.node).Param("resourceVersion", version.String()).
		Param("timeoutSeconds", strconv.FormatInt(seconds, 10)).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch,"+runtime.ContentTypeProtobuf).
		SetHeader("Accept-Encoding", "gzip").
		SetHeader("User-Agent", s.group.UserAgent("hub-share")).MaxRetries(0)
	if known != nil {
		request.SetHeader(hubv1alpha1.DigestsHeader, known.digests.String())
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	zip, err := gzip.NewReader(body)
	if err != nil {
		_ = body.Close() // it is of no use
		return nil, fmt.Errorf("reading the share: %w", err)
	}
	return &shareStream{body: body, frames: bufio.NewReader(zip)}, nil
}

// silence notes that a response has begun, and returns how long its body may be silent.
func (s *shareFollower) silence(*http.Request) time.Duration {
	s.update(func(state *follow.State) { state.Answered = true })
	return shareSilence
}

// run follows the share until ctx is done. first, if not nil, is a stream that is open already, and state is what the
// facts have with it.
func (s *shareFollower) run(ctx context.Context, first *shareStream, state *shareState) {
	s.update(func(state *follow.State) { state.Started = true })
	pause := follow.Pauses(s.random)
	for {
		began := time.Now()
		err := s.follow(ctx, first, state, func() { pause = follow.Pauses(s.random) })
		first, state = nil, nil
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errEnded) && time.Since(began) >= shortStream {
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

// follow follows one stream to its end. progress is called after its first step.
func (s *shareFollower) follow(
	ctx context.Context, stream *shareStream, state *shareState, progress func(),
) error {
	if stream == nil {
		state = decodeShareState(s.facts.ShareMark())
		version := hubv1alpha1.Version{}
		if state != nil {
			version = state.version
		}
		var err error
		if stream, err = s.open(ctx, version, state); err != nil {
			return err
		}
		if state == nil {
			state = &shareState{}
		}
	}
	defer stream.close()
	for {
		step, err := stream.next()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if step.mark.Restored {
			klog.FromContext(ctx).Info("The API server was restored from a backup, going back to what it has",
				"version", step.mark.Version, "known", state.version)
		}
		state.advance(step.mark)
		step.apply(s.facts, state)
		s.follows(state.version)
		progress()
	}
}

// follows notes that a step came.
func (s *shareFollower) follows(version hubv1alpha1.Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Synced {
		s.state.Lists++
	}
	s.version = version
	s.state.Synced, s.state.Err, s.state.Forbidden, s.state.Absent = true, nil, false, false
	s.state.LastContact, s.state.ResourceVersion = time.Now(), version.String()
}

// fail notes why an attempt failed.
func (s *shareFollower) fail(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Err == nil || s.state.Err.Error() != err.Error() {
		klog.FromContext(ctx).Info("Cannot follow the share, trying again",
			"err", err, "lastContact", s.state.LastContact)
	}
	if s.state.Err == nil {
		s.state.FailingSince = time.Now()
	}
	s.state.Err = err
	refused := apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)
	s.state.Forbidden = refused && time.Since(s.state.FailingSince) >= lastingRefusal
	s.state.Absent = !s.state.Synced && apierrors.IsNotFound(err)
}

// lastingRefusal is how long the hub must refuse for that to be more than a moment.
const lastingRefusal = 30 * time.Second

// reset forgets what was received, because another way is followed.
func (s *shareFollower) reset() {
	s.update(func(state *follow.State) { *state = follow.State{Name: SourceShare, Lists: state.Lists} })
}
