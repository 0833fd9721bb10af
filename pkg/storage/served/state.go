package served

import "errors"

// State says whether a resource can be read.
type State int

// The states of a resource.
const (
	// NotReady resources are not complete yet; an answer would be incomplete.
	NotReady State = iota
	// Ready resources are served.
	Ready
	// Absent resources are not served by the upstream.
	Absent
)

// Errors for readers.
var (
	// ErrNotReady means that the state is not complete yet, or older than a state that the reader has seen.
	ErrNotReady = errors.New("not synced with the upstream yet")
	// ErrAbsent means that the upstream does not serve the resource.
	ErrAbsent = errors.New("not served by the upstream")
)

// Err returns nil for a resource that can be read, and ErrNotReady or ErrAbsent otherwise.
func (s State) Err() error {
	switch s {
	case Ready:
		return nil
	case Absent:
		return ErrAbsent
	default:
		return ErrNotReady
	}
}
