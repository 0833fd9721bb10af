package filters

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// bodyEdit replaces the resourceVersion in the body of a write. A body that cannot be read stays as it is: the upstream
// says what is wrong with it.
type bodyEdit struct {
	mediaType string
	// deletion is set for DeleteOptions; else the body is an object, or a patch of one.
	deletion bool
}

// jsonPath returns the path of the resourceVersion in JSON, wirePath the path in protobuf.
func (e bodyEdit) jsonPath() []string {
	if e.deletion {
		return []string{"preconditions", "resourceVersion"}
	}
	return []string{"metadata", "resourceVersion"}
}

func (e bodyEdit) wirePath() []protowire.Number {
	if e.deletion {
		return wire.PathPrecondition
	}
	return wire.PathResourceVersion
}

// pointerResourceVersion is the path of the resourceVersion in a JSON patch.
const pointerResourceVersion = "/metadata/resourceVersion"

// replaceResourceVersion returns the body with the resourceVersion after, if it has the resourceVersion before.
func (e bodyEdit) replaceResourceVersion(body []byte, before, after string) []byte {
	var edited []byte
	var err error
	switch e.mediaType {
	case runtime.ContentTypeJSON, string(types.MergePatchType), string(types.StrategicMergePatchType):
		edited, err = replaceJSON(body, e.jsonPath(), before, after)
	case runtime.ContentTypeYAML, string(types.ApplyYAMLPatchType):
		edited, err = e.replaceYAML(body, before, after)
	case string(types.JSONPatchType):
		edited, err = replaceJSONPatch(body, before, after)
	case runtime.ContentTypeProtobuf:
		edited, err = wire.ReplaceString(body, e.wirePath(), before, after)
	default:
		return body
	}
	if err != nil {
		return body
	}
	return edited
}

// replaceYAML replaces the resourceVersion in a body in YAML. If there is one to replace, the result is JSON, which is
// valid YAML.
func (e bodyEdit) replaceYAML(body []byte, before, after string) ([]byte, error) {
	if !bytes.Contains(body, []byte(before)) {
		return body, nil
	}
	asJSON, err := yaml.YAMLToJSONStrict(body)
	if err != nil {
		return nil, err
	}
	edited, err := replaceJSON(asJSON, e.jsonPath(), before, after)
	if err != nil || bytes.Equal(edited, asJSON) {
		return body, err
	}
	return edited, nil
}

// patchOperation is one operation of a JSON patch, by field. (encoding/json ignores the case of a struct's field names,
// which the upstream does not.)
type patchOperation map[string]json.RawMessage

// text returns the string in a field; ok is false if it has none.
func (o patchOperation) text(field string) (text string, ok bool) {
	err := json.Unmarshal(o[field], &text)
	return text, err == nil
}

// replaceJSONPatch replaces the resourceVersion that operations test, or write.
func replaceJSONPatch(body []byte, before, after string) ([]byte, error) {
	var operations []patchOperation
	if err := json.Unmarshal(body, &operations); err != nil {
		return nil, err
	}
	changed := false
	for _, o := range operations {
		path, _ := o.text("path")
		if value, ok := o.text("value"); !ok || path != pointerResourceVersion || value != before {
			continue
		}
		encoded, err := json.Marshal(after)
		if err != nil {
			return nil, err
		}
		o["value"], changed = encoded, true
	}
	if !changed {
		return body, nil
	}
	return json.Marshal(operations)
}

// replaceJSON returns a copy of a JSON object in which the string before, wherever it is at the given path, is replaced
// by after. Every other byte is unchanged.
func replaceJSON(body []byte, path []string, before, after string) ([]byte, error) {
	encoded, err := json.Marshal(after)
	if err != nil {
		return nil, err
	}
	s := jsonSearch{decoder: json.NewDecoder(bytes.NewReader(body)), body: body, wanted: before}
	if err := s.object(path); err != nil {
		return nil, err
	}
	edited, rest := make([]byte, 0, len(body)+len(s.found)*len(encoded)), 0
	for _, found := range s.found {
		edited = append(append(edited, body[rest:found.from]...), encoded...)
		rest = found.to
	}
	return append(edited, body[rest:]...), nil
}

// jsonSearch finds strings in a JSON text.
type jsonSearch struct {
	decoder *json.Decoder
	body    []byte
	wanted  string
	// found has the positions of the strings, including their quotes.
	found []struct{ from, to int }
}

// object searches the object at whose beginning the decoder is.
func (s *jsonSearch) object(path []string) error {
	start, err := s.decoder.Token()
	if err != nil {
		return err
	}
	if start != json.Delim('{') {
		return errors.New("no JSON object")
	}
	for s.decoder.More() {
		key, err := s.decoder.Token()
		if err != nil {
			return err
		}
		if err := s.value(path, key == path[0]); err != nil {
			return err
		}
	}
	_, err = s.decoder.Token()
	return err
}

// value skips a value, or searches it if it is on the path.
func (s *jsonSearch) value(path []string, onPath bool) error {
	before := int(s.decoder.InputOffset())
	if onPath && len(path) > 1 {
		if first := bytes.TrimLeft(s.body[before:], ": \t\r\n"); len(first) > 0 && first[0] == '{' {
			return s.object(path[1:])
		}
	}
	var raw json.RawMessage
	if err := s.decoder.Decode(&raw); err != nil {
		return err
	}
	var text string
	if onPath && len(path) == 1 && json.Unmarshal(raw, &text) == nil && text == s.wanted {
		to := int(s.decoder.InputOffset())
		s.found = append(s.found, struct{ from, to int }{to - len(raw), to})
	}
	return nil
}

// metadataFields are the fields of a patch that changes metadata only.
var metadataFields = map[string]bool{"apiVersion": true, "kind": true, "metadata": true}

// onlyMetadata reports whether a patch changes nothing but metadata. It is false for a patch that cannot be read.
func (e bodyEdit) onlyMetadata(patch []byte) bool {
	switch e.mediaType {
	case string(types.JSONPatchType):
		var operations []patchOperation
		if json.Unmarshal(patch, &operations) != nil {
			return false
		}
		for _, o := range operations {
			for _, field := range []string{"path", "from"} {
				if pointer, ok := o.text(field); (ok || field == "path") && !strings.HasPrefix(pointer, "/metadata/") {
					return false
				}
			}
		}
		return true
	case string(types.MergePatchType), string(types.StrategicMergePatchType):
	case string(types.ApplyYAMLPatchType):
		var err error
		if patch, err = yaml.YAMLToJSONStrict(patch); err != nil {
			return false
		}
	default:
		return false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(patch, &fields) != nil {
		return false
	}
	for name := range fields {
		if !metadataFields[name] {
			return false
		}
	}
	return true
}
