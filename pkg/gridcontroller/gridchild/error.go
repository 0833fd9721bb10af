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

// Tellable returns the Error in err, or makes one of err with the reason SyncFailed.
func Tellable(err error) Error {
	if known, ok := errors.AsType[*Error](err); ok {
		return *known
	}
	return Error{v1.ReasonSyncFailed, Shorten(err.Error())}
}

// typingError recognises the API server's answer to a template that does not fit its types. The answer is an internal
// error, and only its message shows the cause.
var typingError = regexp.MustCompile("failed to create typed patch object|unable to convert|cannot unmarshal")

// Refused reports whether the API server refused an object because of its content.
func Refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsMethodNotSupported(err) || (apierrors.IsInternalError(err) && typingError.MatchString(err.Error()))
}

// listedTwice finds the lists in which entries occur twice, and their keys, in the API server's answer.
var listedTwice = regexp.MustCompile(`(\.\S+): duplicate entries for key (\[[^]]*\])`)

// Rejected returns the Error for the answer of an API server that Refused an object.
//
// Kubernetes creates objects in which entries of a list have the same key, with a warning or without. Server-side apply
// refuses them, because it could not tell which manager owns which entry.
func Rejected(err error) error {
	text := err.Error()
	var lists []string
	for _, found := range listedTwice.FindAllStringSubmatch(text, -1) {
		lists = append(lists, fmt.Sprintf("%s has two entries with the key %s", found[1], found[2]))
	}
	if len(lists) > 0 {
		text = "keep one of them, or give them different keys: " + strings.Join(lists, "; ") +
			". Grids are applied with server-side apply, which refuses such lists"
	}
	return Errorf(v1.ReasonRejected, "%s", Shorten(text))
}

// Shorten makes one line of a text, of limited length.
func Shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= longestMessage {
		return text
	}
	return strings.ToValidUTF8(text[:longestMessage], "") + "…" // without a part of a character
}
