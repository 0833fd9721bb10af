package cluster

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNotServed means that the API server does not know a kind of grid.
var ErrNotServed = errors.New("the server has no superedge.io/v1: install application-grid-controller, which brings " +
	"the grids' CRDs, or apply manifests/crds")

// Explain replaces errors of the API server that do not say what to change.
func Explain(err error) error {
	if IsNotServed(err) {
		return ErrNotServed
	}
	return err
}

// IsNotServed reports whether an error means that the API server does not serve the kind, and not that an object does
// not exist.
func IsNotServed(err error) bool {
	if meta.IsNoMatchError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// IsFinal reports whether a request that has failed would fail again, and not because the API server is away.
func IsFinal(err error) bool {
	return errors.Is(err, ErrNotServed) || IsNotServed(err) || apierrors.IsNotFound(err) ||
		apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsBadRequest(err)
}
