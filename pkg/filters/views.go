package filters

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// Views finds the View for a request: that of the site that the request names, else the node's own.
type Views struct {
	Own   *view.View
	Sites *view.Sites
	// OwnOnly, if set, is why there is nothing to show of any site.
	OwnOnly error
}

// View returns the View for a request. The caller must call release when the request ends.
func (v Views) View(r *http.Request) (shown *view.View, release func(), err error) {
	site, ok := r.Context().Value(siteKey{}).(string)
	if !ok {
		return v.Own, func() {}, nil
	}
	if v.OwnOnly != nil {
		return nil, nil, serve.NotReady(v.OwnOnly.Error())
	}
	shown, release, err = v.Sites.View(site)
	if errors.Is(err, view.ErrTooManySites) {
		err = serve.NotReady(fmt.Sprintf("%v; ask again when one of them is done", err))
	}
	return shown, release, err
}

// History returns the History for a request. It is a serve.Server's HistoryOf.
func (v Views) History(r *http.Request) (*history.History, func(), error) {
	shown, release, err := v.View(r)
	if err != nil {
		return nil, nil, err
	}
	return shown.History(), release, nil
}
