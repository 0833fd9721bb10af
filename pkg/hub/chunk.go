package hub

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// kind is a kind of object of a share.
type kind struct {
	// resource is the name by which objects lie in buckets.
	resource string
	wire.TypeMeta
}

// The kinds. kindNode is the node's own object, kindLabels the labels of a node.
var (
	kindService = kind{history.Services.Resource, history.Services.Type()}
	kindSlice   = kind{history.EndpointSlices.Resource, history.EndpointSlices.Type()}
	kindNode    = kind{history.Nodes.Resource, history.Nodes.Type()}
	kindLabels  = kind{"labels", wire.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}}

	typeShare = wire.TypeMeta{APIVersion: hubv1alpha1.GroupVersion.String(), Kind: hubv1alpha1.ShareKind}
)

// objectName names an object of a share.
type objectName struct {
	kind *kind
	name types.NamespacedName
}

func (n objectName) bucket() uint8 { return hubv1alpha1.BucketOf(n.kind.resource, n.name) }

// object is an object as a share has it. It is immutable.
type object struct {
	objectName

	upstream *wire.Object
	body     []byte
	digest   uint64
}

func newObject(k *kind, upstream *wire.Object, body []byte) *object {
	return &object{
		objectName: objectName{k, types.NamespacedName{Namespace: upstream.Namespace, Name: upstream.Name}},
		upstream:   upstream, body: body, digest: wire.Digest(k.resource, upstream.Meta, body),
	}
}

// labelsObject is a node with nothing but its labels.
func labelsObject(name string, labels topology.Labels) *object {
	message, err := (&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}).Marshal()
	if err != nil {
		panic("hub: encoding the labels of a node: " + err.Error())
	}
	o, err := wire.ParseObject(message)
	if err != nil {
		panic("hub: reading the labels of a node: " + err.Error())
	}
	o.Labels = labels // which the facts hold anyway
	return newObject(&kindLabels, o, nil)
}

// digestOf is the object's digest, 0 for no object.
func (o *object) digestOf() uint64 {
	if o == nil {
		return 0
	}
	return o.digest
}

// appendFrame appends the event that an object is as it is.
func appendFrame(dst []byte, o *object) []byte {
	version := number(o.upstream.ResourceVersion)
	dst = wire.AppendWatchFrame(dst, string(watch.Modified), o.kind.TypeMeta,
		wire.Size(o.upstream.Meta, o.body, version))
	return wire.AppendObject(dst, o.upstream.Meta, o.body, version)
}

// appendRemoval appends the event that an object is gone.
func appendRemoval(dst []byte, name objectName) []byte {
	return appendMeta(dst, watch.Deleted, name.kind.TypeMeta,
		metav1.ObjectMeta{Namespace: name.name.Namespace, Name: name.name.Name})
}

// appendMark appends the end of a step.
func appendMark(dst []byte, node string, mark *hubv1alpha1.Mark) []byte {
	return appendMeta(dst, watch.Bookmark, typeShare, mark.ObjectMeta(node))
}

func appendMeta(dst []byte, event watch.EventType, t wire.TypeMeta, meta metav1.ObjectMeta) []byte {
	message, err := (&metav1.PartialObjectMetadata{ObjectMeta: meta}).Marshal()
	if err != nil {
		panic("hub: encoding metadata: " + err.Error())
	}
	return append(wire.AppendWatchFrame(dst, string(event), t, len(message)), message...)
}

// chunk is a part of a step, encoded once for all streams that it is written to.
type chunk struct {
	// member is a member of a gzip stream.
	member []byte
	// events is how many changes of the facts it has, which were received at one time; 0 for what was known before.
	events   int
	received time.Time
	// queued counts the streams that have not been sent it.
	queued atomic.Int32
}

func newChunk(frames []byte, events int, received time.Time) *chunk {
	return &chunk{member: gzipMember(frames), events: events, received: received}
}

// storedBelow is the size from which compressing saves more than it costs.
const storedBelow = 1 << 10

var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// gzipMember makes a whole member of a gzip stream. It is flushed before it ends: a reader that has come to the end of
// a member waits for the next one before it returns what it has.
func gzipMember(frames []byte) []byte {
	if len(frames) < storedBelow {
		return storedMember(frames)
	}
	var member bytes.Buffer
	zip, ok := gzipWriters.Get().(*gzip.Writer)
	if !ok {
		panic("hub: the pool holds something else")
	}
	defer gzipWriters.Put(zip)
	zip.Reset(&member)
	_, _ = zip.Write(frames) // a Buffer takes everything
	_ = zip.Flush()
	_ = zip.Close()
	return bytes.Clone(member.Bytes())
}

// storedMember is a member that is not compressed (RFC 1952): a stored block, an empty one, by which readers know that
// what came is whole, and a last one.
func storedMember(frames []byte) []byte {
	const empty = "\x00\x00\xff\xff"
	member := make([]byte, 0, len(frames)+40)
	member = append(member, 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff)
	n := uint16(len(frames)) //nolint:gosec // below storedBelow
	member = append(member, 0)
	member = binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(member, n), ^n)
	member = append(append(append(append(append(member, frames...), 0), empty...), 1), empty...)
	member = binary.LittleEndian.AppendUint32(member, crc32.ChecksumIEEE(frames))
	return binary.LittleEndian.AppendUint32(member, uint32(n))
}

// number reads a resourceVersion; 0 if it is none.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
