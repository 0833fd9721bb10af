//go:build race

package exchange

// raceDetector takes many times the time.
const raceDetector = true
