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
	// maxSites is the most sites that have a View at a time. A View takes about as much memory as what its site sees.
	maxSites = 16
	// siteIdle is how long a View without requests is kept.
	siteIdle = 15 * time.Minute
	// siteLogBytes is that of the histories of sites, unless Options say otherwise. There is a client or two for each,
	// and one that falls off the end lists again from the same node.
	siteLogBytes = 384 << 10
)

// ErrTooManySites means that as many sites as may have a View have requests under way.
var ErrTooManySites = errors.New("too many sites are in use at a time")

// Sites has a View for every site for which there are requests. A View is made for the first request for its site. It
// is closed 15 minutes after the last request has ended, or earlier if another site needs its place. All sites without
// nodes share one View, that of Nobody. The methods may be called from any goroutine.
type Sites struct {
	// options are the options of the Views, without the Viewer.
	options Options

	mu    sync.Mutex
	views map[string]*siteView // guarded by mu
	// nobodys counts the requests under way for sites that are shown the View of Nobody, which has the name "". Guarded
	// by mu.
	nobodys map[string]int
	// former has the sites that had a View of their own, and were not shown that of Nobody since. Guarded by mu.
	former map[string]struct{}
}

type siteView struct {
	// made is closed once view is set.
	made chan struct{}
	view *View
	// users counts the requests under way. Guarded by Sites.mu.
	users int
	// used is when the last request ended. Guarded by Sites.mu.
	used time.Time
	// idle is the timer that closes the View. Guarded by Sites.mu.
	idle *time.Timer
}

// NewSites makes Sites. The Viewer of the options is not used.
func NewSites(options Options) *Sites {
	options.History.LogBytes = cmp.Or(options.History.LogBytes, siteLogBytes)
	u := &Sites{
		options: options,
		views:   make(map[string]*siteView),
		nobodys: make(map[string]int),
		former:  make(map[string]struct{}),
	}
	options.Facts.Attach(u, func(facts.Reader) {})
	return u
}

// View returns the View of a site for one request. The caller must call release when the request ends. Error:
// ErrTooManySites.
func (u *Sites) View(site string) (shown *View, release func(), err error) {
	inhabited := site != "" && u.options.Facts.HasSite(site)
	name, v, made, ended, err := u.enter(site, inhabited)
	if ended != nil {
		<-ended.made
		ended.view.Close()
	}
	if err != nil {
		return nil, nil, err
	}
	if made {
		options := u.options
		options.Viewer = Site(name)
		v.view = New(options)
		close(v.made)
	}
	<-v.made
	if name == "" && site != "" && u.options.Facts.HasSite(site) {
		// A node of the site came before FactsChanged could know of this request.
		u.endNobody()
	}
	return v.view, func() { u.leave(site, name, v) }, nil
}

// enter counts a request for a site. name is that of the View for it: the site's own, or "" for that of Nobody. If made
// is set, the caller must make the View. If ended is not nil, the caller must close it.
func (u *Sites) enter(site string, inhabited bool) (name string, v *siteView, made bool, ended *siteView, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name = site
	if own := u.views[site]; own == nil && !inhabited {
		name = ""
	}
	_, hadOwn := u.former[site]
	if nobody := u.views[""]; name == "" && hadOwn && nobody != nil {
		// A client of the site's former View could resume its watch in this one. This one never had the site's
		// endpoints, so it has no events for their removal. In a new View the client must list again.
		u.remove("", nobody)
		ended = nobody
	}
	v = u.views[name]
	if v == nil {
		if len(u.views) >= maxSites {
			if ended = u.takeLeastUsed(); ended == nil {
				return "", nil, false, nil, ErrTooManySites
			}
		}
		v, made = &siteView{made: make(chan struct{})}, true
		u.views[name] = v
	}
	if name == "" {
		u.nobodys[site]++
		delete(u.former, site)
	} else {
		u.former[site] = struct{}{}
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
func (u *Sites) takeLeastUsed() *siteView {
	least := ""
	var found *siteView
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
func (u *Sites) remove(name string, v *siteView) {
	delete(u.views, name)
	if name == "" {
		clear(u.nobodys)
	}
	if v.idle != nil {
		v.idle.Stop()
	}
}

// leave counts the end of a request for a site, which was answered from the View with that name.
func (u *Sites) leave(site, name string, v *siteView) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if name == "" && u.views[""] == v {
		if u.nobodys[site]--; u.nobodys[site] == 0 {
			delete(u.nobodys, site) // its name is the caller's, and may be long
		}
	}
	v.users--
	v.used = time.Now()
	if v.users > 0 || u.views[name] != v {
		return
	}
	v.idle = time.AfterFunc(siteIdle, func() {
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

// FactsChanged implements facts.Watcher. If a site that is shown the View of Nobody has a node now, it ends that View:
// its clients must list again, and the site gets a View of its own.
func (u *Sites) FactsChanged(in facts.Reader, c *facts.Change) {
	if len(c.Relabelled) == 0 && !c.Keys {
		return
	}
	u.mu.Lock()
	asked := slices.Collect(maps.Keys(u.nobodys))
	u.mu.Unlock()
	if slices.ContainsFunc(asked, func(site string) bool { return site != "" && in.Inhabited(site) }) {
		u.endNobody()
	}
}

func (u *Sites) endNobody() {
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

// Len returns the number of Views.
func (u *Sites) Len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.views)
}
