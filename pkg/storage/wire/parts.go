package wire

import (
	"bytes"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Parts is the Body of an EndpointSlice in pieces, from which bodies with some of the endpoints can be put together. It
// shares memory with the Body.
type Parts struct {
	// Endpoints are those of the slice, in their order.
	Endpoints []Endpoint
	// encoded are the fields of the endpoints, without topology hints.
	encoded [][]byte
	// others are all other fields, in their order.
	others []byte
}

// Split splits the Body of an EndpointSlice, and overwrites the former parts.
func (p *Parts) Split(body []byte) error {
	p.Endpoints, p.encoded, p.others = p.Endpoints[:0], p.encoded[:0], p.others[:0]
	f := field.Of(body)
	for f.Next() {
		if f.Number != sliceEndpoints {
			p.others = append(p.others, f.Encoded...)
			continue
		}
		endpoint, err := parseSliceEndpoint(f.Value)
		if err != nil {
			return err
		}
		encoded := f.Encoded
		if endpoint.hints {
			encoded = appendBytesField(nil, sliceEndpoints, withoutField(f.Value, endpointHints))
		}
		p.Endpoints, p.encoded = append(p.Endpoints, endpoint), append(p.encoded, encoded)
	}
	return f.Err
}

// Body returns the slice's Body with only the endpoints at these places, without topology hints, and with all other
// fields behind them, as every encoder writes them.
func (p *Parts) Body(places []int) []byte {
	size := len(p.others)
	for _, place := range places {
		size += len(p.encoded[place])
	}
	out := make([]byte, 0, size)
	for _, place := range places {
		out = append(out, p.encoded[place]...)
	}
	return append(out, p.others...)
}

// SameOthers reports whether two slices differ only in endpoints.
func (p *Parts) SameOthers(q *Parts) bool { return bytes.Equal(p.others, q.others) }

// CommonEnds returns how many endpoints two slices have in common at their beginning and at their end, apart from
// hints. The endpoints between these differ.
func (p *Parts) CommonEnds(q *Parts) (beginning, end int) {
	most := min(len(p.encoded), len(q.encoded))
	for beginning < most && bytes.Equal(p.encoded[beginning], q.encoded[beginning]) {
		beginning++
	}
	for end < most-beginning && bytes.Equal(p.encoded[len(p.encoded)-1-end], q.encoded[len(q.encoded)-1-end]) {
		end++
	}
	return beginning, end
}
