package view

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
)

const (
	// maxUnits is how many units have a View at a time. Each costs about as much as what its unit sees.
	maxUnits = 16
	// unitIdle is how long a View that nobody asks stays.
	unitIdle = 15 * time.Minute
)

// ErrTooManyUnits means that as many units are asked for as there may be, all of them by requests under way.
var ErrTooManyUnits = errors.New("too many units are asked for at a time")

// Units has a View for every unit that somebody asks for. A View is made when the first request for its unit comes,
// and goes when nobody has asked for 15 minutes, or earlier if it makes room for another. All units that no node is of
// share one View, that of Nobody. The methods may be called from any goroutine.
type Units struct {
	// options are those of the Views, without the Viewer.
	options Options

	mu    sync.Mutex
	views map[string]*unitView // guarded by mu
	// nobodys are the units that are shown the View of Nobody, under the name "". Guarded by mu.
	nobodys map[string]struct{}
	// former are the units that had a View of their own, and were not shown that of Nobody since. Guarded by mu.
	former map[string]struct{}
}

// unitView is the View of one unit.
type unitView struct {
	// made is closed once view is set.
	made chan struct{}
	view *View
	// users are the requests under way. Guarded by Units.mu.
	users int
	// used is when the last one ended. Guarded by Units.mu.
	used time.Time
	// idle ends the View. Guarded by Units.mu.
	idle *time.Timer
}

// NewUnits makes Units. The Viewer of the options is not used.
func NewUnits(options Options) *Units {
	u := &Units{options: options, views: make(map[string]*unitView), nobodys: make(map[string]struct{}), former: make(map[string]struct{})}
	options.Facts.Attach(u, func() {})
	return u
}

// History is what a unit is served from, for one request; release is to be called when the request ends. Error:
// ErrTooManyUnits.
func (u *Units) History(unit string) (h *history.History, release func(), err error) {
	v, release, err := u.View(unit)
	if err != nil {
		return nil, nil, err
	}
	return v.History(), release, nil
}

// View is what a unit is shown, for one request; release is to be called when the request ends. Error: ErrTooManyUnits.
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
		// A node of the unit came before FactsChanged could know that somebody asks.
		u.endNobody()
	}
	return v.view, func() { u.leave(name, v) }, nil
}

// enter counts a request in, at the View of this name: the unit's own, or "" for that of Nobody. made says that the
// caller is to make the View, ended is one that the caller is to close.
func (u *Units) enter(unit string, inhabited bool) (name string, v *unitView, made bool, ended *unitView, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name = unit
	if own := u.views[unit]; own == nil && !inhabited {
		name = ""
	}
	_, hadOwn := u.former[unit]
	_, isNobodys := u.nobodys[unit]
	if nobody := u.views[""]; name == "" && hadOwn && !isNobodys && nobody != nil {
		// A client of the View that the unit had could go on in this one, which never had the unit's endpoints and so
		// does not say that they are gone. In a new one it has to list again.
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
		u.nobodys[unit] = struct{}{}
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

// takeLeastUsed removes the View that nobody has used for the longest time; nil if all are in use. It is called with the
// lock held.
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

// remove is called with the lock held.
func (u *Units) remove(name string, v *unitView) {
	delete(u.views, name)
	if name == "" {
		clear(u.nobodys)
	}
	if v.idle != nil {
		v.idle.Stop()
	}
}

// leave counts a request out.
func (u *Units) leave(name string, v *unitView) {
	u.mu.Lock()
	defer u.mu.Unlock()
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

// FactsChanged implements facts.Watcher: a unit that has a node now is not Nobody's any more. Its clients are told to
// list again, and get a View of their own.
func (u *Units) FactsChanged(c *facts.Change) {
	if len(c.Relabelled) == 0 && !c.Keys {
		return
	}
	u.mu.Lock()
	asked := slices.Collect(maps.Keys(u.nobodys))
	u.mu.Unlock()
	if slices.ContainsFunc(asked, func(unit string) bool { return unit != "" && u.options.Facts.Inhabited(unit) }) {
		u.endNobody()
	}
}

// endNobody ends the View of Nobody.
func (u *Units) endNobody() {
	u.mu.Lock()
	defer u.mu.Unlock()
	v := u.views[""]
	if v == nil {
		return
	}
	u.remove("", v)
	// Within a step of the facts nothing can be detached from them.
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

// Len is the number of Views.
func (u *Units) Len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.views)
}
