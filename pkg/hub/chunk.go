package hub

import (
	"bytes"
	"iter"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// typeShare is the type of the object of a mark.
var typeShare = wire.TypeMeta{APIVersion: hubv1alpha1.GroupVersion.String(), Kind: hubv1alpha1.ShareKind}

// appendFrame appends the event with a whole object.
func appendFrame(dst []byte, o *object) []byte {
	message := o.message(o.body)
	return append(wire.AppendWatchFrame(dst, string(watch.Modified), o.kind.TypeMeta, len(message)), message...)
}

func appendRemoval(dst []byte, name objectName) []byte {
	return appendMeta(dst, watch.Deleted, name.kind.TypeMeta,
		metav1.ObjectMeta{Namespace: name.name.Namespace, Name: name.name.Name})
}

// appendBookmark appends the bookmark about the digests of a part of a step, or its end.
func appendBookmark(dst []byte, mark *hubv1alpha1.Bookmark) []byte {
	return appendMeta(dst, watch.Bookmark, typeShare, mark.ObjectMeta())
}

func appendMeta(dst []byte, event watch.EventType, t wire.TypeMeta, meta metav1.ObjectMeta) []byte {
	message, _ := (&metav1.PartialObjectMetadata{ObjectMeta: meta}).Marshal() // it never fails
	return append(wire.AppendWatchFrame(dst, string(event), t, len(message)), message...)
}

// chunk is a part of a step, encoded once for all streams that it is written to.
type chunk struct {
	// member is a member of a gzip stream.
	member []byte
	// events is how many changes of the facts it has, which were received at the same time; 0 for older state.
	events   int
	received time.Time
	// queued counts the streams to which it has not been sent yet.
	queued atomic.Int32
}

func newChunk(frames []byte) *chunk {
	var member bytes.Buffer
	serve.Compress(&member, frames)
	return &chunk{member: bytes.Clone(member.Bytes())}
}

// encode encodes objects: those that are not encoded already as one chunk, together with mark, which may be nil.
func encode(mark *hubv1alpha1.Bookmark, objects iter.Seq[*object]) (chunks []*chunk) {
	var frames []byte
	for o := range objects {
		if o.encoded != nil {
			chunks = append(chunks, o.encoded)
		} else {
			frames = appendFrame(frames, o)
		}
	}
	if mark != nil {
		frames = appendBookmark(frames, mark)
	}
	if frames != nil {
		chunks = append(chunks, newChunk(frames))
	}
	return chunks
}
