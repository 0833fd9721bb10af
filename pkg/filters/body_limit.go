package filters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	// MaxBody is the largest request body, in bytes, that is taken. It is kube-apiserver's.
	MaxBody = 3 << 20
	// BodyTimeout is how long a body may take to arrive.
	BodyTimeout = time.Minute
)

// errSlowBody is why a request is broken off.
var errSlowBody = errors.New("the request body did not arrive in time")

// WithBodyLimit refuses request bodies over MaxBody, and breaks off those that take longer than the timeout: a
// client that sends one byte by byte would hold a connection here and another one upstream. What follows an upgrade
// (exec, port-forward) is no body; it comes behind WithUpgrades.
func WithBodyLimit(timeout time.Duration) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength > MaxBody {
				serve.WriteError(w, r, bodyTooLarge())
				return
			}
			if r.Body != nil && r.Body != http.NoBody && !isUpgrade(r) {
				timed := &timedBody{
					ReadCloser: r.Body,
					controller: http.NewResponseController(w),
					deadline:   time.Now().Add(timeout),
				}
				// A writer without deadlines is that of a test.
				if timed.controller.SetReadDeadline(timed.deadline) == nil {
					r = r.WithContext(context.WithValue(r.Context(), timedBodyKey{}, timed))
					r.Body = timed
				}
				r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
			}
			next.ServeHTTP(w, r)
		})
	}
}

// timedBody is a body with a deadline, which must not outlive it: the server takes a deadline that passes while it
// waits for the client's next request, or for its end, for the end of the connection.
type timedBody struct {
	io.ReadCloser

	controller *http.ResponseController
	deadline   time.Time
	// arrived is set when all of it was read.
	arrived atomic.Bool
}

// timedBodyKey is where a request's timedBody is kept.
type timedBodyKey struct{}

// isSlow reports whether a request failed because its body did not arrive in time. The error that it failed with
// need not say so: with the deadline the server also ends the request's context, which may be noticed first.
func isSlow(r *http.Request) bool {
	timed, ok := r.Context().Value(timedBodyKey{}).(*timedBody)
	return ok && !timed.arrived.Load() && !time.Now().Before(timed.deadline)
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.arrived.Store(true)
		_ = b.controller.SetReadDeadline(time.Time{}) // it could be set before
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSlowBody
	}
	return n, err
}

func bodyTooSlow() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusRequestTimeout,
		Reason:  metav1.StatusReasonTimeout,
		Message: errSlowBody.Error(),
	}}
}

func bodyTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", MaxBody))
}
