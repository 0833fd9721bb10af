package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// errMalformed is the error for every message that cannot be read.
var errMalformed = errors.New("malformed protobuf")

// fields walks the fields of one message:
//
//	f := fieldsOf(message)
//	for f.next() {
//		… f.number, f.value …
//	}
//	return f.err
type fields struct {
	rest []byte
	err  error

	// The field that next found.
	number protowire.Number
	// value is the content of a length-delimited field; nil for other wire types.
	value []byte
	// varint is the value of a varint field; 0 for other wire types.
	varint uint64
	// encoded is the whole field, tag included.
	encoded []byte
}

func fieldsOf(message []byte) fields { return fields{rest: message} }

// next finds the next field. It returns false at the end of the message, and where no field can be read; then it sets
// err.
func (f *fields) next() bool {
	m := f.rest
	// Nearly all fields have a number below 16 and a length, or a value, below 128: two bytes of head.
	if len(m) >= 2 && m[0] < 0x80 && m[0]>>3 != 0 && m[1] < 0x80 {
		switch protowire.Type(m[0] & 7) {
		case protowire.BytesType:
			if n := 2 + int(m[1]); n <= len(m) {
				f.number, f.value, f.varint = protowire.Number(m[0]>>3), m[2:n:n], 0
				f.encoded, f.rest = m[:n:n], m[n:]
				return true
			}
		case protowire.VarintType:
			f.number, f.value, f.varint = protowire.Number(m[0]>>3), nil, uint64(m[1])
			f.encoded, f.rest = m[:2:2], m[2:]
			return true
		default:
		}
	}
	return len(m) > 0 && f.nextLong()
}

// nextLong does what next does, for fields of any form.
func (f *fields) nextLong() bool {
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		f.err = fmt.Errorf("%w: %w", errMalformed, protowire.ParseError(n))
		return false
	}
	f.number, f.value, f.varint = number, nil, 0
	var m int
	switch kind {
	case protowire.BytesType:
		f.value, m = protowire.ConsumeBytes(f.rest[n:])
	case protowire.VarintType:
		f.varint, m = protowire.ConsumeVarint(f.rest[n:])
	default:
		m = protowire.ConsumeFieldValue(number, kind, f.rest[n:])
	}
	if m < 0 {
		f.err = fmt.Errorf("%w: field %d: %w", errMalformed, number, protowire.ParseError(m))
		return false
	}
	f.encoded, f.rest = f.rest[:n+m], f.rest[n+m:]
	return true
}

// appendBytesField appends a length-delimited field.
func appendBytesField(dst []byte, number protowire.Number, value []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	return protowire.AppendBytes(dst, value)
}

// sizeBytesField returns the length of what appendBytesField appends for a value of n bytes and a field number below
// 16.
func sizeBytesField(n int) int { return 1 + protowire.SizeBytes(n) }
