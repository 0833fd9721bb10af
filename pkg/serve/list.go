package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// list is the content of a LIST response.
type list struct {
	objects  []*history.Object
	revision uint64
}

func (s *Server) list(
	w http.ResponseWriter, r *http.Request, h *history.History, options Options, enc *encoder,
) error {
	content, err := listOf(h, enc.resource, options)
	if err != nil {
		return err
	}
	if s.Admit != nil {
		done, ok := s.Admit(r, listMemory(content, enc))
		if !ok {
			return apierrors.NewTooManyRequests("the lists under way, of this caller or of all, take as much memory "+
				"as they may; see --max-list-bytes", int(RetryAfter/time.Second))
		}
		defer done()
	}
	body, err := encodeList(r.Context(), content, enc)
	if err != nil {
		return err
	}
	return s.writeBody(w, r, enc.encoding, body)
}

// listOf selects the objects of a LIST response. Lists are whole: kube-apiserver also ignores the limit of a list from
// its watch cache.
func listOf(h *history.History, resource *served.Resource, options Options) (list, error) {
	objects, revision, err := h.List(resource, options.Selector.Namespace, options.Revision)
	if err == nil && options.Exact && options.Revision != revision {
		err = history.ErrExpired
	}
	if err != nil {
		return list{}, readError(err, h, resource, options.Revision)
	}
	objects = slices.DeleteFunc(objects, func(o *history.Object) bool { return !options.Selector.Matches(o) })
	return list{objects, revision}, nil
}

// encodeList encodes a list, until ctx is done.
func encodeList(ctx context.Context, l list, enc *encoder) ([]byte, error) {
	if enc.encoding == encodingProtobuf {
		return encodeListProtobuf(l, enc), nil
	}
	return encodeListJSON(ctx, l, enc)
}

func itemsSize(l list, enc *encoder) int {
	size := 0
	for _, o := range l.objects {
		size += wire.ListItemSize(enc.protobufSize(o))
	}
	return size
}

const (
	// envelopeSize is more than the length of everything around the items of a list.
	envelopeSize = 256
	// jsonGrowth is at most how many times longer JSON is than protobuf: 2 for EndpointSlices, 3 for Services and
	// metadata.
	jsonGrowth = 3
)

// listMemory estimates how many bytes a list takes until it is written. For protobuf it is exact except for the
// envelope. For JSON the exact number is known only when the memory is already in use; most lists do not exceed this.
func listMemory(l list, enc *encoder) int {
	size := itemsSize(l, enc)
	if enc.encoding == encodingJSON {
		size *= jsonGrowth
	}
	return envelopeSize + size
}

func encodeListProtobuf(l list, enc *encoder) []byte {
	meta := wire.AppendListMeta(nil, l.revision)
	size := len(meta) + itemsSize(l, enc)
	body := wire.AppendEnvelope(make([]byte, 0, size+envelopeSize), enc.listType(), size)
	body = append(body, meta...)
	for _, o := range l.objects {
		body = enc.appendProtobuf(wire.AppendListItem(body, enc.protobufSize(o)), o)
	}
	return body
}

func encodeListJSON(ctx context.Context, l list, enc *encoder) ([]byte, error) {
	t := enc.listType()
	body := fmt.Appendf(make([]byte, 0, listMemory(l, enc)),
		`{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[`,
		t.Kind, t.APIVersion, l.revision)
	for i, o := range l.objects {
		err := ctx.Err()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			body = append(body, ',')
		}
		if body, err = enc.appendItem(body, o); err != nil {
			return nil, err
		}
	}
	return append(body, "]}\n"...), nil
}
