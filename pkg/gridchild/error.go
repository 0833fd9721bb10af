package gridchild

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// longestMessage limits what is told of a failure.
const longestMessage = 400

// Error is why a child, or a grid, cannot be what it should.
type Error struct {
	// Reason is one of the reasons in package v1, Message tells the user what to change.
	Reason, Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf makes an Error.
func Errorf(reason, format string, args ...any) error {
	return &Error{reason, fmt.Sprintf(format, args...)}
}

// Tellable is what a user is told of an error.
func Tellable(err error) Error {
	var known *Error
	if errors.As(err, &known) {
		return *known
	}
	return Error{v1.ReasonSyncFailed, Shorten(err.Error())}
}

// Refused reports whether the API server has refused an object for what it says.
func Refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) ||
		apierrors.IsMethodNotSupported(err) ||
		isDecodingFailure(err)
}

var typingError = regexp.MustCompile("failed to create typed patch object|unable to convert|cannot unmarshal")

// isDecodingFailure recognises what the API server says of a template that does not fit its types: an
// internal error, of which only the words tell.
func isDecodingFailure(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	return s.Code == http.StatusInternalServerError && typingError.MatchString(s.Message)
}

// Shorten makes a line of limited length of a text.
func Shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= longestMessage {
		return text
	}
	cut := longestMessage
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not within a character
		cut--
	}
	return text[:cut] + "…"
}
