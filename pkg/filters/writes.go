package filters

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// WithoutAlteredWrites refuses writes of objects that are shown altered, and deletions of several objects that list
// endpoints: a client that writes back what it has read would remove other sites' endpoints. All other writes are
// passed on as they are.
//
// The upstream does not know the wrapper's resourceVersions. It answers a write that names one 409, as one of an older
// version.
func WithoutAlteredWrites(views Views) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if err := checkWrite(views, r); err != nil {
			serve.WriteError(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkWrite returns why a request is refused; nil if it is passed on.
func checkWrite(views Views, r *http.Request) error {
	info := serve.ParseRequest(r)
	resource := servedResources[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
	if !info.IsResource || resource != served.EndpointSlices && resource != served.Endpoints {
		return nil // which are shown as they are
	}
	name := types.NamespacedName{Namespace: info.Namespace, Name: info.Name}
	switch info.Verb {
	case "deletecollection":
		return cannotWrite(resource, "of several objects", "some of them may be shown altered")
	case "update", "patch", "delete":
	default:
		return nil
	}
	shown, release, err := views.View(r)
	if err != nil {
		return err
	}
	defer release()
	why, err := shown.Altered(resource, name)
	switch {
	case err != nil:
		return serve.NotReady(fmt.Sprintf(
			"it is not known yet whether %s %s is shown unaltered; write to the API server directly, or wait",
			info.Resource, name))
	case why != "":
		return cannotWrite(resource, name.String(), "which shows it altered: "+why)
	default:
		return nil
	}
}

// cannotWrite refuses a write, and says what to do instead.
func cannotWrite(resource *served.Resource, what, why string) error {
	return forbidden("%s %s cannot be written through the wrapper, %s. Read and write it at the API server directly",
		resource.Kind, what, why)
}

// mediaTypeOf returns the media type of a request's body. The API's default is JSON.
func mediaTypeOf(r *http.Request) string {
	mediaType, _, err := mime.ParseMediaType(cmp.Or(r.Header.Get("Content-Type"), runtime.ContentTypeJSON))
	if err != nil {
		return "" // the upstream reports that
	}
	return mediaType
}

// readBody reads a request's body up to a number of bytes. WithBodyLimit bounds it as well.
func readBody(r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, most))
	if err == nil {
		return body, nil
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, bodyTooLarge()
	}
	if isSlow(r) {
		return nil, bodyTooSlow()
	}
	return nil, apierrors.NewBadRequest(fmt.Sprintf("the body cannot be read: %v", err))
}
