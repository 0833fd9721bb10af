package wire

import (
	"bytes"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
const (
	fieldMetadata = 1 // of every API object

	metaName            = 1
	metaNamespace       = 3
	metaUID             = 5
	metaResourceVersion = 6
	metaLabels          = 11
	metaAnnotations     = 12
	metaManagedFields   = 17
)

// Object is one API object, split so that its resourceVersion can be written anew without copying the rest.
type Object struct {
	Namespace, Name, UID string
	// ResourceVersion is the one the object came with.
	ResourceVersion string
	Labels          map[string]string
	Annotations     map[string]string
	// Meta is the encoded ObjectMeta without resourceVersion and managedFields.
	Meta []byte
	// Body is the encoded object without its metadata.
	Body []byte
}

// ParseObject splits an encoded API object whose metadata is an ObjectMeta. The result does not share
// memory with message. A bookmark is such an object too; its name is empty.
func ParseObject(message []byte) (*Object, error) {
	o := &Object{}
	body := make([]byte, 0, len(message))
	err := eachField(message, func(f field) error {
		if f.number != fieldMetadata {
			body = append(body, f.encoded...)
			return nil
		}
		return o.parseMeta(f.value)
	})
	if err != nil {
		return nil, err
	}
	// The metadata that was cut out may have been most of the message.
	if cap(body) > len(body)+len(body)/8 {
		body = append([]byte(nil), body...)
	}
	o.Body = body
	return o, nil
}

func (o *Object) parseMeta(message []byte) error {
	// A message field may be split in parts, which are then merged; no encoder of Kubernetes does that, and
	// appending the parts is that merge.
	kept := 0
	if err := eachField(message, func(f field) error {
		if f.number != metaResourceVersion && f.number != metaManagedFields {
			kept += len(f.encoded)
		}
		return nil
	}); err != nil {
		return err
	}
	meta := make([]byte, 0, len(o.Meta)+kept)
	meta = append(meta, o.Meta...)
	err := eachField(message, func(f field) error {
		switch f.number {
		case metaName:
			o.Name = string(f.value)
		case metaNamespace:
			o.Namespace = string(f.value)
		case metaUID:
			o.UID = string(f.value)
		case metaLabels:
			return addMapEntry(&o.Labels, f.value, &meta, f.encoded)
		case metaAnnotations:
			return addMapEntry(&o.Annotations, f.value, &meta, f.encoded)
		case metaResourceVersion:
			o.ResourceVersion = string(f.value)
			return nil
		case metaManagedFields:
			return nil
		}
		meta = append(meta, f.encoded...)
		return nil
	})
	o.Meta = meta
	return err
}

// addMapEntry adds one entry of a map<string,string> field and keeps its encoding in meta.
func addMapEntry(to *map[string]string, entry []byte, meta *[]byte, encoded []byte) error {
	var key, value string
	err := eachField(entry, func(f field) error {
		switch f.number {
		case 1:
			key = string(f.value)
		case 2:
			value = string(f.value)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if *to == nil {
		*to = make(map[string]string)
	}
	(*to)[key] = value
	*meta = append(*meta, encoded...)
	return nil
}

// Equal tells whether two versions differ in nothing but their resourceVersion and managedFields.
func (o *Object) Equal(other *Object) bool {
	return bytes.Equal(o.Meta, other.Meta) && bytes.Equal(o.Body, other.Body)
}

// Size is the length of what AppendObject appends.
func Size(meta, body []byte, revision uint64) int {
	return sizeBytesField(len(meta)+sizeRevision(revision)) + len(body)
}

// AppendObject appends the encoded object with the given resourceVersion.
func AppendObject(dst, meta, body []byte, revision uint64) []byte {
	dst = protowire.AppendTag(dst, fieldMetadata, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(meta)+sizeRevision(revision))) //nolint:gosec // a length
	dst = append(dst, meta...)
	dst = appendRevision(dst, revision)
	return append(dst, body...)
}

func appendRevision(dst []byte, revision uint64) []byte {
	var digits [20]byte
	return appendBytesField(dst, metaResourceVersion, strconv.AppendUint(digits[:0], revision, 10))
}

func sizeRevision(revision uint64) int {
	digits := 1
	for ; revision >= 10; revision /= 10 {
		digits++
	}
	return sizeBytesField(digits)
}
