package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Magic starts every protobuf body of the Kubernetes API
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
const Magic = "k8s\x00"

// Fields of runtime.Unknown, runtime.TypeMeta, ListMeta, a List and metav1.WatchEvent.
const (
	unknownTypeMeta        = 1
	unknownRaw             = 2
	unknownContentEncoding = 3
	unknownContentType     = 4

	typeMetaAPIVersion = 1
	typeMetaKind       = 2

	listMetadata = 1
	listItems    = 2

	listMetaResourceVersion = 2

	watchEventType   = 1
	watchEventObject = 2
	rawExtensionRaw  = 1
)

// TypeMeta names the kind of an encoded object.
type TypeMeta struct {
	// APIVersion is group/version, or version alone for the core group.
	APIVersion string
	Kind       string
}

// Unwrap reads the envelope of a protobuf body, and returns the kind of its object and the encoded message.
func Unwrap(body []byte) (TypeMeta, []byte, error) {
	rest, ok := bytes.CutPrefix(body, []byte(Magic))
	if !ok {
		return TypeMeta{}, nil, fmt.Errorf("%w: no Kubernetes envelope", field.ErrMalformed)
	}
	var typeMeta TypeMeta
	var raw []byte
	f := field.Of(rest)
	for f.Next() {
		switch f.Number {
		case unknownTypeMeta:
			apiVersion, kind, err := field.MapEntry(f.Value)
			if err != nil {
				return TypeMeta{}, nil, err
			}
			typeMeta = TypeMeta{string(apiVersion), string(kind)}
		case unknownRaw:
			raw = f.Value
		}
	}
	return typeMeta, raw, f.Err
}

// ReadList reads an encoded List in an envelope item by item. visit must not keep one. The error may be one of from.
func ReadList(from *bufio.Reader, visit func(item []byte) error) (TypeMeta, metav1.ListMeta, error) {
	begin := make([]byte, len(Magic))
	if _, err := io.ReadFull(from, begin); err != nil {
		return TypeMeta{}, metav1.ListMeta{}, err
	}
	var meta []byte
	var item bytes.Buffer
	found := false
	envelope, err := readFields(from, unknownRaw, func(list io.Reader) (err error) {
		found = true
		meta, err = readFields(bufio.NewReader(list), listItems, func(value io.Reader) error {
			item.Reset()
			if _, err := item.ReadFrom(value); err != nil {
				return err
			}
			return visit(item.Bytes())
		})
		return err
	})
	if err == nil && !found {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return TypeMeta{}, metav1.ListMeta{}, err
	}
	typeMeta, _, err := Unwrap(slices.Concat(begin, envelope))
	if err != nil {
		return TypeMeta{}, metav1.ListMeta{}, err
	}
	var rest metav1.List
	err = rest.Unmarshal(meta)
	return typeMeta, rest.ListMeta, err
}

// readFields reads the fields of a message to its end. Those of a number are passed to read, which reads all of the
// value; the others are returned.
func readFields(
	from *bufio.Reader, number protowire.Number, read func(value io.Reader) error,
) (others []byte, err error) {
	for {
		tag, err := binary.ReadUvarint(from)
		if errors.Is(err, io.EOF) {
			return others, nil
		}
		if err != nil {
			return nil, err
		}
		n, kind := protowire.DecodeTag(tag)
		value, err := binary.ReadUvarint(from) // or the length of one
		switch {
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		case err != nil:
		case kind == protowire.VarintType:
			others = protowire.AppendVarint(protowire.AppendTag(others, n, kind), value)
		case kind != protowire.BytesType || value > math.MaxInt64:
			err = fmt.Errorf("%w: a field of type %d", field.ErrMalformed, kind)
		case n == number:
			err = readValue(from, int64(value), read)
		default:
			err = readValue(from, int64(value), func(value io.Reader) error {
				content, err := io.ReadAll(value)
				others = appendBytesField(others, n, content)
				return err
			})
		}
		if err != nil {
			return nil, err
		}
	}
}

// readValue passes a value of so many bytes to read.
func readValue(from io.Reader, size int64, read func(value io.Reader) error) error {
	value := io.LimitedReader{R: from, N: size}
	if err := read(&value); err != nil {
		return err
	}
	if value.N > 0 {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// AppendEnvelope appends the start of an envelope. The caller appends the raw message, of rawSize bytes, next. (The two
// empty fields that Kubernetes' encoder writes after the message are written before it here; their order has no
// meaning.)
func AppendEnvelope(dst []byte, t TypeMeta, rawSize int) []byte {
	dst = append(dst, Magic...)
	dst = appendTypeMeta(dst, t)
	dst = appendBytesField(dst, unknownContentEncoding, nil)
	dst = appendBytesField(dst, unknownContentType, nil)
	dst = protowire.AppendTag(dst, unknownRaw, protowire.BytesType)
	return protowire.AppendVarint(dst, uint64(rawSize)) //nolint:gosec // a length
}

func appendTypeMeta(dst []byte, t TypeMeta) []byte {
	size := sizeBytesField(len(t.APIVersion)) + sizeBytesField(len(t.Kind))
	dst = protowire.AppendTag(dst, unknownTypeMeta, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size)) //nolint:gosec // a length
	dst = appendBytesField(dst, typeMetaAPIVersion, []byte(t.APIVersion))
	return appendBytesField(dst, typeMetaKind, []byte(t.Kind))
}

// AppendListMeta appends the metadata field of a List of all objects at a revision.
func AppendListMeta(dst []byte, revision uint64) []byte {
	meta := appendBytesField(nil, listMetaResourceVersion, strconv.AppendUint(nil, revision, 10))
	return appendBytesField(dst, listMetadata, meta)
}

// AppendListItem appends the tag and length of an item. The caller appends the item, of size bytes, next.
func AppendListItem(dst []byte, size int) []byte {
	dst = protowire.AppendTag(dst, listItems, protowire.BytesType)
	return protowire.AppendVarint(dst, uint64(size)) //nolint:gosec // a length
}

// ListItemSize returns the length of an item of size bytes together with its tag and length.
func ListItemSize(size int) int { return sizeBytesField(size) }

// AppendWatchFrame appends the start of one frame of a protobuf watch stream: its length in four bytes, big endian, and
// the WatchEvent up to the object. The caller appends the object, of rawSize bytes, next.
func AppendWatchFrame(dst []byte, eventType string, t TypeMeta, rawSize int) []byte {
	head := AppendEnvelope(make([]byte, 0, 128), t, rawSize)
	envelope := len(head) + rawSize
	extension := sizeBytesField(envelope)
	frame := sizeBytesField(len(eventType)) + sizeBytesField(extension)
	dst = binary.BigEndian.AppendUint32(dst, uint32(frame)) //nolint:gosec // far below 4 GiB
	dst = appendBytesField(dst, watchEventType, []byte(eventType))
	dst = protowire.AppendTag(dst, watchEventObject, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(extension)) //nolint:gosec // a length
	dst = protowire.AppendTag(dst, rawExtensionRaw, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(envelope)) //nolint:gosec // a length
	return append(dst, head...)
}
