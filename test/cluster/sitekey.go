package cluster

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
)

// siteKeySize is the number of bytes of a key of the exchange between wrappers.
const siteKeySize = 32

// WriteSiteKey writes a new key for the exchange between the wrappers of a site to a file in the directory, and returns
// the file's path.
func WriteSiteKey(dir string) (file string, err error) {
	key := make([]byte, siteKeySize)
	rand.Read(key)
	file = filepath.Join(dir, "keys")
	if err := os.WriteFile(file, []byte(base64.StdEncoding.EncodeToString(key)), 0o600); err != nil {
		return "", fmt.Errorf("writing a key: %w", err)
	}
	return file, nil
}
