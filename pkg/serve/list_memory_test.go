package serve

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/pkg/serve/quota"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// many are Services, each with a slice of ten endpoints.
func many(n int) []served.Typed {
	var objects []served.Typed
	nodes := make([]string, 10)
	for i := range nodes {
		nodes[i] = thisNode
	}
	for i := range n {
		name := fmt.Sprintf("service-%04d", i)
		objects = append(objects, labelled(service(name), map[string]string{"app": name, "team": "shop"}),
			slice(name, nodes...))
	}
	return objects
}

// TestListMemory holds what is counted for a list against what it is in the end.
func TestListMemory(t *testing.T) {
	c := newSyncedCluster(t, many(200)...)
	var counted int
	c.server.Admit = func(_ *http.Request, bytes int) (func(), bool) {
		counted = bytes
		return func() {}, true
	}
	for _, accept := range []string{
		asProtobuf, asJSON, asProtobuf + asMetadataList, asJSON + asMetadataList,
	} {
		for _, path := range []string{servicesPath, slicesPath} {
			counted = 0
			body := c.get(path, "Accept", accept).body
			if counted < len(body) || counted > 4*len(body) {
				t.Errorf("%s as %s: %d bytes were counted for a body of %d", path, accept, counted, len(body))
			}
		}
	}
}

// TestListsAreBounded: an unkind neighbour that reads lists slowly, and as many as it can get, is answered 429, keeps
// nobody from his own list, and takes no more memory than it may.
func TestListsAreBounded(t *testing.T) {
	const limit = 4 << 20
	memory := quota.New(limit)
	c := newCluster(t, func(_ *storagetest.Options, s *Server) {
		s.Admit = func(r *http.Request, bytes int) (func(), bool) {
			return memory.AcquireN(r.Header.Get("Caller"), bytes)
		}
	})
	c.sync(many(500)...)
	size := len(c.get(slicesPath, "Accept", asProtobuf).body)
	before := liveheap.Size()

	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	var mu sync.Mutex
	codes := map[int]int{}
	answered := make(chan struct{}, 100)
	for range cap(answered) {
		readers.Go(func() {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, slicesPath, nil)
			r.Header.Set("Accept", asProtobuf)
			r.Header.Set("Caller", "neighbour")
			w := &stuckWriter{ResponseRecorder: httptest.NewRecorder(), until: ctx.Done(), began: func(code int) {
				mu.Lock()
				defer mu.Unlock()
				codes[code]++
				answered <- struct{}{}
			}}
			c.ServeHTTP(w, r)
		})
	}
	for range cap(answered) {
		<-answered
	}
	if most := limit/2/size + 1; codes[http.StatusOK] == 0 || codes[http.StatusOK] > most ||
		codes[http.StatusTooManyRequests] != cap(answered)-codes[http.StatusOK] {
		t.Errorf("of %d lists of %d bytes: %v; want at most %d, and 429 for the rest", cap(answered), size, codes, most)
	}
	if taken := liveheap.Size() - before; taken > limit {
		t.Errorf("the lists under way take %d bytes of the heap, more than %d", taken, limit)
	}
	for _, caller := range []string{"kube-proxy", "coredns"} {
		if r := c.get(slicesPath, "Accept", asProtobuf, "Caller", caller); r.code != http.StatusOK ||
			len(r.body) != size {
			t.Errorf("%s: got %d and %d bytes, want its list", caller, r.code, len(r.body))
		}
	}
	refused := c.get(slicesPath, "Accept", asProtobuf, "Caller", "neighbour")
	if s := refused.status(t); s.Code != http.StatusTooManyRequests || refused.header.Get("Retry-After") == "" {
		t.Errorf("the neighbour: got %+v, Retry-After %q", s, refused.header.Get("Retry-After"))
	}
	cancel()
	readers.Wait()
	soon.UntilQuiet(t, func() string {
		if taken := memory.Stats().Taken; taken != 0 {
			return fmt.Sprintf("%d bytes are taken when no client reads any more", taken)
		}
		return ""
	})
	if r := c.get(slicesPath, "Accept", asProtobuf, "Caller", "neighbour"); r.code != http.StatusOK {
		t.Errorf("the neighbour, afterwards: %d", r.code)
	}
}

// stuckWriter is a client that reads nothing of a list until its end is near.
type stuckWriter struct {
	*httptest.ResponseRecorder

	until <-chan struct{}
	began func(code int)
	code  int
}

func (w *stuckWriter) WriteHeader(code int) { w.code = code }

func (w *stuckWriter) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	w.began(w.code)
	if w.code == http.StatusOK {
		<-w.until
	}
	return len(p), io.ErrClosedPipe
}
