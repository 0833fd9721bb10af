package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// KeyLabelValue returns the value of LabelGridUniqKey for a gridUniqKey. That is the key itself if it is a valid label
// value, else the key with "_" for "/". If that is too long, it is cut and a hash is appended. AnnotationGridUniqKey
// has the whole key.
func KeyLabelValue(key string) string {
	if len(validation.IsValidLabelValue(key)) == 0 {
		return key
	}
	value := strings.ReplaceAll(key, "/", "_")
	if len(value) <= validation.LabelValueMaxLength {
		return value
	}
	sum := sha256.Sum256([]byte(key))
	hash := hex.EncodeToString(sum[:5])
	return value[:validation.LabelValueMaxLength-len(hash)-1] + "-" + hash
}
