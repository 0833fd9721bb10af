package serve

import (
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// contentTypeProtobufWatch is the content type of a stream of length-delimited protobuf frames.
const contentTypeProtobufWatch = runtime.ContentTypeProtobuf + ";stream=watch"

// encoding is how a response body is written.
type encoding int

const (
	encodingJSON encoding = iota
	encodingProtobuf
)

func (e encoding) contentType() string {
	if e == encodingProtobuf {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

func (e encoding) watchContentType() string {
	if e == encodingProtobuf {
		return contentTypeProtobufWatch
	}
	return e.contentType()
}

// format is how a response is written.
type format struct {
	encoding encoding
	// metadata is the group and version of PartialObjectMetadata, for clients that need only the metadata; "" shows
	// whole objects.
	metadata string
}

// answerKind is the kind of a read request.
type answerKind int

const (
	objectAnswer answerKind = iota
	listAnswer
	watchAnswer
	// typedAnswer is for an object that does not belong to a resource, such as a Status. It is written whole.
	typedAnswer
)

// negotiate picks the format that the Accept header prefers; a client without a preference gets JSON objects. Clauses
// that ask for an unsupported format, such as kubectl's for a Table, are skipped, because clients name a simpler one
// after it. The error is 406.
func negotiate(accept string, reads answerKind) (format, error) {
	if strings.TrimSpace(accept) == "" {
		return format{}, nil
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		if f, ok := formatOf(clause, reads); ok && clause.Q != 0 {
			return f, nil
		}
	}
	accepted := []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}
	if reads == watchAnswer {
		accepted = append(accepted, contentTypeProtobufWatch)
	}
	return format{}, NotAcceptable("only the following media types are accepted: " + strings.Join(accepted, ", "))
}

// NotAcceptable is the answer to a client that does not accept any available format.
func NotAcceptable(message string) error {
	return Failure(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, message)
}

// formatOf returns the format for a clause's media type, and its parameters as, g and v. ok is false if none fits.
func formatOf(clause goautoneg.Accept, reads answerKind) (f format, ok bool) {
	switch clause.Type + "/" + clause.SubType {
	case "*/*", "application/*", runtime.ContentTypeJSON:
	case runtime.ContentTypeProtobuf:
		f.encoding = encodingProtobuf
	default:
		return f, false
	}
	as := clause.Params["as"]
	if as == "" || reads == typedAnswer {
		return f, true
	}
	version := clause.Params["v"]
	if clause.Params["g"] != metav1.GroupName || (version != "v1" && version != "v1beta1") {
		return f, false
	}
	f.metadata = metav1.GroupName + "/" + version
	if reads == listAnswer {
		return f, as == kindMetadata+"List"
	}
	return f, as == kindMetadata
}

// kindMetadata is the kind of objects that are shown by their metadata only.
const kindMetadata = "PartialObjectMetadata"
