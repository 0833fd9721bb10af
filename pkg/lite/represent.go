package lite

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// representation writes objects of one kind in protobuf or JSON.
type representation struct {
	kind     *kind
	protobuf bool
	code     int
}

// negotiate reads the Accept header. The kubelet asks for protobuf first, and takes JSON.
func negotiate(r *http.Request, k *kind) (representation, error) {
	as := representation{kind: k, code: http.StatusOK}
	accept := r.Header.Get("Accept")
	for part := range strings.SplitSeq(accept, ",") {
		media, parameters, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.Contains(parameters, "as=") {
			continue // tables and metadata alone are for people
		}
		switch media {
		case runtime.ContentTypeProtobuf:
			as.protobuf = true
			return as, nil
		case runtime.ContentTypeJSON, "application/*", "*/*", "":
			return as, nil
		}
	}
	return as, serve.NotAcceptable("kube-apiserver is away, and of " + accept + " there is nothing here: only " +
		runtime.ContentTypeProtobuf + " and " + runtime.ContentTypeJSON)
}

func (as representation) contentType(stream bool) string {
	switch {
	case as.protobuf && stream:
		return runtime.ContentTypeProtobuf + ";stream=watch"
	case as.protobuf:
		return runtime.ContentTypeProtobuf
	default:
		return runtime.ContentTypeJSON
	}
}

// write writes one message.
func (as representation) write(w http.ResponseWriter, t wire.TypeMeta, message []byte) error {
	body := append(wire.AppendEnvelope(nil, t, len(message)), message...)
	if !as.protobuf {
		object, err := as.decode(message)
		if err != nil {
			return err
		}
		if body, err = json.Marshal(object); err != nil {
			return err
		}
	}
	as.send(w, body)
	return nil
}

func (as representation) send(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", as.contentType(false))
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(as.code)
	_, _ = w.Write(body) // if the client is gone, it needs no answer
}

func (as representation) decode(message []byte) (runtime.Object, error) {
	object := as.kind.newTyped()
	if err := object.Unmarshal(message); err != nil {
		return nil, err
	}
	object.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(as.kind.Type().APIVersion, as.kind.name))
	return object, nil
}

// writeList writes a list.
func (as representation) writeList(w http.ResponseWriter, version uint64, objects []*wire.Object) error {
	meta := wire.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}
	if as.protobuf {
		message := wire.AppendListMeta(nil, meta)
		for _, o := range objects {
			item := encoded(o)
			message = append(wire.AppendListItem(message, len(item)), item...)
		}
		return as.write(w, as.kind.ListType(), message)
	}
	list := struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`

		Items []runtime.Object `json:"items"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: as.kind.ListType().APIVersion, Kind: as.kind.ListType().Kind},
		ListMeta: metav1.ListMeta{ResourceVersion: meta.ResourceVersion}, Items: []runtime.Object{},
	}
	for _, o := range objects {
		object, err := as.decode(encoded(o))
		if err != nil {
			return err
		}
		list.Items = append(list.Items, object)
	}
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	as.send(w, body)
	return nil
}

// appendEvent appends an event of a watch.
func (as representation) appendEvent(dst []byte, event watch.EventType, message []byte) ([]byte, error) {
	if as.protobuf {
		return append(wire.AppendWatchFrame(dst, string(event), as.kind.Type(), len(message)), message...), nil
	}
	object, err := as.decode(message)
	if err != nil {
		return nil, err
	}
	encodedEvent, err := json.Marshal(metav1.WatchEvent{
		Type: string(event), Object: runtime.RawExtension{Object: object},
	})
	if err != nil {
		return nil, err
	}
	return append(append(dst, encodedEvent...), '\n'), nil
}
