package wire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// errTruncated is what every malformed message amounts to for the caller: it cannot be used.
var errTruncated = errors.New("malformed protobuf")

// field is one field of a message.
type field struct {
	number protowire.Number
	// value is the content of a length-delimited field; nil for other wire types.
	value []byte
	// number of a varint field, 0 for other wire types.
	varint uint64
	// encoded is the whole field, tag included.
	encoded []byte
}

// nextField splits the first field off a message.
func nextField(message []byte) (f field, rest []byte, err error) {
	number, kind, n := protowire.ConsumeTag(message)
	if n < 0 {
		return field{}, nil, fmt.Errorf("%w: %w", errTruncated, protowire.ParseError(n))
	}
	f.number = number
	var m int
	switch kind {
	case protowire.BytesType:
		f.value, m = protowire.ConsumeBytes(message[n:])
	case protowire.VarintType:
		f.varint, m = protowire.ConsumeVarint(message[n:])
	default:
		m = protowire.ConsumeFieldValue(number, kind, message[n:])
	}
	if m < 0 {
		return field{}, nil, fmt.Errorf("%w: field %d: %w", errTruncated, number, protowire.ParseError(m))
	}
	f.encoded = message[:n+m]
	return f, message[n+m:], nil
}

// eachField calls visit for every field of a message in order, until visit returns an error.
func eachField(message []byte, visit func(field) error) error {
	for len(message) > 0 {
		f, rest, err := nextField(message)
		if err != nil {
			return err
		}
		if err := visit(f); err != nil {
			return err
		}
		message = rest
	}
	return nil
}

// appendBytesField appends a length-delimited field.
func appendBytesField(dst []byte, number protowire.Number, value []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	return protowire.AppendBytes(dst, value)
}

// sizeBytesField is the length of what appendBytesField appends for a value of n bytes, for field numbers
// below 16.
func sizeBytesField(n int) int { return 1 + protowire.SizeBytes(n) }
