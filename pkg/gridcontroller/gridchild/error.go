package gridchild

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// longestMessage is the largest size of a message in a status, in bytes.
const longestMessage = 400

// Error says why a child cannot be made, or why a grid is not valid.
type Error struct {
	// Reason is one of the reasons in package v1. Message advises the user what to change.
	Reason, Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error.
func Errorf(reason, format string, args ...any) error {
	return &Error{reason, fmt.Sprintf(format, args...)}
}

// ErrorFrom returns the Error in err, or makes one of err with the reason SyncFailed.
func ErrorFrom(err error) Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return *known
	}
	return Error{v1.ReasonSyncFailed, Shorten(err.Error())}
}

// typingError recognises the API server's answer to a template that does not fit its types, or in which entries of a
// list have the same key: Kubernetes creates such objects, but server-side apply could not tell which manager owns
// which entry. The answer is an internal error, and only its message shows the cause.
var typingError = regexp.MustCompile("failed to create typed patch object|unable to convert|cannot unmarshal")

// Rejected returns an Error if the API server refused an object because of its content, and any other error unchanged.
func Rejected(err error) error {
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsMethodNotSupported(err) ||
		(apierrors.IsInternalError(err) && typingError.MatchString(err.Error())) {
		return Errorf(v1.ReasonRejected, "%s", Shorten(err.Error()))
	}
	return err
}

// Shorten makes one line of a text, of limited length.
func Shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= longestMessage {
		return text
	}
	return strings.ToValidUTF8(text[:longestMessage], "") + "…" // without a part of a character
}
