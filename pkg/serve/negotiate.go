package serve

import (
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// contentTypeProtobufWatch is that of a stream of length-delimited protobuf frames.
const contentTypeProtobufWatch = runtime.ContentTypeProtobuf + ";stream=watch"

// encoding is how a response body is written.
type encoding int

const (
	encodingJSON encoding = iota
	encodingYAML
	encodingProtobuf
)

func (e encoding) contentType(watch bool) string {
	switch {
	case e == encodingProtobuf && watch:
		return contentTypeProtobufWatch
	case e == encodingProtobuf:
		return runtime.ContentTypeProtobuf
	case e == encodingYAML:
		return runtime.ContentTypeYAML
	default:
		return runtime.ContentTypeJSON
	}
}

// negotiate picks the encoding that the Accept header likes best. JSON is what a client without a preference
// gets. The error is 406. YAML has no streaming form, so a watch cannot have it. Clauses that ask for another
// form of the object ("as=Table") are passed over: clients name a plain one after them.
func negotiate(accept string, watch bool) (encoding, error) {
	if strings.TrimSpace(accept) == "" {
		return encodingJSON, nil
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Q == 0 || clause.Params["as"] != "" {
			continue
		}
		switch clause.Type + "/" + clause.SubType {
		case "*/*", "application/*", runtime.ContentTypeJSON:
			return encodingJSON, nil
		case runtime.ContentTypeYAML:
			if !watch {
				return encodingYAML, nil
			}
		case runtime.ContentTypeProtobuf:
			return encodingProtobuf, nil
		}
	}
	accepted := []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}
	if watch {
		accepted = append(accepted, contentTypeProtobufWatch)
	} else {
		accepted = append(accepted, runtime.ContentTypeYAML)
	}
	return encodingJSON, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(accepted, ", "),
	}}
}

// acceptsGzip tells whether the client takes a compressed body.
func acceptsGzip(r *http.Request) bool {
	for _, value := range r.Header.Values("Accept-Encoding") {
		for coding := range strings.SplitSeq(value, ",") {
			name, parameters, _ := strings.Cut(coding, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			quality, found := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q=")
			return !found || strings.Trim(quality, "0.") != ""
		}
	}
	return false
}
