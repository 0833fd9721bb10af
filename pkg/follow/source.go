package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

const (
	// quiet is how long a watch must be open without an event before the source has caught up. A watch that ends
	// earlier, without an event, may come from a cache.
	quiet = time.Second
	// settled is how long after the start of a watch the source counts as caught up even if events keep arriving.
	settled = 5 * time.Second
	// emptyWatches is how many watches in a row must end at once without an event to count as answers of a cache.
	emptyWatches = 3

	// A watch's timeout is between shortWatch and twice that until the upstream has sent a bookmark, and between
	// longWatch and twice that from then on. A watch that hangs is noticed apiclient.WatchMargin after its timeout, so
	// at most 150 s after its start; with bookmarks, after 150 s of silence. kube-apiserver sends a bookmark within a
	// minute, so only the first watch is short there. With an upstream that sends none, a watch is renewed every minute
	// or two, which costs one request. Breaking every watch that is silent for 150 s would be worse: a watch without
	// changes would fail.
	shortWatch = time.Minute
	longWatch  = 5 * time.Minute

	// A source lists after longBreak without contact, and every listInterval on average. An API server that was
	// restored from a backup may have passed the version that the source has followed up to, and then the versions do
	// not show that. The list replaces all objects by those that exist now.
	longBreak    = 5 * time.Minute
	listInterval = 12 * time.Hour

	// State.Forbidden is set after refusals for lastingRefusal, or for an optional source after this many in a row.
	refusals       = 3
	lastingRefusal = 30 * time.Second

	// longestRetryAfter is the longest Retry-After of an upstream that is respected.
	longestRetryAfter = time.Minute
)

var (
	// ErrFromCache means that the upstream answers from a cache, because the API server behind it is away.
	ErrFromCache = errors.New("answered from a cache: the API server behind the upstream is away")
	// ErrUnbelievable means that an empty list is not used, because it looks like the answer of a proxy that has lost
	// its API server.
	ErrUnbelievable = errors.New("the list is empty and has no resourceVersion, although there were objects before: " +
		"not using it")
	// ErrNoName means that the upstream sent an object without a name, which cannot be stored.
	ErrNoName = errors.New("the upstream sent an object without a name")

	// errEmptyWatch means that a watch ended at once without an event. It may come from a cache, or from a server that
	// stops.
	errEmptyWatch = errors.New("the watch ended at once, without an event")
	// errExpired means that the upstream refused a watch as expired, although its list was just made.
	errExpired = errors.New("the watch is refused as expired right after the list")
)

// Source follows one resource of the upstream into a Sink. It never gives up.
type Source struct {
	options Options
	group   *Group
	client  rest.Interface

	mu    sync.Mutex
	state State // guarded by mu
	// confirmed is the last contact that was certainly not a cache's. Guarded by mu.
	confirmed time.Time
	// bookmarks is set once the upstream has sent a bookmark.
	bookmarks atomic.Bool
	// from is the version from which the source starts; "" for any. Guarded by mu.
	from string
	// relists are the calls of Relist that wait for a list. Guarded by mu.
	relists []chan error
	// relistWanted has a value when there may be relists.
	relistWanted chan struct{}

	// wanted, cancel and ended are guarded by the Group's lock. wanted is set from Start to Stop. While the source
	// runs, cancel ends it; ended is closed when it has ended.
	wanted bool
	cancel context.CancelFunc
	ended  chan struct{}

	loop
}

// next is how the next attempt begins. A later value includes what the earlier ones ask for.
type next int

const (
	// resume continues the watch at the version.
	resume next = iota
	// tryList lists once, and resumes if that fails.
	tryList
	// mustList lists before it watches.
	mustList
	// mustListNewest lists without a resourceVersion, and then watches.
	mustListNewest
)

// loop has the state that is used only by the goroutine that follows a source.
type loop struct {
	// version is the resourceVersion up to which the source has followed; "" for none.
	version string
	next    next
	// watches counts the answered watches since the last list.
	watches int
	// broken is set if a watch has broken, or an attempt failed, since the upstream was last known to have reached the
	// version.
	broken bool
	// listTried is when the source last tried to list. listDue is when it lists again without another reason.
	listTried, listDue time.Time
	// empty counts the watches in a row that ended at once without an event.
	empty int
	// restored is what a Restorable Sink was told last.
	restored bool
	// sentObjects is set if the upstream has sent objects of the resource.
	sentObjects bool
	// refused counts the refusals in a row. refusedSince is the time of the first.
	refused      int
	refusedSince time.Time
	// attempts counts the failures since the source last followed. backoff has its pauses, if it is optional.
	attempts int
	backoff  backoff
	// failing is set from a failure until the upstream answers again.
	failing bool
}

// State returns the source's state.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *Source) updateState(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

// Start begins to follow the source, now or (if Group.Run was not called yet) when Group.Run is called. It may be
// called any number of times.
func (s *Source) Start() {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	s.wanted = true
	s.updateState(func(state *State) { state.Started = true })
	s.group.launch(s)
}

// StartAt makes the source begin with a list of at least a version, "" for any. It is called before the source runs.
func (s *Source) StartAt(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.from = version
}

// Stop stops following the source. After it has returned, the Sink is no longer called. It may be called any number of
// times, but not from the Sink. A Source that is started again begins with a list of at least its version.
func (s *Source) Stop() {
	g := s.group
	g.mu.Lock()
	s.wanted = false
	cancel, ended := s.cancel, s.ended
	s.cancel = nil
	g.mu.Unlock()
	if cancel != nil {
		cancel()
	}
	if ended != nil {
		<-ended
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.wanted {
		return // it was started again meanwhile
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.ResourceVersion != "" {
		s.from = s.state.ResourceVersion
	}
	s.state = State{Name: s.state.Name, Optional: s.state.Optional, Lists: s.state.Lists}
	s.confirmed = time.Time{}
}

// Name returns the source's name.
func (s *Source) Name() string { return s.options.Name }

// Version returns the upstream's resourceVersion up to which the source has followed, even after it was stopped; 0 if
// it is unknown or not a number.
func (s *Source) Version() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	version, err := strconv.ParseUint(cmp.Or(s.state.ResourceVersion, s.from), 10, 64)
	if err != nil {
		return 0
	}
	return version
}

// Relist lists the resource at its newest version, and waits until that list, or a later one, is applied. It returns
// the error of the list. Calls during a list share the next one.
func (s *Source) Relist(ctx context.Context) error {
	done := make(chan error, 1)
	s.relist(done)
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// relist asks for a list; its error goes to done, which has room for it.
func (s *Source) relist(done chan error) {
	s.mu.Lock()
	s.relists = append(s.relists, done)
	s.mu.Unlock()
	select {
	case s.relistWanted <- struct{}{}:
	default:
	}
}

// run follows the source until ctx is done.
func (s *Source) run(ctx context.Context) {
	s.mu.Lock()
	s.loop = loop{
		next: mustList, version: s.from, restored: s.restored, backoff: backoff{random: s.group.backoff.random},
	}
	s.mu.Unlock()
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("source", s.options.Name))
	attempt := s.listAndWatch
	if s.options.Stream != nil {
		attempt = func(ctx context.Context) error { return s.options.Stream(ctx, s.stepped) }
	}
	for ctx.Err() == nil {
		switch err := attempt(ctx); {
		case err != nil && ctx.Err() == nil:
			s.broken = true
			s.noteFailure(ctx, err)
			s.group.awaitRetry(ctx, s, err)
		case s.options.Every > 0:
			s.group.sleep(ctx, s.options.Every)
		}
	}
}

// listAndWatch lists if that is necessary, and follows one watch to its end.
func (s *Source) listAndWatch(ctx context.Context) error {
	s.mu.Lock()
	waiting, confirmed := s.relists, s.confirmed
	s.relists = nil
	s.mu.Unlock()
	if len(waiting) > 0 {
		s.next = mustListNewest
	}
	if s.broken && time.Since(confirmed) > longBreak && time.Since(s.listTried) > longBreak {
		s.next = max(s.next, tryList)
	}
	if s.next != resume {
		if s.next == tryList {
			s.next = resume
		}
		err := s.list(ctx)
		for _, done := range waiting {
			done <- err
		}
		if err != nil {
			var answer apierrors.APIStatus
			if !errors.As(err, &answer) {
				s.listTried = time.Time{} // no API server has answered, so this does not count
			}
			return err
		}
	}
	return s.watch(ctx)
}

// stepped notes a step of Options.Stream.
func (s *Source) stepped(version string) {
	s.group.noteSourceAnswer(s)
	s.version = version
	s.noteSuccess()
	s.updateState(func(state *State) {
		if !state.Synced {
			state.Lists++
		}
		state.Synced, state.Absent, state.ResourceVersion = true, false, version
	})
	s.noteContact(time.Now())
	s.group.outage.noteCaughtUp(s)
}

// verifyVersion asks whether the upstream has reached the version at which a watch begins, if that is not certain. An
// API server that was restored from a backup may not have: it is silent on such a watch, and the source must list.
// It is called when the watch is open, because a later restore breaks the watch.
//
// Only the refusal of the version is proof. An older version in an answer is not, because it may come from a cache. The
// request has its own User-Agent, so that a caching proxy does not keep its answer as the list.
func (s *Source) verifyVersion(ctx context.Context) error {
	if !s.broken || s.version == "" {
		return nil
	}
	err := s.request(&metav1.ListOptions{Limit: 1, ResourceVersion: s.version}).
		SetHeader("User-Agent", s.group.UserAgent(s.agent()+"-version")).Do(ctx).Error()
	switch {
	case isTooLarge(err):
		klog.FromContext(ctx).Info("The API server was restored from a backup, listing again", "known", s.version,
			"reason", err)
		s.next = mustListNewest
		return nil
	case err == nil, isVersionRefused(err), apierrors.IsNotFound(err):
		// It has reached the version, or passed it long ago; or it is a caching proxy, which never gives such an
		// answer.
		s.broken = false
		return nil
	default:
		return err
	}
}

// agent distinguishes the source's requests in the User-Agent.
func (s *Source) agent() string { return cmp.Or(s.options.Agent, s.options.Name) }

// deliver passes a change to the Sink, with the version after it. change is nil for a bookmark.
func (s *Source) deliver(version string, change func()) {
	if sink, ok := s.options.Sink.(Versioned); ok {
		sink.ChangeAt(version, change)
	} else if change != nil {
		change()
	}
}

// Request makes a GET request for the source's resource. Callers use it for other purposes than following it. agent
// distinguishes the request in the User-Agent; see Options.Agent.
func (s *Source) Request(agent string) *rest.Request {
	return s.client.Get().Resource(s.options.Resource.Resource).
		SetHeader("User-Agent", s.group.UserAgent(agent)).
		MaxRetries(0)
}

func (s *Source) request(options *metav1.ListOptions) *rest.Request {
	options.LabelSelector, options.FieldSelector = s.options.LabelSelector, s.options.FieldSelector
	// The Group decides when to try again. Request has turned off client-go's own retries.
	request := s.Request(s.agent()).
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

// list lists the resource, and passes all objects to the Sink.
func (s *Source) list(ctx context.Context) error {
	s.listTried = time.Now()
	s.listDue = s.listTried.Add(longBreak)
	asked := cmp.Or(s.version, "0")
	if s.next == mustListNewest {
		asked = ""
	}
	var away disconnected
	list, err := s.listPages(ctx, asked, &away)
	if asked != "" && isVersionRefused(err) {
		// The upstream does not have a state as old, or as new, as requested.
		if asked = ""; s.next == mustList {
			s.next = mustListNewest
		}
		list, err = s.listPages(ctx, asked, &away)
	}
	// A 404 for a needed source that was listed before comes from a gateway that has lost its API server.
	if apierrors.IsNotFound(err) && (s.options.Optional || !s.State().Synced) {
		s.options.Sink.SetAbsent()
		s.updateState(func(state *State) { state.Absent = true })
	}
	if err != nil {
		return err
	}
	if err := s.verifyList(ctx, list, asked); err != nil {
		return err
	}
	version := list.ResourceVersion
	if version == "" {
		version = list.largestVersion()
	}
	s.group.noteSourceAnswer(s)
	if away {
		s.setRestored(true)
	}
	s.deliver(version, func() { s.options.Sink.Replace(list.Items) })
	if !away {
		s.setRestored(false)
	}
	s.sentObjects = len(list.Items) > 0
	newer := isOlder(s.version, version)
	now := time.Now()
	s.version, s.next, s.watches, s.broken = version, resume, 0, false
	s.listDue = now.Add(listInterval*3/4 + rand.N(listInterval/2)) //nolint:gosec // spreads requests
	s.noteSuccess()
	s.updateState(func(state *State) {
		state.Synced, state.Absent = true, false
		state.ResourceVersion = version
		state.Lists++
		if !state.FromCache {
			state.LastContact = now
		} else if newer {
			state.LastContact, s.confirmed = now, now
		}
	})
	s.group.outage.noteCaughtUp(s)
	return nil
}

// setRestored tells a Restorable Sink whether its objects are restored.
func (s *Source) setRestored(restored bool) {
	if sink, ok := s.options.Sink.(Restorable); ok && restored != s.restored {
		s.restored = restored
		sink.SetRestored(restored)
	}
}

// listPages requests a list and reads all its pages. away is set if a cache without its API server has answered. It
// does not ask for pages (limit), because a caching proxy would keep the last page as the whole list. An upstream may
// send pages nevertheless.
func (s *Source) listPages(ctx context.Context, version string, away *disconnected) (*List, error) {
	all := &List{}
	var reduce func(*wire.Object) *wire.Object
	if reducer, ok := s.options.Sink.(Reducer); ok {
		reduce = reducer.Reduce
	}
	for options := (metav1.ListOptions{ResourceVersion: version}); ; {
		page, err := GetList(ctx, s.request(&options).WarningHandler(away), reduce)
		if err != nil {
			return nil, err
		}
		// A List that does not say of what it is, is believed only with objects: a gateway may send an empty one.
		kind, resource := strings.TrimSuffix(page.Kind, "List"), s.options.Resource.Resource
		if !isOf(resource, kind) || kind == "" && len(page.Items) == 0 {
			return nil, fmt.Errorf("the upstream sent %s in place of a list of %s", page.Kind, resource)
		}
		for _, o := range page.Items {
			if o.Name == "" {
				return nil, ErrNoName
			}
		}
		if all.Items == nil {
			all.Items = page.Items
		} else {
			all.Items = append(all.Items, page.Items...)
		}
		all.ResourceVersion = cmp.Or(all.ResourceVersion, page.ResourceVersion)
		if page.Continue == "" {
			return all, nil
		}
		// kube-apiserver refuses a resourceVersion together with continue.
		options = metav1.ListOptions{Continue: page.Continue}
	}
}

// verifyList returns an error if a list must not be used, because it seems to come from a cache or an empty proxy.
func (s *Source) verifyList(ctx context.Context, list *List, asked string) error {
	if asked != "" && asked != "0" && isOlder(list.ResourceVersion, asked) {
		// An API server never gives such an answer. This is a cache.
		s.markFromCache()
		return fmt.Errorf("%w; its list is of resourceVersion %s, and %s was known",
			ErrFromCache, list.ResourceVersion, asked)
	}
	if len(list.Items) > 0 || !s.hasObjects() {
		return nil
	}
	if list.ResourceVersion == "" {
		return ErrUnbelievable
	}
	if s.options.Witness == nil {
		return nil
	}
	if err := s.options.Witness(ctx); err != nil {
		return fmt.Errorf("the list is empty, although there were objects before: not using it: %w", err)
	}
	return nil
}

// hasObjects reports whether an empty list would remove objects.
func (s *Source) hasObjects() bool {
	if s.sentObjects {
		return true
	}
	counter, ok := s.options.Sink.(ObjectCounter)
	return ok && counter.ObjectCount() > 0
}

// noteSuccess notes that a request succeeded.
func (s *Source) noteSuccess() {
	s.refused = 0
	s.updateState(func(state *State) {
		state.Forbidden, state.ForbiddenSince = false, time.Time{}
		if !state.FromCache {
			state.Err = nil
		}
	})
}

// watch follows one watch until it ends. It returns nil if the next attempt may follow at once.
func (s *Source) watch(ctx context.Context) error {
	length := shortWatch
	if s.bookmarks.Load() {
		length = longWatch
	}
	seconds := int64((length + rand.N(length)).Seconds()) //nolint:gosec // spreads requests, and guards nothing
	var away disconnected
	w, err := s.request(&metav1.ListOptions{
		Watch: true, AllowWatchBookmarks: true, ResourceVersion: s.version, TimeoutSeconds: &seconds,
	}).WarningHandler(&away).Watch(ctx)
	if err != nil {
		return s.watchFailed(err)
	}
	defer w.Stop()
	if err := s.verifyVersion(ctx); err != nil || s.next >= mustList {
		return err
	}
	s.watches++
	held, err := s.watchOpened(ctx, bool(away))
	if err != nil || s.next >= mustList {
		return err
	}
	opened := time.Now()
	progress, caughtUp := false, false
	calm := time.NewTimer(quiet)
	defer calm.Stop()
	due := time.After(time.Until(s.listDue))
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.relistWanted:
			return nil // and the next attempt lists
		case <-due:
			s.next = tryList
			return nil
		case <-calm.C:
			caughtUp = true
			if !held {
				s.noteContact(opened)
				s.group.outage.noteCaughtUp(s)
			}
		case event, open := <-w.ResultChan():
			if !open {
				s.broken = time.Since(opened) < time.Duration(seconds)*time.Second
				return s.watchEnded(opened, progress)
			}
			if event.Type == watch.Error {
				return s.watchFailed(apierrors.FromObject(event.Object))
			}
			if s.deliverEvent(ctx, event) && !progress {
				progress = true
				s.noteContact(time.Now())
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

// watchOpened notes that a watch is open, of a cache if the API server behind the upstream is away. held is set if the
// watch only waits for the API server.
func (s *Source) watchOpened(ctx context.Context, away bool) (held bool, err error) {
	_, restorable := s.options.Sink.(Restorable)
	switch {
	case restorable && !away && s.restored:
		s.next = mustList // for what the cache did not have
		if s.watches == 1 {
			return false, ErrFromCache // the list was its, a moment ago
		}
		return false, nil
	case restorable:
		s.setRestored(away)
	case away:
		s.markFromCache()
		s.noteFailure(ctx, ErrFromCache)
		return true, nil
	}
	s.group.noteSourceAnswer(s)
	s.noteSuccess()
	return false, nil
}

// disconnected is a rest.WarningHandler that notes whether a cache without its API server has answered.
type disconnected bool

func (d *disconnected) HandleWarningHeader(code int, _, _ string) {
	*d = *d || code == apiclient.Disconnected
}

// watchFailed decides how to continue after an error of a watch. It returns nil if the next attempt may follow at once.
func (s *Source) watchFailed(err error) error {
	if !isVersionRefused(err) {
		if apierrors.IsNotFound(err) {
			s.next = mustList
		}
		return err
	}
	if s.watches > 1 {
		s.next, s.empty = mustList, 0 // a cache would not know which resourceVersions are too old
		return nil
	}
	s.next = mustListNewest
	return fmt.Errorf("%w: %w", errExpired, err)
}

// watchEnded decides how to continue after a watch that ended without an error. It returns nil if the next attempt may
// follow at once.
func (s *Source) watchEnded(opened time.Time, progress bool) error {
	if progress || time.Since(opened) >= quiet {
		return nil
	}
	s.empty++
	if s.empty < emptyWatches {
		return errEmptyWatch
	}
	s.markFromCache()
	// Another program may update the cache, so it is worth listing again.
	s.next = tryList
	return ErrFromCache
}

// markFromCache notes that the upstream answers from a cache. Answers since the last confirmed contact do not count as
// contact.
func (s *Source) markFromCache() {
	s.updateState(func(state *State) {
		if !state.FromCache {
			state.FromCache, state.LastContact = true, s.confirmed
		}
	})
}

// noteContact notes an answer that comes from the API server and not from a cache.
func (s *Source) noteContact(at time.Time) {
	s.empty = 0
	s.updateState(func(state *State) {
		state.FromCache, state.Err = false, nil
		state.LastContact, s.confirmed = at, at
	})
	s.group.noteFollowing(s)
}

// deliverEvent passes an event to the Sink, and reports whether it had a new resourceVersion.
func (s *Source) deliverEvent(ctx context.Context, event watch.Event) bool {
	o, ok := event.Object.(Object)
	if !ok || !isOf(s.options.Resource.Resource, o.Kind) {
		klog.FromContext(ctx).Info("Ignoring an event whose object is not of the resource",
			"eventType", event.Type, "objectType", fmt.Sprintf("%T", event.Object))
		return false
	}
	switch {
	case event.Type == watch.Bookmark:
		s.deliver(o.ResourceVersion, nil)
	case o.Name == "":
		klog.FromContext(ctx).Error(ErrNoName, "Ignoring an event", "eventType", event.Type)
		return false
	case event.Type == watch.Added, event.Type == watch.Modified:
		s.sentObjects = true
		object := o.Object
		if reducer, ok := s.options.Sink.(Reducer); ok {
			object = reducer.Reduce(object)
		}
		s.deliver(o.ResourceVersion, func() { s.options.Sink.Apply(object) })
	case event.Type == watch.Deleted:
		s.deliver(o.ResourceVersion, func() { s.options.Sink.Remove(o.Namespace, o.Name) })
	default:
		klog.FromContext(ctx).Info("Ignoring an event of an unknown type", "eventType", event.Type)
		return false
	}
	news := o.ResourceVersion != "" && o.ResourceVersion != s.version
	s.version = cmp.Or(o.ResourceVersion, s.version)
	if event.Type == watch.Bookmark {
		s.bookmarks.Store(true)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.ResourceVersion = s.version
	if news || !s.state.FromCache {
		s.state.LastContact, s.confirmed = now, now
	}
	return news
}

// noteFailure notes why an attempt failed.
func (s *Source) noteFailure(ctx context.Context, err error) {
	if errors.Is(err, errEmptyWatch) {
		// This becomes an error only if it happens several times in a row.
		klog.FromContext(ctx).V(2).Info("A watch ended at once, without an event", "times", s.empty)
		return
	}
	now := time.Now()
	if IsRefusal(err) {
		if s.refused == 0 {
			s.refusedSince = now
		}
		s.refused++
	} else {
		s.refused = 0
	}
	lasting := s.refused > 0 && now.Sub(s.refusedSince) >= lastingRefusal ||
		s.options.Optional && s.refused >= refusals
	first := false
	s.updateState(func(state *State) {
		if !isSame(state.Err, err) {
			klog.FromContext(ctx).Info("Cannot follow the upstream, trying again",
				"err", err, "lastContact", state.LastContact)
		}
		if state.Err == nil {
			state.FailingSince = now
		}
		if !apierrors.IsForbidden(err) {
			state.ForbiddenSince = time.Time{}
		} else if state.ForbiddenSince.IsZero() {
			state.ForbiddenSince = now
		}
		state.Err = err
		first = lasting && !state.Forbidden
		state.Forbidden = lasting
		absent := state.Absent || s.options.Stream != nil && !state.Synced
		state.Absent = absent && apierrors.IsNotFound(err)
	})
	if forbidder, ok := s.options.Sink.(Forbidder); ok && first && s.options.Optional {
		forbidder.SetForbidden()
	}
	// An upstream that refuses is not away. So a refusal is not an outage, and the end of an outage does not wait for
	// this source.
	if !s.options.Optional && !IsRefusal(err) && !apierrors.IsNotFound(err) {
		s.group.outage.noteFailure(s)
	}
}

// noteResponse notes that a response to this source has begun, and returns how long its body may be silent.
func (s *Source) noteResponse(r *http.Request) time.Duration {
	s.updateState(func(state *State) { state.Answered = true })
	switch {
	case s.options.Silence > 0:
		return s.options.Silence
	case s.bookmarks.Load():
		return apiclient.IdleTimeoutWithBookmarks(r)
	default:
		return apiclient.IdleTimeout(r)
	}
}

// isSame reports whether an error has the same text as the one before it, or both mean a cache.
func isSame(before, now error) bool {
	return before != nil &&
		(before.Error() == now.Error() || errors.Is(before, ErrFromCache) && errors.Is(now, ErrFromCache))
}

// IsRefusal reports whether the upstream refuses the credentials.
func IsRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// isVersionRefused reports whether the upstream does not have the requested resourceVersion, or no longer has it.
func isVersionRefused(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || isTooLarge(err)
}

// isTooLarge reports whether the upstream has not reached the requested resourceVersion. Some versions of
// kube-apiserver pass on etcd's error for an exact one.
func isTooLarge(err error) bool {
	return apierrors.IsTimeout(err) && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) ||
		apierrors.IsInternalError(err) && strings.Contains(err.Error(), "required revision is a future revision")
}

// isOlder reports whether a resourceVersion is less than another one. It is false if one of them is not a number.
func isOlder(version, than string) bool {
	a, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return false
	}
	b, err := strconv.ParseUint(than, 10, 64)
	return err == nil && a < b
}
