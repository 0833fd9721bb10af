package serve

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// RetryAfter is the Retry-After of answers about resources that are not ready yet.
const RetryAfter = time.Second

var statusType = wire.TypeMeta{APIVersion: "v1", Kind: "Status"}

// WriteError answers with the error as a metav1.Status, in protobuf if the client prefers that, else in JSON. For an
// error that is not an API error the code is 500.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	f, _ := negotiate(r.Header.Get("Accept"), typedAnswer) // a client that accepts no encoding of it gets JSON
	body, err := f.encoding.encodeTyped(statusType, status)
	if err != nil {
		klog.FromContext(r.Context()).Error(err, "Cannot encode a Status")
		http.Error(w, status.Message, int(status.Code))
		return
	}
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	write(w, int(status.Code), f.encoding.contentType(), body)
}

func statusOf(err error) *metav1.Status {
	var apiStatus apierrors.APIStatus
	if !errors.As(err, &apiStatus) {
		apiStatus = apierrors.NewInternalError(err)
	}
	return new(apiStatus.Status())
}

// readError returns the API error for an error of a History. revision is the one that the client presented.
func readError(err error, h *history.History, resource *served.Resource, revision uint64) error {
	switch {
	case errors.Is(err, history.ErrFuture):
		return futureRevision(revision, h.Revision())
	case errors.Is(err, served.ErrNotReady):
		return NotReady(fmt.Sprintf("%s are not synced with the upstream yet; an answer now would be incomplete",
			resource.GroupResource()))
	case errors.Is(err, served.ErrAbsent):
		return NotServed(resource.GroupResource())
	case errors.Is(err, history.ErrExpired):
		return apierrors.NewResourceExpired("too old resource version: this server's log does not have it; list again")
	default:
		return apierrors.NewInternalError(err)
	}
}

// futureRevision returns kube-apiserver's answer to a resourceVersion that it has not given out yet: 504 with a cause
// that makes reflectors list again without a resourceVersion. Unlike kube-apiserver's it has no Retry-After: such a
// revision will not be reached, and client-go would repeat the request ten times before its reflector sees the cause.
func futureRevision(requested, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", requested, current), 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{
		{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"},
	}
	return err
}

// Failure returns an API error with exactly this message. The constructors of package apierrors would add words to it.
func Failure(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}}
}

// NotReady returns a 503 with Retry-After.
func NotReady(message string) error {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(RetryAfter / time.Second)}
	return err
}

// NotServed returns the 404 that kube-apiserver answers for a resource that it does not serve.
func NotServed(resource schema.GroupResource) error {
	err := Failure(http.StatusNotFound, metav1.StatusReasonNotFound,
		fmt.Sprintf("the server could not find the requested resource (%s)", resource))
	err.ErrStatus.Details = &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource}
	return err
}
