package view

import (
	"github.com/application-grid/application-grid/pkg/storage/history"
)

// What tests of other packages of this directory need to know.
const (
	MaxSites = maxSites
	SiteIdle = siteIdle
)

// Held is how many entries a View keeps besides its History.
func Held(v *View) int { return len(v.choices) + len(v.counts) }

// History is that of the View of a site.
func (u *Sites) History(site string) (*history.History, func(), error) {
	v, release, err := u.View(site)
	if err != nil {
		return nil, nil, err
	}
	return v.History(), release, nil
}
