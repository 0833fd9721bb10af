package exchange

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
)

const (
	// keySize is the number of bytes of a key.
	keySize = 32
	// maxKeys is the most keys of a file. Two are needed while one takes the place of the other.
	maxKeys = 8
)

// parseKeys reads the content of a file: one key a line, base64 of 32 bytes. Empty lines and lines that begin with #
// are skipped. A node asks with the first key, and answers to all.
func parseKeys(content []byte) (keys [][]byte, err error) {
	for number, line := range bytes.Split(content, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || len(key) != keySize {
			// The line is not repeated: it may be a key.
			return nil, fmt.Errorf("line %d is not the base64 of a key of %d bytes (openssl rand -base64 %d)",
				number+1, keySize, keySize)
		}
		keys = append(keys, key)
	}
	switch {
	case len(keys) == 0:
		return nil, errors.New("it has no key")
	case len(keys) > maxKeys:
		return nil, fmt.Errorf("it has %d keys, more than %d", len(keys), maxKeys)
	}
	return keys, nil
}
