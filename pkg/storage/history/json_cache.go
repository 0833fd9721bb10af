package history

import (
	"sync"
	"time"
)

const (
	// DefaultJSONBytes is enough for all objects that a node of a large cluster sees.
	DefaultJSONBytes = 8 << 20
	// jsonIdle is how long an unused encoding is kept at least, unless the cache is full.
	jsonIdle = 2 * time.Minute
)

// JSONCache keeps the JSON of recently requested objects, so that watchers and lists share one encoding. Its size is
// bounded, and entries that are not used are dropped.
//
// It has two generations. New entries go to the younger one. When that has half of the allowed bytes, or is jsonIdle
// old, it becomes the older one, and the older one before it is dropped. An entry that is used moves to the younger
// generation.
type JSONCache struct {
	max int

	mu             sync.Mutex
	younger, older map[*Object][]byte
	bytes          int // held by the younger generation, including its objects
	aging          *time.Timer
}

// NewJSONCache makes a cache of at most maxBytes bytes.
func NewJSONCache(maxBytes int) *JSONCache { return &JSONCache{max: maxBytes} }

func (c *JSONCache) get(o *Object) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if encoded, ok := c.younger[o]; ok {
		return encoded
	}
	encoded, ok := c.older[o]
	if ok {
		delete(c.older, o)
		c.add(o, encoded)
	}
	return encoded
}

func (c *JSONCache) put(o *Object, encoded []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(o, encoded)
}

// add adds an encoding to the younger generation, if it is not too large for that. It is called with the lock held.
func (c *JSONCache) add(o *Object, encoded []byte) {
	size := cap(encoded) + o.size()
	if size > c.max/2 {
		return
	}
	if c.bytes+size > c.max/2 {
		c.age()
	}
	if c.younger == nil {
		c.younger = make(map[*Object][]byte)
	}
	c.younger[o] = encoded
	c.bytes += size
	if c.aging == nil {
		c.aging = time.AfterFunc(jsonIdle, c.tick)
	}
}

// age drops the older generation, and makes the younger one the older one. It is called with the lock held.
func (c *JSONCache) age() {
	c.older, c.younger, c.bytes = c.younger, nil, 0
}

// tick ages the cache until it is empty.
func (c *JSONCache) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age()
	if c.older == nil {
		c.aging = nil
		return
	}
	c.aging.Reset(jsonIdle)
}
