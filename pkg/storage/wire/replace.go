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
	replaced, err := replaceString(body[len(magic):], append([]protowire.Number{unknownRaw}, path...), before, after)
	if err != nil || sameMemory(replaced, body[len(magic):]) {
		return body, err
	}
	return append(append(make([]byte, 0, len(magic)+len(replaced)), magic...), replaced...), nil
}

func replaceString(message []byte, path []protowire.Number, before, after string) ([]byte, error) {
	return rewrite(message, func(f field.Walk) ([]byte, bool, error) {
		switch {
		case f.Number != path[0]:
		case len(path) > 1:
			edited, err := replaceString(f.Value, path[1:], before, after)
			return edited, true, err
		case string(f.Value) == before:
			return []byte(after), true, nil
		}
		return f.Value, true, nil
	})
}
