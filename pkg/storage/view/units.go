package view

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// maxUnits is the most units that have a View at a time. A View takes about as much memory as what its unit sees.
	maxUnits = 16
	// unitIdle is how long a View without requests is kept.
	unitIdle = 15 * time.Minute
	// unitLogBytes and unitRetiredBytes are those of the histories of units, unless Options say otherwise. There is a
	// client or two for each, and one that falls off the end lists again from the same node.
	unitLogBytes, unitRetiredBytes = 256 << 10, 128 << 10
)

// ErrTooManyUnits means that as many units as may have a View have requests under way.
var ErrTooManyUnits = errors.New("too many units are in use at a time")

// Units has a View for every unit for which there are requests. A View is made for the first request for its unit. It
// is closed 15 minutes after the last request has ended, or earlier if another unit needs its place. All units without
// nodes share one View, that of Nobody. The methods may be called from any goroutine.
type Units struct {
	// options are the options of the Views, without the Viewer.
	options Options

	mu    sync.Mutex
	views map[string]*unitView // guarded by mu
	// nobodys counts the requests under way for units that are shown the View of Nobody, which has the name "". Guarded
	// by mu.
	nobodys map[string]int
	// former has the units that had a View of their own, and were not shown that of Nobody since. Guarded by mu.
	former map[string]struct{}
}

type unitView struct {
	// made is closed once view is set.
	made chan struct{}
	view *View
	// users counts the requests under way. Guarded by Units.mu.
	users int
	// used is when the last request ended. Guarded by Units.mu.
	used time.Time
	// idle is the timer that closes the View. Guarded by Units.mu.
	idle *time.Timer
}

// NewUnits makes Units. The Viewer of the options is not used.
func NewUnits(options Options) *Units {
	options.History.LogBytes = cmp.Or(options.History.LogBytes, unitLogBytes)
	options.History.RetiredBytes = cmp.Or(options.History.RetiredBytes, unitRetiredBytes)
	u := &Units{
		options: options,
		views:   make(map[string]*unitView),
		nobodys: make(map[string]int),
		former:  make(map[string]struct{}),
	}
	options.Facts.Attach(u, func(facts.Reader) {})
	return u
}

// View returns the View of a unit for one request. The caller must call release when the request ends. Error:
// ErrTooManyUnits.
func (u *Units) View(unit string) (shown *View, release func(), err error) {
	inhabited := unit != "" && u.options.Facts.HasUnit(unit)
	name, v, made, ended, err := u.enter(unit, inhabited)
	if ended != nil {
		<-ended.made
		ended.view.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	if made {
		options := u.options
		options.Viewer = Unit(name)
		v.view = New(options)
		close(v.made)
	}
	<-v.made
	if name == "" && unit != "" && u.options.Facts.HasUnit(unit) {
		// A node of the unit came before FactsChanged could know of this request.
		u.endNobody()
	}
	return v.view, func() { u.leave(unit, name, v) }, nil
}

// enter counts a request for a unit. name is that of the View for it: the unit's own, or "" for that of Nobody. If made
// is set, the caller must make the View. If ended is not nil, the caller must close it.
func (u *Units) enter(unit string, inhabited bool) (name string, v *unitView, made bool, ended *unitView, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name = unit
	if own := u.views[unit]; own == nil && !inhabited {
		name = ""
	}
	_, hadOwn := u.former[unit]
	if nobody := u.views[""]; name == "" && hadOwn && nobody != nil {
		// A client of the unit's former View could resume its watch in this one. This one never had the unit's
		// endpoints, so it has no events for their removal. In a new View the client must list again.
		u.remove("", nobody)
		ended = nobody
	}
	v = u.views[name]
	if v == nil {
		if len(u.views) >= maxUnits {
			if ended = u.takeLeastUsed(); ended == nil {
				return "", nil, false, nil, ErrTooManyUnits
			}
		}
		v, made = &unitView{made: make(chan struct{})}, true
		u.views[name] = v
	}
	if name == "" {
		u.nobodys[unit]++
		delete(u.former, unit)
	} else {
		u.former[unit] = struct{}{}
	}
	v.users++
	if v.idle != nil {
		v.idle.Stop()
		v.idle = nil
	}
	return name, v, made, ended, nil
}

// takeLeastUsed removes the View that was not used for the longest time, and returns it; nil if all are in use. It is
// called with the lock held.
func (u *Units) takeLeastUsed() *unitView {
	least := ""
	var found *unitView
	for name, v := range u.views {
		if v.users == 0 && (found == nil || v.used.Before(found.used)) {
			least, found = name, v
		}
	}
	if found != nil {
		u.remove(least, found)
	}
	return found
}

// remove removes a View. It is called with the lock held.
func (u *Units) remove(name string, v *unitView) {
	delete(u.views, name)
	if name == "" {
		clear(u.nobodys)
	}
	if v.idle != nil {
		v.idle.Stop()
	}
}

// leave counts the end of a request for a unit, which was answered from the View with that name.
func (u *Units) leave(unit, name string, v *unitView) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if name == "" && u.views[""] == v {
		if u.nobodys[unit]--; u.nobodys[unit] == 0 {
			delete(u.nobodys, unit) // its name is the caller's, and may be long
		}
	}
	v.users--
	v.used = time.Now()
	if v.users > 0 || u.views[name] != v {
		return
	}
	v.idle = time.AfterFunc(unitIdle, func() {
		u.mu.Lock()
		gone := v.users == 0 && u.views[name] == v
		if gone {
			u.remove(name, v)
		}
		u.mu.Unlock()
		if gone {
			v.view.Close()
		}
	})
}

// FactsChanged implements facts.Watcher. If a unit that is shown the View of Nobody has a node now, it ends that View:
// its clients must list again, and the unit gets a View of its own.
func (u *Units) FactsChanged(in facts.Reader, c *facts.Change) {
	if len(c.Relabelled) == 0 && !c.Keys {
		return
	}
	u.mu.Lock()
	asked := slices.Collect(maps.Keys(u.nobodys))
	u.mu.Unlock()
	if slices.ContainsFunc(asked, func(unit string) bool { return unit != "" && in.Inhabited(unit) }) {
		u.endNobody()
	}
}

func (u *Units) endNobody() {
	u.mu.Lock()
	defer u.mu.Unlock()
	v := u.views[""]
	if v == nil {
		return
	}
	u.remove("", v)
	// This may be called within a step of the facts, in which a View cannot be detached from them.
	go func() {
		<-v.made
		v.view.Close()
	}()
}

// EndAll ends all Views. Their clients have to ask again.
func (u *Units) EndAll() {
	u.mu.Lock()
	ended := slices.Collect(maps.Values(u.views))
	for name, v := range maps.Clone(u.views) {
		u.remove(name, v)
	}
	u.mu.Unlock()
	for _, v := range ended {
		<-v.made
		v.view.Close()
	}
}

// Len returns the number of Views.
func (u *Units) Len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.views)
}
