package gridchild

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// longestMessage is the most bytes of a message in a status.
const longestMessage = 400

// Error says why a child cannot be made, or why a grid is not valid.
type Error struct {
	// Reason is one of the reasons in package v1. Message tells the user what to change.
	Reason, Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error.
func Errorf(reason, format string, args ...any) error {
	return &Error{reason, fmt.Sprintf(format, args...)}
}

// Tellable returns the Error in err, or makes one of err with the reason SyncFailed.
func Tellable(err error) Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return *known
	}
	return Error{v1.ReasonSyncFailed, Shorten(err.Error())}
}

// typingError recognises the API server's answer to a template that does not fit its types. That is an internal error
// like others, so only the text of its message tells.
var typingError = regexp.MustCompile("failed to create typed patch object|unable to convert|cannot unmarshal")

// Refused reports whether the API server refused an object because of its content.
func Refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsMethodNotSupported(err) || (apierrors.IsInternalError(err) && typingError.MatchString(err.Error()))
}

// Shorten makes one line of a text, of limited length.
func Shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= longestMessage {
		return text
	}
	return strings.ToValidUTF8(text[:longestMessage], "") + "…" // a character is not cut
}
