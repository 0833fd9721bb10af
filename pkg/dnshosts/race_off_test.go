//go:build !race

package dnshosts

// raceDetector is off.
const raceDetector = false
