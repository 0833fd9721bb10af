//go:build race

package siteexchange

// raceDetector takes many times the time.
const raceDetector = true
