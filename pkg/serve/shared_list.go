package serve

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/application-grid/application-grid/pkg/storage/history"
)

// encodedList is the body of a LIST response.
type encodedList struct {
	body []byte
	// zipped is set if body is compressed.
	zipped bool
}

// listKey says what the body of a list depends on.
type listKey struct {
	history                   *history.History
	resource                  *history.Resource
	revision                  string
	namespace, labels, fields string
	format                    format
	zipped                    bool
}

// keyOf returns the key of a list. ok is false for one that is nobody else's: a part of a list, or a table, which says
// how old objects are.
func keyOf(h *history.History, p page, options Options, as *representation, zipped bool) (key listKey, ok bool) {
	if options.Limit > 0 || options.Continue != nil || as.form == formTable {
		return listKey{}, false
	}
	key = listKey{
		history: h, resource: as.resource, revision: p.meta.ResourceVersion, namespace: options.Selector.Namespace,
		format: as.format, zipped: zipped,
	}
	if options.Selector.Labels != nil {
		key.labels = options.Selector.Labels.String()
	}
	if options.Selector.Fields != nil {
		key.fields = options.Selector.Fields.String()
	}
	return key, true
}

// sharedLists are the lists that are being sent. Whoever asks for one of them meanwhile is sent the same bytes. Nothing
// is kept that nobody is sent. The zero value is ready.
type sharedLists struct {
	mu    sync.Mutex
	lists map[listKey]*sharedList // guarded by mu
}

// sharedList is one that is being sent, or encoded.
type sharedList struct {
	// encoded is closed when list and err are set.
	encoded chan struct{}
	list    encodedList
	err     error
	// release gives back the memory that the list takes.
	release func()
	// users counts who is sent it. The lock of sharedLists guards it.
	users int
}

// get returns a list, by calling encode if nobody is sent it yet. done is to be called when it was sent. An error of
// encode is that of its caller only; who waited for it tries by themselves.
func (s *sharedLists) get(
	ctx context.Context, key listKey, encode func() (list encodedList, release func(), err error),
) (list encodedList, done func(), err error) {
	for {
		shared, first := s.enter(key)
		if first {
			if s.encode(key, shared, encode); shared.err != nil {
				return encodedList{}, nil, shared.err
			}
			return shared.list, func() { s.leave(key, shared) }, nil
		}
		select {
		case <-shared.encoded:
		case <-ctx.Done():
			s.leave(key, shared)
			return encodedList{}, nil, ctx.Err()
		}
		if shared.err == nil {
			return shared.list, func() { s.leave(key, shared) }, nil
		}
	}
}

// errNotEncoded is the error of a list whose encoding has panicked.
var errNotEncoded = errors.New("the list was not encoded")

// encode lets those go on who wait for a list, also if encode panics.
func (s *sharedLists) encode(
	key listKey, shared *sharedList, encode func() (list encodedList, release func(), err error),
) {
	shared.err = errNotEncoded
	defer func() {
		if shared.err != nil {
			s.remove(key, shared)
		}
		close(shared.encoded)
	}()
	shared.list, shared.release, shared.err = encode()
}

// enter counts a user in, and reports whether it is the first, who encodes the list.
func (s *sharedLists) enter(key listKey) (shared *sharedList, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists == nil {
		s.lists = make(map[listKey]*sharedList)
	}
	shared = s.lists[key]
	if first = shared == nil; first {
		shared = &sharedList{encoded: make(chan struct{})}
		s.lists[key] = shared
	}
	shared.users++
	return shared, first
}

// remove takes out a list that could not be encoded.
func (s *sharedLists) remove(key listKey, shared *sharedList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists[key] == shared {
		delete(s.lists, key)
	}
}

// leave counts a user out. With the last one the list goes. The first stays until it is encoded.
func (s *sharedLists) leave(key listKey, shared *sharedList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if shared.users--; shared.users > 0 {
		return
	}
	if s.lists[key] == shared {
		delete(s.lists, key)
	}
	if shared.release != nil {
		shared.release()
	}
}

// sharedList encodes a list for all who ask for the same while it is sent, and sends it.
func (s *Server) sharedList(w http.ResponseWriter, r *http.Request, key listKey, page page, as *representation) error {
	list, done, err := s.lists.get(r.Context(), key, func() (encodedList, func(), error) {
		release, err := s.admit(r, page, as)
		if err != nil {
			return encodedList{}, nil, err
		}
		body, err := encodeList(page, as)
		if err != nil {
			release()
			return encodedList{}, nil, err
		}
		list := encodedList{body: body}
		if key.zipped && len(body) >= s.gzipThreshold() {
			var zipped bytes.Buffer
			compress(&zipped, body)
			list = encodedList{zipped.Bytes(), true}
		}
		return list, release, nil
	})
	if err != nil {
		return err
	}
	defer done()
	s.writeList(w, as.encoding, list)
	return nil
}
