package wire

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Fields of ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
const (
	fieldMetadata = 1 // of every API object

	metaName            = 1
	metaNamespace       = 3
	metaUID             = 5
	metaResourceVersion = 6
	metaGeneration      = 7
	metaLabels          = 11
	metaAnnotations     = 12
	metaManagedFields   = 17
)

// Object is one API object, split so that it can be written with another resourceVersion.
type Object struct {
	Namespace, Name, UID string
	// ResourceVersion is the resourceVersion of the upstream.
	ResourceVersion string
	Labels          map[string]string
	// Meta is the encoded ObjectMeta without resourceVersion and managedFields.
	Meta []byte
	// Body is the encoded object without its metadata.
	Body []byte
}

// ParseObject splits an encoded API object whose metadata is an ObjectMeta. The result does not share
// memory with message. A bookmark is such an object too; its name is empty.
func ParseObject(message []byte) (*Object, error) {
	o := &Object{}
	// By the rules of protobuf a message field may be split into several parts, whose fields are merged. No encoder of
	// Kubernetes does that. Appending the parts' fields to each other has the same result as a merge.
	var meta, body int
	f := field.Of(message)
	for f.Next() {
		if f.Number == fieldMetadata {
			n, err := o.parseMeta(f.Value)
			if err != nil {
				return nil, err
			}
			meta += n
		} else {
			body += len(f.Encoded)
		}
	}
	if f.Err != nil {
		return nil, f.Err
	}
	o.Meta, o.Body = make([]byte, 0, meta), make([]byte, 0, body)
	for f := field.Of(message); f.Next(); {
		if f.Number != fieldMetadata {
			o.Body = append(o.Body, f.Encoded...)
			continue
		}
		for m := field.Of(f.Value); m.Next(); {
			if keepsMeta(m.Number) {
				o.Meta = append(o.Meta, m.Encoded...)
			}
		}
	}
	return o, nil
}

// ObjectOf returns the object of a Go type with protobuf methods.
func ObjectOf(typed interface{ Marshal() ([]byte, error) }) (*Object, error) {
	message, err := typed.Marshal()
	if err != nil {
		return nil, err
	}
	return ParseObject(message)
}

// Annotations returns the object's annotations; nil if it has none. They are read from Meta each time: few are needed
// more than once, and as a map they would take more memory than the rest of a Service.
func (o *Object) Annotations() map[string]string {
	var annotations map[string]string
	f := field.Of(o.Meta)
	for f.Next() {
		if f.Number == metaAnnotations {
			_ = addMapEntry(&annotations, f.Value) // ParseObject has read it without an error
		}
	}
	return annotations
}

// keepsMeta reports whether a field of ObjectMeta stays in Object.Meta.
func keepsMeta(number protowire.Number) bool {
	return number != metaResourceVersion && number != metaManagedFields
}

// parseMeta reads an ObjectMeta into the fields of o, and returns the size of Object.Meta.
func (o *Object) parseMeta(message []byte) (kept int, err error) {
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case metaName:
			o.Name = string(f.Value)
		case metaNamespace:
			o.Namespace = string(f.Value)
		case metaUID:
			o.UID = string(f.Value)
		case metaResourceVersion:
			o.ResourceVersion = string(f.Value)
		case metaLabels:
			err = addMapEntry(&o.Labels, f.Value)
		case metaAnnotations:
			_, _, err = field.MapEntry(f.Value)
		}
		if err != nil {
			return 0, err
		}
		if keepsMeta(f.Number) {
			kept += len(f.Encoded)
		}
	}
	return kept, f.Err
}

func addMapEntry(to *map[string]string, entry []byte) error {
	key, value, err := field.MapEntry(entry)
	if err != nil {
		return err
	}
	if *to == nil {
		*to = make(map[string]string)
	}
	(*to)[string(key)] = string(value)
	return nil
}

// Equal reports whether two versions of an object are equal but for resourceVersion and managedFields.
func (o *Object) Equal(other *Object) bool {
	return bytes.Equal(o.Meta, other.Meta) && bytes.Equal(o.Body, other.Body)
}

// Key returns the object's namespace and name.
func (o *Object) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
}

// Compare compares two objects in the order of kube-apiserver's lists.
func (o *Object) Compare(other *Object) int { return CompareKeys(o.Key(), other.Key()) }

// CompareKeys compares the keys of two objects in the order of kube-apiserver's lists: by namespace, then by name.
func CompareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// At returns the object with another resourceVersion. Everything else is shared.
func (o *Object) At(resourceVersion string) *Object {
	if o.ResourceVersion == resourceVersion {
		return o
	}
	moved := *o
	moved.ResourceVersion = resourceVersion
	return &moved
}

// annotationTriggerTime is the annotation that the endpoint controllers set on an object when any of its endpoints
// changes.
const annotationTriggerTime = "endpoints.kubernetes.io/last-change-trigger-time"

// SameMeta reports whether two values of Object.Meta are equal but for the generation and annotationTriggerTime. Both
// change with every endpoint of an object. A viewer that sees only some of the endpoints would otherwise get an event
// for changes that it cannot see.
func SameMeta(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	left, right := field.Of(a), field.Of(b)
	for {
		more, other := nextOfContent(&left), nextOfContent(&right)
		if more != other || left.Err != nil || right.Err != nil {
			return false
		}
		if !more {
			return true
		}
		if !bytes.Equal(left.Encoded, right.Encoded) {
			return false
		}
	}
}

// nextOfContent finds the next field of an ObjectMeta, and skips the fields that SameMeta ignores.
func nextOfContent(f *field.Walk) bool {
	for f.Next() {
		switch f.Number {
		case metaGeneration:
		case metaAnnotations:
			if key, _, _ := field.MapEntry(f.Value); string(key) != annotationTriggerTime {
				return true
			}
		default:
			return true
		}
	}
	return false
}

// Digest returns a digest of an object, without the fields that SameMeta ignores. It is the same in every process, and
// never 0. Objects of different kinds have different digests.
func Digest(kind string, meta, body []byte) uint64 {
	content := make([]byte, 0, len(kind)+len(meta)+len(body)+2)
	content = append(append(content, kind...), 0)
	for f := field.Of(meta); nextOfContent(&f); {
		content = append(content, f.Encoded...)
	}
	sum := sha256.Sum256(append(append(content, 0), body...))
	return binary.BigEndian.Uint64(sum[:]) | 1
}

// Size returns the length of what AppendObject appends.
func Size(meta, body []byte, revision uint64) int {
	return sizeBytesField(len(meta)+sizeRevision(revision)) + len(body)
}

// AppendObject appends the encoded object with the given resourceVersion.
func AppendObject(dst, meta, body []byte, revision uint64) []byte {
	dst = protowire.AppendTag(dst, fieldMetadata, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(len(meta)+sizeRevision(revision))) //nolint:gosec // a length
	dst = append(dst, meta...)
	var digits [20]byte
	dst = appendBytesField(dst, metaResourceVersion, strconv.AppendUint(digits[:0], revision, 10))
	return append(dst, body...)
}

func sizeRevision(revision uint64) int {
	var digits [20]byte
	return sizeBytesField(len(strconv.AppendUint(digits[:0], revision, 10)))
}
