package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// KeyLabelValue is the value of LabelGridUniqKey for a gridUniqKey: the key itself if it is a valid value of a
// label; else with "_" for "/", and if it is still too long, cut and ended by a hash. AnnotationGridUniqKey has
// the whole key.
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
