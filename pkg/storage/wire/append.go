package wire

import "google.golang.org/protobuf/encoding/protowire"

// appendBytesField appends a length-delimited field.
func appendBytesField(dst []byte, number protowire.Number, value []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	return protowire.AppendBytes(dst, value)
}

// sizeBytesField returns the length of what appendBytesField appends for a value of n bytes and a field number below
// 16.
func sizeBytesField(n int) int { return 1 + protowire.SizeBytes(n) }
