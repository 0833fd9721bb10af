package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

func appendBytesField(dst []byte, number protowire.Number, value []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	return protowire.AppendBytes(dst, value)
}

// sizeBytesField returns the length of what appendBytesField appends for a value of n bytes and a field number below
// 16.
func sizeBytesField(n int) int { return 1 + protowire.SizeBytes(n) }

// rewrite returns a copy of a message in which edit has changed fields: edit returns the value of each field, the same
// or another one, and whether to keep the field. If nothing is changed, rewrite returns the message itself.
func rewrite(message []byte, edit func(f field.Walk) (edited []byte, keep bool, err error)) ([]byte, error) {
	var out []byte
	read, changed := 0, false
	f := field.Of(message)
	for f.Next() {
		edited, keep, err := edit(f)
		if err != nil {
			return nil, err
		}
		same := keep && sameMemory(edited, f.Value)
		if !same && !changed {
			// The copy is not allocated as large as the message: most of that may be left out, and the copy may be kept
			// for long.
			out, changed = append(out, message[:read]...), true
		}
		read += len(f.Encoded)
		switch {
		case !changed || !keep:
		case same:
			out = append(out, f.Encoded...)
		default:
			out = appendBytesField(out, f.Number, edited)
		}
	}
	switch {
	case f.Err != nil:
		return nil, f.Err
	case !changed:
		return message, nil
	}
	return out, nil
}

func sameMemory(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
