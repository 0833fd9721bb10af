//go:build race

package dnshosts

// raceDetector takes several times the memory.
const raceDetector = true
