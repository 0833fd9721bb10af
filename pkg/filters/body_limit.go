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
	// MaxBody is the largest request body, in bytes, that is accepted. kube-apiserver has the same limit.
	MaxBody = 3 << 20
	// BodyTimeout is how long a body may take to arrive.
	BodyTimeout = time.Minute
)

var errSlowBody = errors.New("the request body did not arrive in time")

// WithBodyLimit refuses request bodies over MaxBody, and ends requests whose bodies take longer than the timeout: a
// client that sends a body byte by byte would occupy a connection here and another one upstream. The data after an
// upgrade (exec, port-forward) is not a body, so the filter comes after WithoutFalseUpgrades.
func WithBodyLimit(timeout time.Duration) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
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
			// The ResponseWriter of a test may not support deadlines.
			if timed.controller.SetReadDeadline(timed.deadline) == nil {
				r = r.WithContext(context.WithValue(r.Context(), timedBodyKey{}, timed))
				r.Body = timed
			}
			r.Body = http.MaxBytesReader(w, r.Body, MaxBody)
		}
		next.ServeHTTP(w, r)
	})
}

// timedBody is a body with a deadline. The deadline is removed when the body has been read: if it passed while the
// server waits for the client's next request, the server would close the connection.
type timedBody struct {
	io.ReadCloser

	controller *http.ResponseController
	deadline   time.Time
	// arrived is set when the whole body was read.
	arrived atomic.Bool
}

type timedBodyKey struct{}

// isSlow reports whether a request failed because its body did not arrive in time. The error of the request may be
// another one: at the deadline the server also cancels the request's context, which may be noticed first.
func isSlow(r *http.Request) bool {
	timed, ok := r.Context().Value(timedBodyKey{}).(*timedBody)
	return ok && !timed.arrived.Load() && !time.Now().Before(timed.deadline)
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.arrived.Store(true)
		_ = b.controller.SetReadDeadline(time.Time{}) // setting it worked before
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = errSlowBody
	}
	return n, err
}

func bodyTooSlow() error {
	return serve.Failure(http.StatusRequestTimeout, metav1.StatusReasonTimeout, errSlowBody.Error())
}

func bodyTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", MaxBody))
}
