package serve

import (
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// WriteObject answers a GET with an object outside of any History, which has the upstream's own resourceVersion. This
// function and those below return an error only if they have not written anything.
func WriteObject(w http.ResponseWriter, r *http.Request, resource *served.Resource, o *wire.Object) error {
	enc, err := negotiateEncoder(r, resource, objectAnswer)
	if err != nil {
		return err
	}
	body, err := encodeObject(history.NewObject(resource, o), enc)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, enc.encoding.contentType(), body)
	return nil
}

// WriteList answers a LIST with such objects at a version of the upstream.
func WriteList(
	w http.ResponseWriter, r *http.Request, resource *served.Resource, version uint64, objects []*wire.Object,
) error {
	enc, err := negotiateEncoder(r, resource, listAnswer)
	if err != nil {
		return err
	}
	content := list{revision: version}
	for _, o := range objects {
		content.objects = append(content.objects, history.NewObject(resource, o))
	}
	body, err := encodeList(r.Context(), content, enc)
	if err != nil {
		return err
	}
	write(w, http.StatusOK, enc.encoding.contentType(), body)
	return nil
}

// BeginWatch begins to answer a WATCH with such objects, and with the bookmark that ends the initial events at a
// version, if that is not 0. The stream ends when the caller returns.
func BeginWatch(
	w http.ResponseWriter, r *http.Request, resource *served.Resource, objects []*wire.Object, bookmark uint64,
) error {
	enc, err := negotiateEncoder(r, resource, watchAnswer)
	if err != nil {
		return err
	}
	var body []byte
	for _, o := range objects {
		if body, err = enc.appendEvent(body, watch.Added, history.NewObject(resource, o)); err != nil {
			return err
		}
	}
	if bookmark > 0 {
		if body, err = enc.appendBookmark(body, bookmark, initialEventsEnd); err != nil {
			return err
		}
	}
	write(w, http.StatusOK, enc.encoding.watchContentType(), body)
	_ = http.NewResponseController(w).Flush() // an error would mean that the client is gone
	return nil
}

// WriteTyped answers with an object that does not belong to a resource, such as a TokenRequest.
func WriteTyped(w http.ResponseWriter, r *http.Request, code int, t wire.TypeMeta, typed served.Typed) error {
	f, err := negotiate(r.Header.Get("Accept"), typedAnswer)
	if err != nil {
		return err
	}
	body, err := f.encoding.encodeTyped(t, typed)
	if err != nil {
		return err
	}
	write(w, code, f.encoding.contentType(), body)
	return nil
}

// writeBody writes a response with a whole body. It ignores errors of writing: they mean that the client is gone.
func (s *Server) writeBody(w http.ResponseWriter, r *http.Request, encoding encoding, body []byte) error {
	h := w.Header()
	h.Set("Content-Type", encoding.contentType())
	h.Set("Cache-Control", "no-cache, private")
	h.Add("Vary", "Accept")
	// How long the client may take to accept it. A ResponseWriter of a test may not support deadlines.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.writeTimeout()))
	// For a client on this machine compressing takes longer than sending the bytes that it saves.
	if len(body) < gzipThreshold || !acceptsGzip(r) || isLocal(r) {
		h.Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
		return nil
	}
	markZipped(w)
	Compress(w, body)
	return nil
}

func isLocal(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// write writes a response. It ignores errors of writing: they mean that the client is gone.
func write(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}
