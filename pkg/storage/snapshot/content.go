package snapshot

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	kjson "sigs.k8s.io/json"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Keys of the store. That of an object is objectPrefix, the input, the namespace and the name, separated by zeros.
const (
	// keyRevision has a revision that is larger than every revision that was given out. It is a lasting key of the
	// store.
	keyRevision = "revision"
	// keyHead has the Snapshot as JSON, and keyMark a mark.
	keyHead, keyMark = "head", "mark"
	objectPrefix     = "object\x00"

	// maxRevision is the largest revision that is accepted. The numbers above it will not be used up.
	maxRevision = 1 << 62
)

func isLasting(key string) bool { return key == keyRevision }

// mark has the fields of a Snapshot that change often. The head of the Snapshot has zeros instead.
type mark struct {
	AsOf      time.Time
	Revision  uint64
	ShareMark []byte `json:",omitempty"`
}

// content is a Snapshot, with its encoded head and mark.
type content struct {
	*facts.Snapshot

	head, mark []byte
}

func contentOf(state *facts.Snapshot) (content, error) {
	head := *state
	head.AsOf, head.Revision, head.ShareMark = time.Time{}, 0, nil
	c := content{Snapshot: state}
	var err, markErr error
	c.head, err = json.Marshal(head)
	c.mark, markErr = json.Marshal(mark{state.AsOf, state.Revision, state.ShareMark})
	return c, errors.Join(err, markErr)
}

// entries yields the keys and values of the content in the store. A value is overwritten by the next one.
func (c content) entries() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		if c.Snapshot == nil || !yield(keyHead, c.head) || !yield(keyMark, c.mark) {
			return
		}
		var buffer []byte
		for _, section := range c.Sections {
			for i, o := range section.Objects {
				buffer = appendObject(buffer[:0], &section, i)
				if !yield(objectPrefix+section.Input+"\x00"+o.Namespace+"\x00"+o.Name, buffer) {
					return
				}
			}
		}
	}
}

// appendObject appends a byte that says whether the section is shown, then the revision and the digest, 8 bytes each,
// and the object as a message.
func appendObject(to []byte, section *facts.Section, i int) []byte {
	if section.Shown == nil {
		to = append(to, 0)
	} else {
		to = binary.BigEndian.AppendUint64(append(to, 1), section.Shown[i].Revision)
		to = binary.BigEndian.AppendUint64(to, section.Shown[i].Digest)
	}
	return wire.AppendObject(to, section.Objects[i].Meta, section.Objects[i].Body, 0)
}

var errForm = errors.New("it is not in the form of a snapshot")

// parse reads the entries of a store; the Snapshot is nil if they have none.
func parse(kept map[string][]byte) (content, error) {
	c := content{Snapshot: &facts.Snapshot{}, head: kept[keyHead], mark: kept[keyMark]}
	if c.head == nil {
		return content{}, nil
	}
	if err := errors.Join(decode(c.head, c.Snapshot), decode(c.mark, c.Snapshot)); err != nil {
		return content{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(kept)) {
		name, ok := strings.CutPrefix(key, objectPrefix)
		if !ok {
			continue
		}
		input, _, _ := strings.Cut(name, "\x00")
		at := slices.IndexFunc(c.Sections, func(s facts.Section) bool { return s.Input == input })
		if at < 0 {
			return content{}, fmt.Errorf("%w: an object of the input %q, which it does not have", errForm, input)
		}
		if err := parseObject(&c.Sections[at], kept[key]); err != nil {
			return content{}, fmt.Errorf("the object %q: %w", key, err)
		}
	}
	return c, nil
}

// decode decodes JSON. It refuses unknown names: they come from another version of this program, whose data may have
// another meaning.
func decode(from []byte, to any) error {
	strict, err := kjson.UnmarshalStrict(from, to, kjson.DisallowUnknownFields)
	if err = cmp.Or(err, errors.Join(strict...)); err != nil {
		return fmt.Errorf("%w: %w", errForm, err)
	}
	return nil
}

func parseObject(section *facts.Section, value []byte) error {
	const shownSize = 1 + 16
	switch {
	case len(value) > 0 && value[0] == 0 && section.Shown == nil:
		value = value[1:]
	case len(value) >= shownSize && value[0] == 1 && len(section.Shown) == len(section.Objects):
		section.Shown = append(section.Shown, facts.Shown{Revision: binary.BigEndian.Uint64(value[1:]),
			Digest: binary.BigEndian.Uint64(value[9:])})
		value = value[shownSize:]
	default:
		return errForm
	}
	o, err := wire.ParseObject(value)
	section.Objects = append(section.Objects, o)
	return err
}

// parseRevision reads the value of keyRevision; 0 if it is missing.
func parseRevision(value []byte) (uint64, error) {
	if value == nil {
		return 0, nil
	}
	revision, err := strconv.ParseUint(string(value), 10, 64)
	if err == nil && revision > maxRevision {
		return 0, fmt.Errorf("%w: a revision of %d", errForm, revision)
	}
	return revision, err
}
