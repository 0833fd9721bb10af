package served

import "errors"

// Errors for readers of a resource.
var (
	// ErrNotReady means that the state is not complete yet, so that an answer would be incomplete, or that it is older
	// than a state that the reader has seen.
	ErrNotReady = errors.New("not synced with the upstream yet")
	// ErrAbsent means that the upstream does not serve the resource.
	ErrAbsent = errors.New("not served by the upstream")
)
