package filters

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// UnitPathPrefix begins the path of a request for what a named unit sees: the unit follows, then the path as it
// is without. It is for an ingress controller that serves a unit from a node outside of it.
const UnitPathPrefix = "/superedge-ingress/"

// unitKey is where the unit of a request is kept.
type unitKey struct{}

// WithUnit takes UnitPathPrefix and the unit off a request's path. It comes before WithRequestInfo, and
// WithServed heeds what it found.
func WithUnit() Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			escaped, ok := strings.CutPrefix(r.URL.EscapedPath(), UnitPathPrefix)
			if !ok {
				next.ServeHTTP(w, r)
				return
			}
			segment, rest, _ := strings.Cut(escaped, "/")
			unit, err := url.PathUnescape(segment)
			if (unit == "api" || unit == "apis") && !strings.HasPrefix(rest, "api") {
				// An empty unit is lost where clients join paths: the API's own prefix would be taken for it.
				err = errors.New("the unit is missing")
			}
			if err == nil {
				if problems := validation.IsValidLabelValue(unit); len(problems) > 0 {
					err = errors.New(problems[0])
				}
			}
			r = r.Clone(context.WithValue(r.Context(), unitKey{}, unit))
			if err == nil {
				r.URL.RawPath = "/" + rest
				r.URL.Path, err = url.PathUnescape(r.URL.RawPath)
			}
			if err != nil {
				serve.WriteError(w, r, apierrors.NewBadRequest(fmt.Sprintf("after %s the value of a node label is expected, then the path of an API request: %v", UnitPathPrefix, err)))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// Viewing finds the View that a request is about: that of its unit, if it names one, else the node's own.
type Viewing struct {
	Own   *view.View
	Units *view.Units
	// OwnOnly, if set, is why there is nothing to show of any unit now; nil if there is.
	OwnOnly func() error
}

// View is the View that a request is about. release is to be called when the request ends.
func (v Viewing) View(r *http.Request) (shown *view.View, release func(), err error) {
	unit, ok := r.Context().Value(unitKey{}).(string)
	if !ok {
		return v.Own, func() {}, nil
	}
	shown, release, err = v.Units.View(unit)
	if errors.Is(err, view.ErrTooManyUnits) {
		err = serve.NotReady(fmt.Sprintf("%v; ask again when one of them is done", err))
	}
	if err == nil && v.OwnOnly != nil {
		// Asked after the View was made: those that were there when this began to be refused have been ended.
		if refused := v.OwnOnly(); refused != nil {
			release()
			return nil, nil, serve.NotReady(refused.Error())
		}
	}
	return shown, release, err
}

// History is what a request is answered from: a serve.Server's HistoryOf.
func (v Viewing) History(r *http.Request) (*history.History, func(), error) {
	shown, release, err := v.View(r)
	if err != nil {
		return nil, nil, err
	}
	return shown.History(), release, nil
}
