package view

import (
	"cmp"
	"errors"
	"sync"
	"time"
)

const (
	// maxSites is the largest number of sites that have a View at a time. A View takes about as much memory as the
	// objects that its site sees.
	maxSites = 16
	// siteIdle is how long a View without requests is kept.
	siteIdle = 15 * time.Minute
	// siteLogBytes is the LogBytes of the histories of sites, unless Options set it. Each has a client or two, and one
	// that falls behind the log lists again from the same node.
	siteLogBytes = 384 << 10
)

// ErrTooManySites means that as many sites as may have a View have requests under way.
var ErrTooManySites = errors.New("too many sites are in use at a time")

// Sites has a View for every site for which there are requests, whether the site has nodes or not. A View is made for
// the first request for its site. It is closed 15 minutes after the last request has ended, or earlier if another site
// needs its place. The methods may be called from any goroutine.
type Sites struct {
	// options are the options of the Views, without the Viewer.
	options Options

	mu    sync.Mutex
	views map[string]*siteView // guarded by mu
}

type siteView struct {
	// view makes the View when it is first called.
	view func() *View
	// users counts the requests under way. Guarded by Sites.mu.
	users int
	// used is when the last request ended, and idle the timer that drops the View then. Guarded by Sites.mu.
	used time.Time
	idle *time.Timer
}

// NewSites makes Sites. The Viewer of the options is not used.
func NewSites(options Options) *Sites {
	options.History.LogBytes = cmp.Or(options.History.LogBytes, siteLogBytes)
	return &Sites{options: options, views: make(map[string]*siteView)}
}

// View returns the View of a site for one request. The caller must call release when the request ends. Error:
// ErrTooManySites.
func (u *Sites) View(site string) (shown *View, release func(), err error) {
	v := u.enter(site)
	if v == nil {
		return nil, nil, ErrTooManySites
	}
	return v.view(), func() { u.leave(site, v) }, nil
}

// enter counts a request for a site. It returns nil if too many sites have a View that is in use.
func (u *Sites) enter(site string) *siteView {
	u.mu.Lock()
	defer u.mu.Unlock()
	v := u.views[site]
	if v == nil {
		if len(u.views) >= maxSites && !u.dropLeastUsed() {
			return nil
		}
		options := u.options
		options.Viewer = Site(site)
		v = &siteView{view: sync.OnceValue(func() *View { return New(options) })}
		u.views[site] = v
	}
	v.users++
	return v
}

// dropLeastUsed drops the View that was not used for the longest time, and reports whether one was not in use. It is
// called with the lock held.
func (u *Sites) dropLeastUsed() bool {
	var least string
	var found *siteView
	for name, v := range u.views {
		if v.users == 0 && (found == nil || v.used.Before(found.used)) {
			least, found = name, v
		}
	}
	if found != nil {
		u.drop(least)
	}
	return found != nil
}

// drop closes the View of a site. It is called with the lock held.
func (u *Sites) drop(site string) {
	u.views[site].view().Close()
	delete(u.views, site)
}

// leave counts the end of a request for a site.
func (u *Sites) leave(site string, v *siteView) {
	u.mu.Lock()
	defer u.mu.Unlock()
	v.users--
	v.used = time.Now()
	if v.idle != nil {
		v.idle.Reset(siteIdle)
		return
	}
	v.idle = time.AfterFunc(siteIdle, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if v.users == 0 && u.views[site] == v {
			u.drop(site)
		}
	})
}

// Len returns the number of Views.
func (u *Sites) Len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.views)
}
