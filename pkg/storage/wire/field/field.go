// Package field walks the fields of a protobuf message, without a description of the message and without a copy of it.
package field

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed is the error for every message that cannot be read.
var ErrMalformed = errors.New("malformed protobuf")

// Walk walks the fields of one message:
//
//	f := field.Of(message)
//	for f.Next() {
//		… f.Number, f.Value …
//	}
//	return f.Err
//
// Its results share memory with the message.
type Walk struct {
	rest []byte
	// Err is set if Next has found bytes that are not a field. It wraps ErrMalformed.
	Err error

	// Number is the number of the field that Next found.
	Number protowire.Number
	// Value is the content of a length-delimited field; nil for other wire types.
	Value []byte
	// Varint is the value of a varint field; 0 for other wire types.
	Varint uint64
	// Encoded is the whole field, tag included.
	Encoded []byte
}

// Of begins a walk at the first field of a message.
func Of(message []byte) Walk { return Walk{rest: message} }

// Next finds the next field. It returns false at the end of the message. It also returns false, and sets Err, if no
// field can be read.
func (f *Walk) Next() bool {
	m := f.rest
	// Nearly all fields have a number below 16 and a length, or a value, below 128: two bytes of head.
	if len(m) >= 2 && m[0] < 0x80 && m[0]>>3 != 0 && m[1] < 0x80 {
		switch protowire.Type(m[0] & 7) {
		case protowire.BytesType:
			if n := 2 + int(m[1]); n <= len(m) {
				f.Number, f.Value, f.Varint = protowire.Number(m[0]>>3), m[2:n:n], 0
				f.Encoded, f.rest = m[:n:n], m[n:]
				return true
			}
		case protowire.VarintType:
			f.Number, f.Value, f.Varint = protowire.Number(m[0]>>3), nil, uint64(m[1])
			f.Encoded, f.rest = m[:2:2], m[2:]
			return true
		default:
		}
	}
	return len(m) > 0 && f.nextLong()
}

// nextLong does what Next does, for fields of any form.
func (f *Walk) nextLong() bool {
	number, kind, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		f.Err = fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(n))
		return false
	}
	f.Number, f.Value, f.Varint = number, nil, 0
	var m int
	switch kind {
	case protowire.BytesType:
		f.Value, m = protowire.ConsumeBytes(f.rest[n:])
	case protowire.VarintType:
		f.Varint, m = protowire.ConsumeVarint(f.rest[n:])
	default:
		m = protowire.ConsumeFieldValue(number, kind, f.rest[n:])
	}
	if m < 0 {
		f.Err = fmt.Errorf("%w: field %d: %w", ErrMalformed, number, protowire.ParseError(m))
		return false
	}
	f.Encoded, f.rest = f.rest[:n+m], f.rest[n+m:]
	return true
}

// MapEntry reads an entry of a map field whose keys and values are strings or bytes, or another message whose first two
// fields are such.
func MapEntry(entry []byte) (key, value []byte, err error) {
	f := Of(entry)
	for f.Next() {
		switch f.Number {
		case 1:
			key = f.Value
		case 2:
			value = f.Value
		}
	}
	return key, value, f.Err
}

// EachIn calls visit for every field of the messages in the fields with this number, until it returns an error.
func EachIn(message []byte, number protowire.Number, visit func(Walk) error) error {
	f := Of(message)
	for f.Next() {
		if f.Number != number {
			continue
		}
		inner := Of(f.Value)
		for inner.Next() {
			if err := visit(inner); err != nil {
				return err
			}
		}
		if inner.Err != nil {
			return inner.Err
		}
	}
	return f.Err
}
