package exchange

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

const (
	// keySize is the number of bytes of a key: AES-256.
	keySize = 32
	// maxKeys is the most keys of a file. Two are needed while one takes the place of the other.
	maxKeys = 8
	// maxKeyFile is the most bytes of a file with keys.
	maxKeyFile = 4 << 10
)

// parseKeys reads a file: one key a line, base64 of 32 bytes. Empty lines and lines that begin with # are skipped.
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

// keyFile has the keys of a file, and follows its changes. The first key is what this node asks with; it answers to
// all.
type keyFile struct {
	path string

	mu sync.RWMutex
	// current and content are guarded by mu. current is nil until the file could be used.
	current [][]byte
	content []byte
}

// load reads the file, and takes its keys into use if they have changed. After an error the keys stay as they are.
func (f *keyFile) load() (changed bool, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return false, err
	}
	if len(content) > maxKeyFile {
		return false, fmt.Errorf("%s has more than %d bytes", f.path, maxKeyFile)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && bytes.Equal(content, f.content) {
		return false, nil
	}
	parsed, err := parseKeys(content)
	if err != nil {
		return false, fmt.Errorf("%s: %w", f.path, err)
	}
	f.current, f.content = parsed, content
	return true, nil
}

// keys returns the keys in use; nil if there are none yet.
func (f *keyFile) keys() [][]byte {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.current
}
