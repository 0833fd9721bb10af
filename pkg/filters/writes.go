package filters

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// WithWrites prepares writes of served resources for the upstream, where they then go with the caller's credentials.
//
// Clients know such an object by the wrapper's resourceVersion, which means nothing to the upstream. So in the object
// of an update, in a patch, and in the preconditions of a deletion, the object's current resourceVersion is replaced by
// the upstream's. Another resourceVersion is passed on unchanged. If it is the upstream's own, from its answer to an
// earlier write, it is valid there. If it is an older one of the wrapper's, the upstream answers 409, and the client
// reads the object again.
//
// A write to an object that is shown altered is refused: a client that writes back what it has read would remove other
// sites' endpoints. Patches that change only metadata are allowed, because they do not contain what was read.
//
// Unchanged are: creations, which have no resourceVersion; requests for subresources other than status, whose bodies
// are of other kinds; and requests for objects that are not shown here, such as other nodes.
//
// Bodies are read into memory, and count towards the Quota memory.
func WithWrites(viewing Viewing, memory *quota.Quota) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			write, ok := writeOf(r)
			if !ok {
				next.ServeHTTP(w, r)
				return
			}
			shown, release, err := viewing.View(r)
			if err == nil {
				defer release()
				var done func()
				if r, done, err = write.prepare(r, shown, memory); err == nil {
					defer done()
				}
			}
			if err != nil {
				serve.WriteError(w, r, err)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// write is a request that writes objects of a served resource.
type write struct {
	info     serve.RequestInfo
	resource *served.Resource
}

// subresourceStatus is the one subresource whose body is the object.
const subresourceStatus = "status"

func writeOf(r *http.Request) (write, bool) {
	info := serve.ParseRequest(r)
	resource := servedResources[schema.GroupResource{Group: info.Group, Resource: info.Resource}]
	if !info.IsResource || resource == nil || (info.Subresource != "" && info.Subresource != subresourceStatus) {
		return write{}, false
	}
	switch info.Verb {
	case "update", "patch", "delete":
		return write{info, resource}, info.Name != ""
	case "deletecollection":
		return write{info, resource}, true
	default:
		return write{}, false
	}
}

// prepare returns the request that is passed on to the upstream. The caller must call done when it was answered.
func (v write) prepare(
	r *http.Request, shown *view.View, memory *quota.Quota,
) (prepared *http.Request, done func(), err error) {
	if v.info.Verb == "deletecollection" {
		return r, func() {}, v.allowDeleteCollection(r, shown)
	}
	name := types.NamespacedName{Namespace: v.info.Namespace, Name: v.info.Name}
	origin, err := shown.Origin(v.resource, name)
	if err != nil {
		return r, nil, serve.NotReady(fmt.Sprintf(
			"it is not known yet whether %s %s is shown unaltered; write to the API server directly, or wait",
			v.info.Resource, name))
	}
	if origin.Altered != "" && v.info.Verb != "patch" {
		return r, nil, v.altered(name, origin.Altered)
	}
	translates := origin.Revision != 0 && origin.ResourceVersion != ""
	if (origin.Altered == "" && !translates) || r.ContentLength == 0 {
		return r, func() {}, nil
	}
	size := int(r.ContentLength)
	if size < 0 {
		size = MaxBody
	}
	done, ok := memory.AcquireN(Caller(r), size)
	if !ok {
		return r, nil, serve.TooMuchMemory()
	}
	body, err := readBody(r, MaxBody+1)
	if err != nil {
		done()
		return r, nil, err
	}
	edit := bodyEdit{mediaType: mediaTypeOf(r), deletion: v.info.Verb == "delete"}
	if origin.Altered != "" && !edit.onlyMetadata(body) {
		done()
		return r, nil, v.altered(name, origin.Altered)
	}
	if translates {
		body = edit.replaceResourceVersion(body, strconv.FormatUint(origin.Revision, 10), origin.ResourceVersion)
	}
	r = r.Clone(r.Context())
	r.TransferEncoding = nil
	setBody(r, body)
	return r, done, nil
}

// allowDeleteCollection refuses a deletion of several objects if one of them is shown altered.
func (v write) allowDeleteCollection(r *http.Request, shown *view.View) error {
	if v.resource != served.EndpointSlices && v.resource != served.Endpoints {
		return nil
	}
	options, err := serve.ParseOptions(r.URL.Query(), v.resource, v.info)
	if err != nil {
		return err
	}
	objects, _, err := shown.History().List(v.resource, v.info.Namespace, 0)
	if err != nil {
		if v.resource == served.Endpoints {
			return nil // Endpoints are not followed, so no client has read them here
		}
		return serve.NotReady("it is not known yet whether endpointslices are shown unaltered; write to the API " +
			"server " +
			"directly, or wait")
	}
	for _, o := range objects {
		if !options.Selector.Matches(o) {
			continue
		}
		if origin, err := shown.Origin(v.resource, o.Key()); err == nil && origin.Altered != "" {
			return v.altered(o.Key(), origin.Altered)
		}
	}
	return nil
}

// altered refuses a write, and says what to do instead.
func (v write) altered(name types.NamespacedName, why string) error {
	return forbidden(fmt.Sprintf("%s %s cannot be written through the wrapper, which shows it altered: %s. "+
		"Read and write it at the API server directly", v.resource.Kind, name, why))
}

// mediaTypeOf returns the media type of a request's body. The API's default is JSON.
func mediaTypeOf(r *http.Request) string {
	header := r.Header.Get("Content-Type")
	if header == "" {
		return runtime.ContentTypeJSON
	}
	mediaType, _, err := mime.ParseMediaType(header)
	if err != nil {
		return "" // the upstream says so
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
