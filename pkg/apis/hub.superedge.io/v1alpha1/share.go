package v1alpha1

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A share is followed by a WATCH of the resource Shares with the field selector metadata.name=NODE, in protobuf. Its
// frames are watch events with Services, EndpointSlices, the node's own Node, and PartialObjectMetadata for the labels
// of nodes. A BOOKMARK has the metadata of a Mark; a step ends with one whose Mark says that. People read a share by a
// GET of the resource, as a list in JSON.
const (
	// Shares is the resource, ShareKind its kind.
	Shares    = "shares"
	ShareKind = "Share"
	// SharesPath is where the API server has it.
	SharesPath = GroupVersionPath + "/" + Shares
	// DigestsHeader is the header of a request that has the Digests of what the client knows. Without it the whole
	// share is sent.
	DigestsHeader = "Share-Digests"

	annotationDigests = GroupName + "/digests"
	annotationWhole   = GroupName + "/whole"
)

// Buckets is the number of buckets of a share.
const Buckets = 256

// BucketOf returns the bucket of an object. resource is that of its kind; labels of nodes are of the resource "labels".
func BucketOf(resource string, name types.NamespacedName) uint8 {
	h := fnv.New32a()
	for _, part := range []string{resource, name.Namespace, name.Name} {
		_, _ = h.Write([]byte(part)) // it never fails
		_, _ = h.Write([]byte{0})
	}
	sum := h.Sum32()
	return uint8(sum ^ sum>>8 ^ sum>>16 ^ sum>>24) //nolint:gosec // the lowest bits of a hash
}

// Digests has one digest of each bucket of a share. An empty bucket has the digest 0.
type Digests [Buckets]uint64

// String encodes the digests for DigestsHeader.
func (d *Digests) String() string {
	raw, _ := binary.Append(nil, binary.BigEndian, d) // numbers can be encoded
	return base64.StdEncoding.EncodeToString(raw)
}

var errDigests = errors.New("the digests of a share cannot be read")

// ParseDigests reads what String returned.
func ParseDigests(text string) (*Digests, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != 8*Buckets {
		return nil, errDigests
	}
	d := &Digests{}
	_, err = binary.Decode(raw, binary.BigEndian, d)
	return d, err
}

// The parts of a Version.
const (
	VersionNodes = iota
	VersionServices
	VersionSlices
)

// Version has the resourceVersions of nodes, Services and EndpointSlices at the API server. It is a lower bound: a
// share with this version includes all changes up to these.
type Version [3]uint64

// String encodes the version as the resourceVersion of a request or a Mark.
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", v[VersionNodes], v[VersionServices], v[VersionSlices])
}

// ParseVersion reads what String returned; "" and "0" are no version.
func ParseVersion(text string) (Version, error) {
	var v Version
	if text == "" || text == "0" {
		return v, nil
	}
	parts := strings.Split(text, ".")
	if len(parts) != len(v) {
		return v, fmt.Errorf("%q is not a version of a share", text)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil {
			return Version{}, fmt.Errorf("%q is not a version of a share: %w", text, err)
		}
		v[i] = n
	}
	return v, nil
}

// Reaches reports whether each part of the version is at least that of another one.
func (v Version) Reaches(other Version) bool {
	for i := range v {
		if v[i] < other[i] {
			return false
		}
	}
	return true
}

// Bookmark says what a part of a step means for the digests of a share. The last one ends the step.
type Bookmark struct {
	// Ends is set if the bookmark ends a step; Version is then that of the share after the step.
	Ends    bool
	Version Version
	// Whole reports which buckets the step has whole: objects of these that it does not have are not in the share.
	// Their digests begin at 0.
	Whole [Buckets]bool
	// Added has what is added to the digests of buckets.
	Added map[uint8]uint64
}

// AddTo changes digests as the bookmark says, and notes which buckets are whole.
func (m *Bookmark) AddTo(digests *Digests, whole *[Buckets]bool) {
	for bucket := range m.Whole {
		if m.Whole[bucket] {
			digests[bucket], whole[bucket] = 0, true
		}
	}
	for bucket, digest := range m.Added {
		digests[bucket] += digest
	}
}

// ObjectMeta encodes a bookmark.
func (m *Bookmark) ObjectMeta() metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Annotations: make(map[string]string)}
	if m.Ends {
		meta.ResourceVersion = m.Version.String()
	}
	if len(m.Added) > 0 {
		raw := make([]byte, 0, 9*len(m.Added))
		for bucket, digest := range m.Added {
			raw = binary.BigEndian.AppendUint64(append(raw, bucket), digest)
		}
		meta.Annotations[annotationDigests] = base64.StdEncoding.EncodeToString(raw)
	}
	if m.Whole != [Buckets]bool{} {
		var bits [Buckets / 8]byte
		for bucket, whole := range m.Whole {
			if whole {
				bits[bucket/8] |= 1 << (bucket % 8)
			}
		}
		meta.Annotations[annotationWhole] = base64.StdEncoding.EncodeToString(bits[:])
	}
	return meta
}

// ParseBookmark reads what ObjectMeta encoded.
func ParseBookmark(resourceVersion string, annotations map[string]string) (*Bookmark, error) {
	version, err := ParseVersion(resourceVersion)
	if err != nil {
		return nil, err
	}
	m := &Bookmark{Ends: resourceVersion != "", Version: version}
	raw, err := base64.StdEncoding.DecodeString(annotations[annotationDigests])
	if err != nil || len(raw)%9 != 0 {
		return nil, errDigests
	}
	m.Added = make(map[uint8]uint64, len(raw)/9)
	for ; len(raw) > 0; raw = raw[9:] {
		m.Added[raw[0]] = binary.BigEndian.Uint64(raw[1:])
	}
	bits, err := base64.StdEncoding.DecodeString(annotations[annotationWhole])
	if err != nil || len(bits) != 0 && len(bits) != Buckets/8 {
		return nil, errDigests
	}
	for i, byteOfBits := range bits {
		for bit := range 8 {
			m.Whole[8*i+bit] = byteOfBits&(1<<bit) != 0
		}
	}
	return m, nil
}
