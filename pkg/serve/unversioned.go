package serve

import (
	"net/http"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// WriteObject answers a GET with an object outside of any History, which has the upstream's own resourceVersion. This
// function and those below return an error only if they have not written anything.
func WriteObject(w http.ResponseWriter, r *http.Request, resource *served.Resource, o *wire.Object) error {
	as, err := represent(r, resource, objectAnswer)
	if err != nil {
		return err
	}
	body, err := encodeObject(history.NewObject(resource, o), as)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, as.encoding.contentType(), body)
	return nil
}

// WriteList answers a LIST with such objects at a version of the upstream.
func WriteList(
	w http.ResponseWriter, r *http.Request, resource *served.Resource, version uint64, objects []*wire.Object,
) error {
	as, err := represent(r, resource, listAnswer)
	if err != nil {
		return err
	}
	content := list{revision: version}
	for _, o := range objects {
		content.objects = append(content.objects, history.NewObject(resource, o))
	}
	body, err := encodeList(r.Context(), content, as)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, as.encoding.contentType(), body)
	return nil
}

// BeginWatch begins to answer a WATCH with such objects, and with the bookmark that ends the initial events at a
// version, if that is not 0. The stream ends when the caller returns.
func BeginWatch(
	w http.ResponseWriter, r *http.Request, resource *served.Resource, objects []*wire.Object, bookmark uint64,
) error {
	as, err := represent(r, resource, watchAnswer)
	if err != nil {
		return err
	}
	var body []byte
	for _, o := range objects {
		if body, err = as.appendEvent(body, watch.Added, history.NewObject(resource, o)); err != nil {
			return err
		}
	}
	if bookmark > 0 {
		if body, err = as.appendBookmark(body, bookmark, initialEventsEnd); err != nil {
			return err
		}
	}
	write(w, http.StatusOK, as.encoding.watchContentType(), body)
	_ = http.NewResponseController(w).Flush() // an error would mean that the client is gone
	return nil
}

// WriteTyped answers with an object that does not belong to a resource, such as a TokenRequest.
func WriteTyped(w http.ResponseWriter, r *http.Request, code int, t wire.TypeMeta, typed served.Typed) error {
	as, err := negotiate(r.Header.Get("Accept"), typedAnswer)
	if err != nil {
		return err
	}
	body, err := as.encoding.encodeTyped(t, typed)
	if err != nil {
		return err
	}
	write(w, code, as.encoding.contentType(), body)
	return nil
}
