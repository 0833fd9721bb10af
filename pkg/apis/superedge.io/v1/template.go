package v1

import "bytes"

// Template is the spec of a child as the user wrote it. It stays JSON, so that fields that this build does
// not know reach the child.
//
// +kubebuilder:validation:Type=object
// +kubebuilder:pruning:PreserveUnknownFields
//
//nolint:recvcheck // encoding/json asks for a value receiver to marshal, and a pointer to unmarshal
type Template struct {
	// Raw is a JSON object; empty without a template.
	Raw []byte `json:"-"`
}

// MarshalJSON returns the JSON that was read. It has a value receiver because encoding/json does not call a pointer
// method on the values of a map.
func (t Template) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("{}"), nil
	}
	return t.Raw, nil
}

// UnmarshalJSON keeps the JSON as it is.
func (t *Template) UnmarshalJSON(data []byte) error {
	if t.Raw = nil; !bytes.Equal(data, []byte("null")) {
		t.Raw = bytes.Clone(data)
	}
	return nil
}

// IsZero reports whether the template is missing, for encoding/json's omitzero.
func (t Template) IsZero() bool { return len(t.Raw) == 0 }
