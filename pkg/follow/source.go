package follow

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/apiclient"
)

const (
	// quiet is how long a watch stays open, without an event, before the source has caught up; and how long it stays
	// open before it counts as one that follows.
	quiet = time.Second
	// settled is when a source has caught up although there are events all the time.
	settled = 5 * time.Second
	// emptyWatches is how many watches in a row end at once with nothing before they are taken for a cache's.
	emptyWatches = 3

	// A watch's timeout is between shortWatch and twice that until a bookmark came, and between longWatch and twice
	// that from then on. A watch that hangs is noticed apiclient.WatchMargin after its timeout, which is 150 s at most;
	// with bookmarks, 150 s after the last thing that came. kube-apiserver sends one within a minute, so only the first
	// watch is short there. An upstream that sends none renews its watches every minute or two, which costs it one
	// request without an answer. The other way, to break every watch that is silent for 150 s, would make errors of
	// watches on which merely nothing happened.
	shortWatch = time.Minute
	longWatch  = 5 * time.Minute

	// refusals is how many refusals of an optional source in a row are lasting, lastingRefusal how long a needed
	// source was refused.
	refusals       = 3
	lastingRefusal = 30 * time.Second

	// longestRetryAfter bounds what an upstream may ask for.
	longestRetryAfter = time.Minute
)

var (
	// ErrFromCache says that the upstream answers from a cache: it is away, or what is behind it.
	ErrFromCache = errors.New("answered from a cache: watches end at once, so the API server behind the upstream " +
		"is away")
	// ErrUnbelievable says why a list of nothing is not believed.
	ErrUnbelievable = errors.New("the list has nothing and no resourceVersion, where something was known: it is not " +
		"believed")
	// ErrNoName is told for an object that cannot be kept because nothing could find it again.
	ErrNoName = errors.New("the upstream sent an object without a name")

	// errEmptyWatch is an end of a watch that may be a cache's, or that of a server that stops.
	errEmptyWatch = errors.New("the watch ended at once, with nothing")
	// errExpired is told when even a watch from a list that was just taken cannot be had.
	errExpired = errors.New("the watch is refused as expired right after the list")
)

// Source follows one resource of the upstream into a Sink. It never gives up.
type Source struct {
	options Options
	group   *Group
	client  rest.Interface

	mu    sync.Mutex
	state State // guarded by mu
	// confirmed is the LastContact that a cache cannot have given. Guarded by mu.
	confirmed time.Time
	// bookmarks is set once the upstream was seen to send them. Guarded by mu.
	bookmarks bool

	// wanted, cancel and ended are guarded by the Group's lock: whether the source is to run, and, while it does, what
	// ends it and what is closed when it has ended.
	wanted bool
	cancel context.CancelFunc
	ended  chan struct{}

	loop
}

// loop is what only the goroutine that follows a source reads and writes.
type loop struct {
	// version is the resourceVersion up to which the source has followed; "" for none.
	version string
	// mustList is set if a watch from version is not enough, mayList if a list is worth a try before it, and exact if
	// version is not to be asked for.
	mustList, mayList, exact bool
	// watches counts those since the last list that were answered.
	watches int
	// empty counts the watches in a row that ended at once with nothing.
	empty int
	// some is set once the upstream had objects of the resource.
	some bool
	// refused counts the refusals in a row, refusedSince is when the first came.
	refused      int
	refusedSince time.Time
	// attempts counts the failures since the source last followed.
	attempts int
	// failing is set from a failure until the upstream answers again.
	failing bool
}

// State is what is known of the source now.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *Source) update(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// Start follows the source from now on, or from Group.Run on if that has not been called. It may be called any number
// of times.
func (s *Source) Start() { s.group.start(s) }

// Stop ends the following. The Sink is not called after it has returned. It may be called any number of times, but not
// from the Sink. A Source that is started again begins with a list.
func (s *Source) Stop() { s.group.stop(s) }

// run follows the source until ctx is done.
func (s *Source) run(ctx context.Context) {
	s.loop = loop{mustList: true}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("source", s.options.Name))
	for {
		err := s.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue
		}
		s.fail(ctx, err)
		s.group.pause(ctx, s, err)
		if ctx.Err() != nil {
			return
		}
	}
}

// attempt lists, if it must, and follows one watch to its end.
func (s *Source) attempt(ctx context.Context) error {
	if s.mustList || s.mayList {
		s.mayList = false
		if err := s.list(ctx); err != nil {
			return err
		}
	}
	return s.watch(ctx)
}

// Request is a GET of the source's resource for another purpose than to follow it. agent is the source's name in its
// User-Agent; see Options.Agent.
func (s *Source) Request(agent string) *rest.Request {
	return s.client.Get().Resource(s.options.Resource.Resource).
		SetHeader("User-Agent", s.group.userAgent(agent)).
		MaxRetries(0)
}

func (s *Source) request(options *metav1.ListOptions) *rest.Request {
	options.LabelSelector, options.FieldSelector = s.options.LabelSelector, s.options.FieldSelector
	agent := s.options.Agent
	if agent == "" {
		agent = s.options.Name
	}
	// The pauses between attempts are the Group's business; client-go would have some of its own.
	request := s.Request(agent).
		NamespaceIfScoped(s.options.Namespace, s.options.Namespace != "").
		SpecificallyVersionedParams(options, parameterCodec, schema.GroupVersion{Version: "v1"})
	if s.options.MetadataOnly {
		suffix := "List"
		if options.Watch {
			suffix = ""
		}
		request.SetHeader("Accept",
			"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata"+suffix+";g=meta.k8s.io;v=v1, "+
				"application/json;as=PartialObjectMetadata"+suffix+";g=meta.k8s.io;v=v1, "+
				runtime.ContentTypeProtobuf+", "+runtime.ContentTypeJSON)
	}
	if options.Watch {
		// Caching proxies hang on compressed streams.
		request.SetHeader("Accept-Encoding", "identity")
	}
	return request
}

// list takes the complete state.
func (s *Source) list(ctx context.Context) error {
	asked := "0"
	switch {
	case s.exact:
		asked = ""
	case s.version != "":
		asked = s.version
	}
	list, err := s.pages(ctx, asked)
	if asked != "" && isVersionRefused(err) {
		// As old as that, or as new, the upstream has none.
		s.exact, asked = true, ""
		list, err = s.pages(ctx, asked)
	}
	if apierrors.IsNotFound(err) {
		s.noteAbsent()
	}
	if err != nil {
		return err
	}
	if err := s.doubt(ctx, list, asked); err != nil {
		return err
	}
	version := list.ResourceVersion
	if version == "" {
		version = list.largestVersion()
	}
	s.group.answered(s)
	s.options.Sink.Replace(list.items)
	s.some = len(list.items) > 0
	newer := isOlder(s.version, version)
	s.version, s.mustList, s.exact, s.watches = version, false, false, 0
	s.accepted()
	now := time.Now()
	s.update(func(state *State) {
		state.Synced, state.Absent = true, false
		state.ResourceVersion = version
		state.Lists++
		if !state.FromCache {
			state.LastContact = now
		} else if newer {
			state.LastContact, s.confirmed = now, now
		}
	})
	s.group.caughtUp(s)
	return nil
}

// pages takes a list, in pages if the upstream gives it so. None is asked for: a caching proxy would keep the last one
// for the whole.
func (s *Source) pages(ctx context.Context, version string) (*objectList, error) {
	all := &objectList{}
	for options := (metav1.ListOptions{ResourceVersion: version}); ; {
		got, err := s.request(&options).Do(ctx).Get()
		if err != nil {
			return nil, err
		}
		page, ok := got.(*objectList)
		if !ok {
			return nil, fmt.Errorf("the upstream sent a %T in place of a list", got)
		}
		for _, o := range page.items {
			if o.Name == "" {
				return nil, ErrNoName
			}
		}
		if all.items == nil {
			all.items = page.items
		} else {
			all.items = append(all.items, page.items...)
		}
		if all.ResourceVersion == "" {
			all.ResourceVersion = page.ResourceVersion
		}
		if page.Continue == "" {
			return all, nil
		}
		// kube-apiserver refuses a resourceVersion beside it.
		options = metav1.ListOptions{Continue: page.Continue}
	}
}

// doubt says why a list is not believed.
func (s *Source) doubt(ctx context.Context, list *objectList, asked string) error {
	if asked != "" && asked != "0" && isOlder(list.ResourceVersion, asked) {
		// Whoever answers so does not keep to the protocol: it is a cache.
		s.fromCache()
		return fmt.Errorf("%w; its list is of resourceVersion %s, and %s was known",
			ErrFromCache, list.ResourceVersion, asked)
	}
	if len(list.items) > 0 || !s.known() {
		return nil
	}
	if list.ResourceVersion == "" {
		return ErrUnbelievable
	}
	if s.options.Witness == nil {
		return nil
	}
	if err := s.options.Witness(ctx); err != nil {
		return fmt.Errorf("there were some, and the list has none any more, which is not believed: %w", err)
	}
	return nil
}

// known reports whether a list of nothing would take something away.
func (s *Source) known() bool {
	if s.some {
		return true
	}
	knower, ok := s.options.Sink.(Knower)
	return ok && knower.Known() > 0
}

// noteAbsent notes a 404. What was served once is not gone for good: that is a gateway that has lost its API server.
func (s *Source) noteAbsent() {
	if !s.options.Optional && s.State().Synced {
		return
	}
	s.options.Sink.SetAbsent()
	s.update(func(state *State) { state.Absent = true })
}

// accepted notes that a request succeeded.
func (s *Source) accepted() {
	s.refused = 0
	s.update(func(state *State) {
		state.Forbidden = false
		if !state.FromCache {
			state.Err = nil
		}
	})
}

// watch follows one watch until it ends. It returns nil if the next attempt may follow at once.
func (s *Source) watch(ctx context.Context) error {
	length := shortWatch
	if s.sawBookmark() {
		length = longWatch
	}
	seconds := int64((length + rand.N(length)).Seconds()) //nolint:gosec // spreads requests, and guards nothing
	w, err := s.request(&metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, ResourceVersion: s.version, TimeoutSeconds: &seconds,
	}).Watch(ctx)
	if err != nil {
		return s.unwatchable(err)
	}
	defer w.Stop()
	s.watches++
	s.group.answered(s)
	s.accepted()

	opened := time.Now()
	progress, caughtUp := false, false
	calm := time.NewTimer(quiet)
	defer calm.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-calm.C:
			caughtUp = true
			s.follows(opened)
			s.group.caughtUp(s)
		case event, open := <-w.ResultChan():
			if !open {
				return s.watchEnded(opened, progress)
			}
			if event.Type == watch.Error {
				return s.unwatchable(apierrors.FromObject(event.Object))
			}
			if s.take(ctx, event) && !progress {
				progress = true
				s.follows(time.Now())
			}
			switch {
			case caughtUp:
			case time.Since(opened) < settled:
				calm.Reset(quiet)
			default:
				calm.Reset(0)
			}
		}
	}
}

// unwatchable is what follows from an error of a watch.
func (s *Source) unwatchable(err error) error {
	if !isVersionRefused(err) {
		if apierrors.IsNotFound(err) {
			s.mustList = true
		}
		return err
	}
	s.mustList = true
	if s.watches > 1 {
		s.empty = 0 // who knows what is too old is no cache
		return nil
	}
	s.exact = true
	return fmt.Errorf("%w: %w", errExpired, err)
}

// watchEnded is what follows from a watch that ended without an error.
func (s *Source) watchEnded(opened time.Time, progress bool) error {
	if progress || time.Since(opened) >= quiet {
		return nil
	}
	s.empty++
	if s.empty < emptyWatches {
		return errEmptyWatch
	}
	s.fromCache()
	// The cache may be one that somebody fills.
	s.mayList = true
	return ErrFromCache
}

// fromCache notes that the upstream answers from a cache. What it said since it was last followed is no contact.
func (s *Source) fromCache() {
	s.update(func(state *State) {
		if !state.FromCache {
			state.FromCache, state.LastContact = true, s.confirmed
		}
	})
}

// follows notes that the upstream was heard of, and not its cache.
func (s *Source) follows(at time.Time) {
	s.empty = 0
	s.update(func(state *State) {
		state.FromCache, state.Err = false, nil
		state.LastContact, s.confirmed = at, at
	})
	s.group.follows(s)
}

// take hands an event on, and reports whether it brought the source on.
func (s *Source) take(ctx context.Context, event watch.Event) bool {
	o, ok := event.Object.(object)
	if !ok {
		klog.FromContext(ctx).Info("Passing over an event that is none of the resource",
			"type", event.Type, "object", fmt.Sprintf("%T", event.Object))
		return false
	}
	switch {
	case event.Type == watch.Bookmark:
	case o.Name == "":
		klog.FromContext(ctx).Error(ErrNoName, "Passing over an event", "type", event.Type)
		return false
	case event.Type == watch.Added, event.Type == watch.Modified:
		s.some = true
		s.options.Sink.Apply(o.Object)
	case event.Type == watch.Deleted:
		s.options.Sink.Remove(o.Namespace, o.Name)
	default:
		klog.FromContext(ctx).Info("Passing over an event of a type that is not known", "type", event.Type)
		return false
	}
	news := o.ResourceVersion != "" && o.ResourceVersion != s.version
	if o.ResourceVersion != "" {
		s.version = o.ResourceVersion
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.ResourceVersion = s.version
	if event.Type == watch.Bookmark {
		s.bookmarks = true
	}
	if news || !s.state.FromCache {
		s.state.LastContact, s.confirmed = now, now
	}
	return news
}

// fail notes why an attempt failed.
func (s *Source) fail(ctx context.Context, err error) {
	if errors.Is(err, errEmptyWatch) {
		// It is too early to say what that is.
		klog.FromContext(ctx).V(2).Info("A watch ended at once, with nothing", "times", s.empty)
		return
	}
	now := time.Now()
	if isRefusal(err) {
		if s.refused == 0 {
			s.refusedSince = now
		}
		s.refused++
	} else {
		s.refused = 0
	}
	lasting := s.refused > 0 && now.Sub(s.refusedSince) >= lastingRefusal
	if s.options.Optional {
		lasting = lasting || s.refused >= refusals
	}
	first := false
	s.update(func(state *State) {
		if !isSame(state.Err, err) {
			klog.FromContext(ctx).Info("Cannot follow the upstream, trying again",
				"err", err, "lastContact", state.LastContact)
		}
		state.Err = err
		first = lasting && !state.Forbidden
		state.Forbidden = lasting
		state.Absent = state.Absent && apierrors.IsNotFound(err)
	})
	if forbidder, ok := s.options.Sink.(Forbidder); ok && first && s.options.Optional {
		forbidder.SetForbidden()
	}
	// Who answers that it refuses is there; that is not an outage, and the end of one is not to wait for it.
	if !s.options.Optional && !isRefusal(err) && !apierrors.IsNotFound(err) {
		s.group.outage.failed(s)
	}
}

func (s *Source) sawBookmark() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bookmarks
}

// silence is how long the body of a response to this source may keep silent.
func (s *Source) silence(r *http.Request) time.Duration {
	s.mu.Lock()
	s.state.Answered = true
	s.mu.Unlock()
	return apiclient.SilenceIn(r, s.sawBookmark())
}

// isSame reports whether an error says nothing new after another one.
func isSame(before, now error) bool {
	return before != nil &&
		(before.Error() == now.Error() || errors.Is(before, ErrFromCache) && errors.Is(now, ErrFromCache))
}

// isRefusal reports whether the upstream refuses the credentials.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// isVersionRefused reports whether the upstream has not, or not any more, what a resourceVersion asks for.
func isVersionRefused(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || isTooLarge(err)
}

// isTooLarge reports whether a resourceVersion is one that the upstream has not reached.
func isTooLarge(err error) bool {
	if !apierrors.IsTimeout(err) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeResourceVersionTooLarge {
			return true
		}
	}
	return false
}

// isOlder reports whether a resourceVersion is less than another one. Those that are no numbers are not comparable.
func isOlder(version, than string) bool {
	a, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return false
	}
	b, err := strconv.ParseUint(than, 10, 64)
	return err == nil && a < b
}
