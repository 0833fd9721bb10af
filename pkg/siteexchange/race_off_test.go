//go:build !race

package siteexchange

const raceDetector = false
