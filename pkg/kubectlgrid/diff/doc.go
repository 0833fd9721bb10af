// Package diff is what kubectl grid diff does: it reads grids from files, and shows with a diff program what applying
// them would change in their children. What would change is computed by package griddiff.
package diff
