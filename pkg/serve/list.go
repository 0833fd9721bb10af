package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// gzipThreshold is the body size, in bytes, from which compressing is worth its time, as in kube-apiserver.
const gzipThreshold = 128 << 10

// page is the content of one LIST response.
type page struct {
	objects []*history.Object
	meta    wire.ListMeta
}

func (s *Server) list(
	w http.ResponseWriter, r *http.Request, h *history.History, options Options, as *representation,
) error {
	page, err := pageOf(h, as.resource, options)
	if err != nil {
		return err
	}
	done, err := s.admit(r, page, as)
	if err != nil {
		return err
	}
	defer done()
	body, err := encodeList(r.Context(), page, as)
	if err != nil {
		return err
	}
	return s.writeBody(w, r, as.encoding, body)
}

// admit asks for the memory that a list takes. done gives it back. The error is a 429.
func (s *Server) admit(r *http.Request, page page, as *representation) (done func(), err error) {
	if s.Admit == nil {
		return func() {}, nil
	}
	done, ok := s.Admit(r, listMemory(page, as))
	if !ok {
		return nil, tooMuchMemory()
	}
	return done, nil
}

// pageOf selects the objects of a LIST response.
func pageOf(h *history.History, resource *served.Resource, options Options) (page, error) {
	objects, revision, err := stateOf(h, resource, options)
	if err != nil {
		return page{}, err
	}
	if token := options.Continue; token != nil {
		from := sort.Search(len(objects), func(i int) bool {
			o := objects[i]
			return o.Namespace > token.Namespace || (o.Namespace == token.Namespace && o.Name > token.Name)
		})
		objects = objects[from:]
	}
	limit := options.Limit
	if options.RevisionGiven && options.Revision == 0 && options.Continue == nil {
		// resourceVersion=0 asks for any version. kube-apiserver then ignores the limit, too.
		limit = 0
	}
	p := page{meta: wire.ListMeta{ResourceVersion: strconv.FormatUint(revision, 10)}}
	if limit == 0 {
		p.objects = make([]*history.Object, 0, len(objects))
	}
	for i, o := range objects {
		if !options.Selector.Matches(o) {
			continue
		}
		if limit > 0 && len(p.objects) == limit {
			last := p.objects[limit-1]
			p.meta.Continue = continueToken{Revision: revision, Namespace: last.Namespace, Name: last.Name}.String()
			if selector := options.Selector; (history.Selector{
				Labels: selector.Labels,
				Fields: selector.Fields,
			}).Everything() {
				p.meta.RemainingItemCount = new(int64(len(objects) - i))
			}
			break
		}
		p.objects = append(p.objects, o)
	}
	return p, nil
}

// stateOf returns the objects of the resource in the version that the request asks for, and its revision.
func stateOf(h *history.History, resource *served.Resource, options Options) ([]*history.Object, uint64, error) {
	at := options.Revision
	if options.Continue != nil {
		at = options.Continue.Revision
	}
	if options.Continue == nil && !options.Exact {
		objects, revision, err := h.List(resource, options.Selector.Namespace, at)
		if err != nil {
			return nil, 0, readError(err, h, resource, at)
		}
		return objects, revision, nil
	}
	objects, err := h.ListAt(resource, options.Selector.Namespace, at)
	if err != nil {
		return nil, 0, readError(err, h, resource, at)
	}
	return objects, at, nil
}

// encodeList encodes a list, until ctx is done.
func encodeList(ctx context.Context, p page, as *representation) ([]byte, error) {
	if as.encoding == encodingProtobuf {
		return encodeListProtobuf(p, as), nil
	}
	if as.encoding == encodingYAML {
		return encodeListYAML(ctx, p, as)
	}
	return encodeListJSON(ctx, p, as)
}

func itemsSize(p page, as *representation) int {
	size := 0
	for _, o := range p.objects {
		size += wire.ListItemSize(as.protobufSize(o))
	}
	return size
}

const (
	// envelopeSize is more than the length of everything around the items of a list.
	envelopeSize = 256
	// jsonGrowth is at most how many times longer JSON is than protobuf: 2 for EndpointSlices, 3 for Services and
	// metadata.
	jsonGrowth = 3
	// yamlGrowth is how many times longer YAML is than JSON.
	yamlGrowth = 2
)

// listMemory estimates how many bytes a list takes until it is written. For protobuf it is exact but for the envelope.
// For other encodings the exact number is known only when the memory is already taken.
func listMemory(p page, as *representation) int {
	if as.encoding == encodingProtobuf {
		return itemsSize(p, as) + envelopeSize
	}
	size := jsonCapacity(p, as)
	if as.encoding == encodingYAML {
		size *= yamlGrowth
	}
	return size
}

// jsonCapacity returns a length that most lists do not exceed in JSON.
func jsonCapacity(p page, as *representation) int {
	return envelopeSize + jsonGrowth*itemsSize(p, as)
}

func encodeListProtobuf(p page, as *representation) []byte {
	meta := wire.AppendListMeta(nil, p.meta)
	size := len(meta) + itemsSize(p, as)
	body := wire.AppendEnvelope(make([]byte, 0, size+envelopeSize), as.listType(), size)
	body = append(body, meta...)
	for _, o := range p.objects {
		body = as.appendProtobuf(wire.AppendListItem(body, as.protobufSize(o)), o)
	}
	return body
}

// listMetaJSON is ListMeta with the field names of the API.
type listMetaJSON struct {
	ResourceVersion    string `json:"resourceVersion"`
	Continue           string `json:"continue,omitempty"`
	RemainingItemCount *int64 `json:"remainingItemCount,omitempty"`
}

func encodeListJSON(ctx context.Context, p page, as *representation) ([]byte, error) {
	meta, err := json.Marshal(listMetaJSON(p.meta))
	if err != nil {
		return nil, err
	}
	t := as.listType()
	body := fmt.Appendf(make([]byte, 0, jsonCapacity(p, as)), `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`,
		t.Kind, t.APIVersion, meta)
	for i, o := range p.objects {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if i > 0 {
			body = append(body, ',')
		}
		if body, err = as.appendItem(body, o); err != nil {
			return nil, err
		}
	}
	return append(body, "]}\n"...), nil
}

// encodeListYAML converts item by item, because the conversion from JSON to YAML needs about a hundred times the memory
// of its input.
func encodeListYAML(ctx context.Context, p page, as *representation) ([]byte, error) {
	around, err := encodeListJSON(ctx, page{meta: p.meta}, as)
	if err != nil {
		return nil, err
	}
	if around, err = toYAML(around); err != nil || len(p.objects) == 0 {
		return around, err
	}
	const field = "\nitems:"
	head, tail, found := bytes.Cut(around, []byte(field+" []\n"))
	if !found {
		return nil, fmt.Errorf("the YAML of an empty list has no line %q", field)
	}
	body := append(append(make([]byte, 0, yamlGrowth*jsonCapacity(p, as)), head...), field...)
	body = append(body, '\n')
	var list []byte
	for _, o := range p.objects {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if list, err = as.appendItem(append(list[:0], '['), o); err != nil {
			return nil, err
		}
		converted, err := toYAML(append(list, ']'))
		if err != nil {
			return nil, err
		}
		body = append(body, converted...)
	}
	return append(body, tail...), nil
}

func encodeObject(o *history.Object, as *representation) ([]byte, error) {
	if as.encoding == encodingProtobuf {
		body := wire.AppendEnvelope(nil, as.objectType(), as.protobufSize(o))
		return as.appendProtobuf(body, o), nil
	}
	body, err := as.appendJSON(nil, o)
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	if as.encoding == encodingYAML {
		return toYAML(body)
	}
	return body, nil
}

func toYAML(body []byte) ([]byte, error) {
	converted, err := yaml.JSONToYAML(body)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("encoding as YAML: %w", err))
	}
	return converted, nil
}

// gzipWriters are reused, because each has several hundred kilobytes of buffers.
var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// writeBody writes a response with a whole body. It ignores errors of writing: they mean that the client is gone.
func (s *Server) writeBody(w http.ResponseWriter, r *http.Request, encoding encoding, body []byte) error {
	s.writeHeader(w, encoding)
	// For a client on this machine compressing takes longer than sending the bytes that it saves.
	if len(body) < gzipThreshold || !acceptsGzip(r) || isLocal(r) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
		return nil
	}
	markZipped(w)
	Compress(w, body)
	return nil
}

// writeHeader sets what the header of every body has, and how long the client may take to accept it.
func (s *Server) writeHeader(w http.ResponseWriter, encoding encoding) {
	h := w.Header()
	h.Set("Content-Type", encoding.contentType())
	h.Set("Cache-Control", "no-cache, private")
	h.Add("Vary", "Accept")
	s.allowWrite(w)
}

// markZipped says that the body is compressed.
func markZipped(w http.ResponseWriter) {
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Add("Vary", "Accept-Encoding")
}

// Compress writes a whole gzip member. It is flushed before it ends: a reader of a stream of members that has come to
// the end of one waits for the next before it returns what it has. Errors are those of w, and mean that the client is
// gone.
func Compress(w io.Writer, body []byte) {
	zip := gzipWriters.Get().(*gzip.Writer) //nolint:forcetypeassert // nothing else is put there
	defer gzipWriters.Put(zip)
	zip.Reset(w)
	_, _ = zip.Write(body)
	_ = zip.Flush()
	_ = zip.Close()
}

// isLocal reports whether the client is on this machine.
func isLocal(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// allowWrite sets how long the client may take to accept what is written next.
func (s *Server) allowWrite(w http.ResponseWriter) {
	// A ResponseWriter of a test may not support deadlines; then there is none.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.writeTimeout()))
}

// awaitNothing removes the deadline that allowWrite set for an earlier response of the connection, for a stream that
// has nothing to write for a while. TLS connections cannot be written to after a deadline has passed.
func awaitNothing(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
}
