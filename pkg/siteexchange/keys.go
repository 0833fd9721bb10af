package siteexchange

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

const (
	// keySize is the number of bytes of a key: AES-256.
	keySize = 32
	// maxKeys is the most keys of a file. Two are needed while one takes the place of the other.
	maxKeys = 8
	// maxKeyFile is the most bytes of a file with keys.
	maxKeyFile = 4 << 10
)

// What the keys of the file are not used for themselves: memberlist's messages, and questions with their answers, are
// sealed with keys that are derived from them for nothing else.
const (
	useGossip = "application-grid site exchange 1: memberlist"
	useWords  = "application-grid site exchange 1: questions and answers"
)

// errNotOpened means that none of the keys opens a message.
var errNotOpened = errors.New("none of the keys opens it")

// keys are the keys of a file.
type keys struct {
	// gossip are those of memberlist, and messages open what it has sealed with them. words are those of questions and
	// answers. The first of each seals, all open.
	gossip          [][]byte
	messages, words []cipher.AEAD
}

// parseKeys reads a file: one key a line, base64 of 32 bytes. Empty lines and lines that begin with # are skipped.
func parseKeys(content []byte) (*keys, error) {
	parsed := &keys{}
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
		if err := parsed.add(key); err != nil {
			return nil, err
		}
	}
	switch {
	case len(parsed.words) == 0:
		return nil, errors.New("it has no key")
	case len(parsed.words) > maxKeys:
		return nil, fmt.Errorf("it has %d keys, more than %d", len(parsed.words), maxKeys)
	}
	return parsed, nil
}

func (k *keys) add(key []byte) error {
	gossip, err := hkdf.Key(sha256.New, key, nil, useGossip, keySize)
	if err != nil {
		return fmt.Errorf("deriving a key: %w", err)
	}
	words, err := hkdf.Key(sha256.New, key, nil, useWords, keySize)
	if err != nil {
		return fmt.Errorf("deriving a key: %w", err)
	}
	k.gossip = append(k.gossip, gossip)
	if k.messages, err = addCipher(k.messages, gossip); err != nil {
		return err
	}
	k.words, err = addCipher(k.words, words)
	return err
}

func addCipher(to []cipher.AEAD, key []byte) ([]cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("using a key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("using a key: %w", err)
	}
	return append(to, aead), nil
}

// seal seals a message with the first key. What is authenticated is not part of the result.
func (k *keys) seal(message, authenticated []byte) []byte {
	return k.words[0].Seal(nil, nil, message, authenticated) //nolint:gosec // it draws the nonce itself
}

// open opens what seal has sealed with any of the keys.
func (k *keys) open(sealed, authenticated []byte) ([]byte, error) {
	return openWith(k.words, sealed, authenticated)
}

// openMessage opens what memberlist has sealed with any of the keys: a nonce, and what GCM made of a message.
func (k *keys) openMessage(sealed, authenticated []byte) ([]byte, error) {
	return openWith(k.messages, sealed, authenticated)
}

func openWith(ring []cipher.AEAD, sealed, authenticated []byte) ([]byte, error) {
	for _, key := range ring {
		if message, err := key.Open(nil, nil, sealed, authenticated); err == nil {
			return message, nil
		}
	}
	return nil, errNotOpened
}

// keyFile has the keys of a file, and follows its changes.
type keyFile struct {
	path string
	// ring is memberlist's. It gets the keys of the file once there are any.
	ring *memberlist.Keyring

	mu sync.RWMutex
	// current and content are guarded by mu. current is nil until the file could be used.
	current *keys
	content []byte
}

func newKeyFile(path string) *keyFile { return &keyFile{path: path, ring: &memberlist.Keyring{}} }

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
	if err := f.install(parsed.gossip); err != nil {
		return false, fmt.Errorf("%s: %w", f.path, err)
	}
	f.current, f.content = parsed, content
	return true, nil
}

// install gives memberlist the keys, the first to seal with, and takes from it those that are no longer in the file.
func (f *keyFile) install(gossip [][]byte) error {
	for _, key := range gossip {
		if err := f.ring.AddKey(key); err != nil {
			return fmt.Errorf("adding a key: %w", err)
		}
	}
	if err := f.ring.UseKey(gossip[0]); err != nil {
		return fmt.Errorf("using a key: %w", err)
	}
	for _, key := range slices.Clone(f.ring.GetKeys()) {
		if contains(gossip, key) {
			continue
		}
		if err := f.remove(key); err != nil {
			return fmt.Errorf("removing a key: %w", err)
		}
	}
	if err := f.ring.UseKey(gossip[0]); err != nil {
		return fmt.Errorf("using a key: %w", err)
	}
	return nil
}

// remove takes a key that is not the first from memberlist. RemoveKey moves the keys behind it, in an array that
// memberlist's other goroutines read without a lock, so it has to be the last. UseKey makes a new array.
func (f *keyFile) remove(key []byte) error {
	for {
		all := f.ring.GetKeys()
		last := all[len(all)-1]
		if bytes.Equal(last, key) {
			return f.ring.RemoveKey(key)
		}
		if err := f.ring.UseKey(last); err != nil {
			return err
		}
	}
}

func contains(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// keys returns the keys in use; nil if there are none yet.
func (f *keyFile) keys() *keys {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.current
}
