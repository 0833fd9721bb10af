package filters

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/serve"
)

// KeptOptions configure KeptAnswers.
type KeptOptions struct {
	// Dir is the directory of the store.
	Dir string
	// Clients are the names of the clients, as their User-Agents begin, up to a slash.
	Clients []string
	// Link knows whether the upstream is away.
	Link   Link
	Logger logr.Logger
}

// KeptAnswers are answers of the upstream that some clients need to start, which the wrapper gives them again while the
// upstream is away. They are in memory, and in a store.
type KeptAnswers struct {
	KeptOptions

	// mu guards the fields below.
	mu    sync.Mutex
	store *store.Store
	// answers has the answers by request, each a keptAnswer, a newline and the body, and readers their readers. size is
	// how many bytes all have, sizes those of each reader, and asked has the requests in the order in which they came
	// last, those of earlier processes first.
	answers map[string][]byte
	readers map[string]string
	size    int
	sizes   map[string]int
	asked   []string
	// pending has what is not on the disk, and saved the requests whose answers are.
	pending map[string][]byte
	saved   map[string]struct{}
}

const (
	// maxKeptAnswer is how many bytes of one answer are kept, maxKept how many of all. Beyond that, of the reader that
	// has most, the answer is dropped that was last requested the longest ago.
	maxKeptAnswer, maxKept = 4 << 20, 16 << 20
	// keptHourlyBytes is the most bytes that are written an hour.
	keptHourlyBytes = 8 << 20
	// initialEventsEnd is the annotation of the bookmark after the objects that there are at the beginning of a watch.
	initialEventsEnd = "k8s.io/initial-events-end"
)

// keptAnswer is the head of an answer.
type keptAnswer struct {
	ContentType     string `json:"contentType"`
	ContentEncoding string `json:"contentEncoding,omitempty"`
	// Reader is who read it last.
	Reader string `json:"reader,omitempty"`
}

// readerOf returns who sends a request, by the subject of its token; "" without credentials. The token need not be
// verified: the upstream does that before it gives the answer that is kept.
func readerOf(r *http.Request) string {
	credentials := r.Header.Get("Authorization")
	if credentials == "" {
		return ""
	}
	var claims struct {
		Subject string `json:"sub"`
	}
	if parts := strings.Split(credentials, "."); len(parts) == 3 {
		payload, _ := base64.RawURLEncoding.DecodeString(parts[1]) // what cannot be read has no subject
		_ = json.Unmarshal(payload, &claims)
	}
	// Limited in length, and another name for each of the credentials that have no subject.
	return fmt.Sprintf("%x", sha256.Sum256([]byte(cmp.Or(claims.Subject, credentials))))[:16]
}

// OpenKeptAnswers reads what was kept. What cannot be used or written is logged.
func OpenKeptAnswers(o KeptOptions) *KeptAnswers {
	k := &KeptAnswers{KeptOptions: o, pending: map[string][]byte{}, saved: map[string]struct{}{},
		readers: map[string]string{}, sizes: map[string]int{}}
	var problems []error
	k.store, k.answers, problems = store.Open(store.Options{Dir: o.Dir, HourlyBytes: keptHourlyBytes,
		State: func() iter.Seq2[string, []byte] { return maps.All(k.answers) }})
	for _, problem := range problems {
		o.Logger.Error(problem, "Not all kept answers can be used, or nothing can be written", "directory", o.Dir)
	}
	for request, answer := range k.answers {
		k.answers[request] = bytes.Clone(answer) // it is a part of something larger
		k.count(request, 1)
		k.asked = append(k.asked, request)
		k.saved[request] = struct{}{}
	}
	return k
}

// Close writes what is not on the disk, and lets another process use the directory.
func (k *KeptAnswers) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.store.Commit(k.pending), k.store.Close())
}

// WithKeptAnswers keeps what the clients read with credentials of their own, but for Secrets and subresources: the last
// answer to each GET and LIST,
// and the objects at the beginning of each watch with sendInitialEvents. While the upstream is away it gives them to
// clients that know nothing yet, byte for byte, with the upstream's resourceVersions, so that clients continue from
// there when the upstream is back. A client that names a resourceVersion has a newer state, and gets none.
func WithKeptAnswers(kept *KeptAnswers) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		query := r.URL.Query()
		watch := serve.IsTrue(query, "watch")
		if !kept.concerns(r, query, watch) {
			next.ServeHTTP(w, r)
			return
		}
		version := query.Get("resourceVersion")
		request, reader := requestOf(r, query), readerOf(r)
		if back := kept.Link.Away(); back != nil {
			switch {
			case version != "" && version != "0", !kept.answerKept(w, request):
				next.ServeHTTP(w, r)
			case watch:
				select {
				case <-back:
				case <-r.Context().Done():
				}
			}
			return
		}
		if reader == "" {
			next.ServeHTTP(w, r)
			return
		}
		recorder := &answerRecorder{statusRecorder: &statusRecorder{ResponseWriter: w}, watch: watch}
		recorder.complete = func() {
			if err := kept.keep(request, reader, recorder); err != nil {
				klog.FromContext(r.Context()).Error(err, "Cannot keep an answer", "path", r.URL.Path)
			}
		}
		next.ServeHTTP(recorder, r) // it panics if the answer breaks off
		if !watch && recorder.keeping() {
			recorder.complete()
		}
	})
}

// concerns reports whether the answer to a request is kept.
func (k *KeptAnswers) concerns(r *http.Request, query url.Values, watch bool) bool {
	client, _, _ := strings.Cut(r.UserAgent(), "/")
	info := serve.ParseRequest(r)
	return r.Method == http.MethodGet && slices.Contains(k.Clients, client) && info.Subresource == "" &&
		info.Resource != "secrets" && query.Get("continue") == "" && !strings.Contains(r.URL.Path, "/watch/") &&
		(!watch || serve.IsTrue(query, "sendInitialEvents"))
}

// requestOf names a request, without what differs from one start of a client to the next. That is removed from the
// query.
func requestOf(r *http.Request, query url.Values) string {
	for _, name := range []string{"resourceVersion", "timeout", "timeoutSeconds"} {
		query.Del(name)
	}
	client, _, _ := strings.Cut(r.UserAgent(), "/")
	return fmt.Sprintf("%q", []string{client, r.URL.Path, query.Encode(), r.Header.Get("Accept")})
}

// answerKept writes a kept answer, and reports whether there is one.
func (k *KeptAnswers) answerKept(w http.ResponseWriter, request string) bool {
	head, body, whole := bytes.Cut(k.find(request), []byte("\n"))
	var kept keptAnswer
	if !whole || json.Unmarshal(head, &kept) != nil {
		return false
	}
	w.Header().Set("Content-Type", kept.ContentType)
	if kept.ContentEncoding != "" {
		w.Header().Set("Content-Encoding", kept.ContentEncoding)
	}
	_, _ = w.Write(body) // if the client is gone, it needs no answer
	_ = http.NewResponseController(w).Flush()
	return true
}

// find returns a kept answer; nil if none is kept.
func (k *KeptAnswers) find(request string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer, ok := k.answers[request]
	if ok {
		k.noteAsked(request)
	}
	return answer
}

// noteAsked puts a request at the end of those that were asked for. The caller holds the lock.
func (k *KeptAnswers) noteAsked(request string) {
	k.asked = append(slices.DeleteFunc(k.asked, func(r string) bool { return r == request }), request)
}

// keep keeps an answer, unless it is kept already. It is written later if too much was written of late.
func (k *KeptAnswers) keep(request, reader string, answer *answerRecorder) error {
	head, err := json.Marshal(keptAnswer{ContentType: answer.Header().Get("Content-Type"),
		ContentEncoding: answer.Header().Get("Content-Encoding"), Reader: reader})
	if err != nil {
		return err
	}
	data := slices.Concat(head, []byte("\n"), answer.body.Bytes())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noteAsked(request)
	if bytes.Equal(k.answers[request], data) {
		return nil
	}
	k.put(request, data)
	for k.size > maxKept {
		k.drop()
	}
	if !k.store.Due() {
		return nil
	}
	if err := k.store.Commit(k.pending); err != nil {
		return err
	}
	for request, answer := range k.pending {
		if answer == nil {
			delete(k.saved, request)
		} else {
			k.saved[request] = struct{}{}
		}
	}
	clear(k.pending)
	return nil
}

// drop drops an answer of the reader that has most. So one that reads much only displaces its own answers. The caller
// holds the lock.
func (k *KeptAnswers) drop() {
	i, most := 0, -1
	for j, request := range k.asked {
		if size := k.sizes[k.readers[request]]; size > most {
			i, most = j, size
		}
	}
	k.put(k.asked[i], nil)
	k.asked = slices.Delete(k.asked, i, i+1)
}

// put replaces an answer, or removes it if it is nil. The caller holds the lock.
func (k *KeptAnswers) put(request string, answer []byte) {
	if _, ok := k.answers[request]; ok {
		k.count(request, -1)
		delete(k.answers, request)
	}
	if answer != nil {
		k.answers[request] = answer
		k.count(request, 1)
	}
	if _, saved := k.saved[request]; answer == nil && !saved {
		delete(k.pending, request)
		return
	}
	k.pending[request] = answer
}

// count adds an answer to the sizes (delta 1), or takes it away (delta -1). The caller holds the lock.
func (k *KeptAnswers) count(request string, delta int) {
	answer := k.answers[request]
	if delta > 0 {
		var kept keptAnswer
		head, _, _ := bytes.Cut(answer, []byte("\n"))
		_ = json.Unmarshal(head, &kept) // an answer that cannot be read has no reader
		k.readers[request] = kept.Reader
	}
	reader, size := k.readers[request], delta*(len(request)+len(answer))
	k.size += size
	if k.sizes[reader] += size; k.sizes[reader] == 0 {
		delete(k.sizes, reader)
	}
	if delta < 0 {
		delete(k.readers, request)
	}
}

type answerRecorder struct {
	*statusRecorder

	watch bool
	// complete is called when a watch has shown what there is at its beginning.
	complete func()
	body     bytes.Buffer
	// parsed is how many bytes of the body are whole events. over is set when nothing more is recorded.
	parsed int
	over   bool
}

// keeping reports whether the answer may be kept.
func (a *answerRecorder) keeping() bool { return a.status() == http.StatusOK && !a.over }

// Write implements http.ResponseWriter.
func (a *answerRecorder) Write(data []byte) (int, error) {
	if a.keeping() {
		a.over = a.body.Len()+len(data) > maxKeptAnswer
		a.body.Write(data)
		for a.watch && a.keeping() {
			if !a.nextEvent() {
				break
			}
		}
		if a.over {
			a.body = bytes.Buffer{}
		}
	}
	return a.statusRecorder.Write(data)
}

// nextEvent goes past the next whole event of a watch, if there is one. The bookmark after the first objects ends the
// recording.
func (a *answerRecorder) nextEvent() bool {
	rest := a.body.Bytes()[a.parsed:]
	size := bytes.IndexByte(rest, '\n') + 1
	if strings.Contains(a.Header().Get("Content-Type"), "protobuf") {
		size = 0
		if len(rest) >= 4 {
			size = 4 + int(binary.BigEndian.Uint32(rest))
		}
	}
	if size <= 0 || size > len(rest) {
		return false
	}
	a.parsed += size
	if bytes.Contains(rest[:size], []byte(initialEventsEnd)) {
		a.body.Truncate(a.parsed)
		a.complete()
		a.over = true
	}
	return true
}
