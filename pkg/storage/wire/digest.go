package wire

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

// Digest returns a digest of an object, without the fields that SameMeta ignores. It is the same in every process, and
// never 0. Objects of different kinds have different digests.
func Digest(kind string, meta, body []byte) uint64 {
	content := make([]byte, 0, len(kind)+len(meta)+len(body)+2)
	content = append(append(content, kind...), 0)
	for f := field.Of(meta); nextOfContent(&f); {
		content = append(content, f.Encoded...)
	}
	sum := sha256.Sum256(append(append(content, 0), body...))
	return binary.BigEndian.Uint64(sum[:]) | 1
}
