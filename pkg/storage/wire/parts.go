package wire

import (
	"bytes"
	"slices"

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
	others []otherField
}

// otherField is a field other than an endpoint. It follows the given number of endpoints.
type otherField struct {
	endpoints int
	encoded   []byte
}

// Split splits the Body of an EndpointSlice, and overwrites the former parts.
func (p *Parts) Split(body []byte) error {
	p.Endpoints, p.encoded, p.others = p.Endpoints[:0], p.encoded[:0], p.others[:0]
	f := field.Of(body)
	for f.Next() {
		if f.Number != sliceEndpoints {
			p.others = append(p.others, otherField{len(p.Endpoints), f.Encoded})
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

// Body returns the slice's Body with only the endpoints at these places, which are ascending, and without topology
// hints.
func (p *Parts) Body(places []int) []byte {
	size := 0
	for _, other := range p.others {
		size += len(other.encoded)
	}
	for _, place := range places {
		size += len(p.encoded[place])
	}
	out := make([]byte, 0, size)
	others := p.others
	for _, place := range places {
		for len(others) > 0 && others[0].endpoints <= place {
			out = append(out, others[0].encoded...)
			others = others[1:]
		}
		out = append(out, p.encoded[place]...)
	}
	for _, other := range others {
		out = append(out, other.encoded...)
	}
	return out
}

// SameOthers reports whether two slices differ only in endpoints.
func (p *Parts) SameOthers(q *Parts) bool {
	return slices.EqualFunc(p.others, q.others, func(a, b otherField) bool { return bytes.Equal(a.encoded, b.encoded) })
}

// Differing returns how many endpoints two slices have in common at their beginning and at their end, apart from hints.
// The endpoints between these differ.
func (p *Parts) Differing(q *Parts) (beginning, end int) {
	most := min(len(p.encoded), len(q.encoded))
	for beginning < most && bytes.Equal(p.encoded[beginning], q.encoded[beginning]) {
		beginning++
	}
	for end < most-beginning && bytes.Equal(p.encoded[len(p.encoded)-1-end], q.encoded[len(q.encoded)-1-end]) {
		end++
	}
	return beginning, end
}
