package view

import (
	"github.com/application-grid/application-grid/pkg/storage/history"
)

// What tests of other packages of this directory need to know.
const (
	MaxUnits = maxUnits
	UnitIdle = unitIdle
)

// Held is how many entries a View keeps besides its History.
func Held(v *View) int { return len(v.decided) + len(v.counts) }

// History is that of the View of a unit.
func (u *Units) History(unit string) (*history.History, func(), error) {
	v, release, err := u.View(unit)
	if err != nil {
		return nil, nil, err
	}
	return v.History(), release, nil
}
