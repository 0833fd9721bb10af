package view

// What tests of other packages of this directory need to know.
const (
	MaxUnits = maxUnits
	UnitIdle = unitIdle
)

// Held is how many entries a View keeps besides its History.
func Held(v *View) int { return len(v.decided) + len(v.counts) }
