package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Paths of strings within messages of the API, for ReplaceString.
var (
	// PathResourceVersion is the path of an API object's resourceVersion.
	PathResourceVersion = []protowire.Number{fieldMetadata, metaResourceVersion}
	// PathPrecondition is the path of the resourceVersion in the preconditions of DeleteOptions
	// (k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto).
	PathPrecondition = []protowire.Number{2, 2}
)

// ReplaceString returns a copy of a protobuf body of the API in which the string before, wherever it is at the given
// path of the message, is replaced by after. Everything else is unchanged. It returns body itself if there is nothing
// to replace.
func ReplaceString(body []byte, path []protowire.Number, before, after string) ([]byte, error) {
	if _, _, err := Unwrap(body); err != nil {
		return nil, err
	}
	path = append([]protowire.Number{unknownRaw}, path...)
	replaced, changed, err := replaceString(body[len(magic):], path, before, after)
	if err != nil || !changed {
		return body, err
	}
	return append(append(make([]byte, 0, len(magic)+len(replaced)), magic...), replaced...), nil
}

func replaceString(
	message []byte, path []protowire.Number, before, after string,
) (out []byte, changed bool, err error) {
	f := field.Of(message)
	for f.Next() {
		value, within := f.Value, false
		switch {
		case f.Number != path[0]:
		case len(path) > 1:
			if value, within, err = replaceString(f.Value, path[1:], before, after); err != nil {
				return nil, false, err
			}
		case string(f.Value) == before:
			value, within = []byte(after), true
		}
		if within {
			out, changed = appendBytesField(out, f.Number, value), true
			continue
		}
		out = append(out, f.Encoded...)
	}
	return out, changed, f.Err
}
