package history

import (
	"sync"
	"time"
)

const (
	// DefaultJSONBytes is enough for all objects that a node of a large cluster sees.
	DefaultJSONBytes = 8 << 20
	// jsonIdle is how long after the last new encoding all are dropped.
	jsonIdle = 2 * time.Minute
)

// JSONCache keeps the JSON of recently requested objects, so that watchers and lists share one encoding. It is emptied
// when it is full, and when nothing was encoded for a while.
type JSONCache struct {
	max int

	mu    sync.Mutex
	kept  map[*Object][]byte
	bytes int // of the encodings and their objects
	idle  *time.Timer
}

// NewJSONCache makes a cache of at most maxBytes bytes.
func NewJSONCache(maxBytes int) *JSONCache { return &JSONCache{max: maxBytes} }

func (c *JSONCache) get(o *Object) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept[o]
}

// put keeps an encoding, unless it is larger than the cache.
func (c *JSONCache) put(o *Object, encoded []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := cap(encoded) + o.size()
	if size > c.max {
		return
	}
	if c.kept == nil || c.bytes+size > c.max {
		c.kept, c.bytes = make(map[*Object][]byte), 0
	}
	c.kept[o] = encoded
	c.bytes += size
	if c.idle != nil {
		c.idle.Reset(jsonIdle)
		return
	}
	c.idle = time.AfterFunc(jsonIdle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.kept, c.bytes = nil, 0
	})
}
