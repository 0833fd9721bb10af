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
)

// SitePathPrefix begins the path of a request for what a named site sees. The site follows, and then the path of an API
// request. It is for an ingress controller that serves a site from a node outside of it.
const SitePathPrefix = "/superedge-ingress/"

type siteKey struct{}

// WithSite removes SitePathPrefix and the site from a request's path, and keeps the site in the context, where Views
// finds it.
func WithSite() Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		escaped, ok := strings.CutPrefix(r.URL.EscapedPath(), SitePathPrefix)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		segment, rest, _ := strings.Cut(escaped, "/")
		site, err := url.PathUnescape(segment)
		if (site == "api" || site == "apis") && !strings.HasPrefix(rest, "api") {
			// Clients that join paths drop an empty site, so that the path's "api" seems to be the site.
			err = errors.New("the site is missing")
		}
		if err == nil {
			if problems := validation.IsValidLabelValue(site); len(problems) > 0 {
				err = errors.New(problems[0])
			}
		}
		r = r.Clone(context.WithValue(r.Context(), siteKey{}, site))
		if err == nil {
			r.URL.RawPath = "/" + rest
			r.URL.Path, err = url.PathUnescape(r.URL.RawPath)
		}
		if err != nil {
			serve.WriteError(w, r, apierrors.NewBadRequest(fmt.Sprintf(
				"after %s the value of a node label is expected, then the path of an API request: %v",
				SitePathPrefix, err)))
			return
		}
		next.ServeHTTP(w, r)
	})
}
