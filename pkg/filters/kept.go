package filters

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"

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
	// answers has the answers by request, and asked the requests in the order in which they came last, those of earlier
	// processes first.
	answers map[string]keptAnswer
	asked   []string
	// pending has what is not on the disk, and saved the requests whose answers are.
	pending map[string][]byte
	saved   sets.Set[string]
	// failure is why the last write failed; nil if it did not.
	failure error
}

const (
	// maxKeptAnswer is how many bytes of one answer are kept, maxKept how many of all. Beyond that, of the reader that
	// has most, the answer is dropped that was last requested the longest ago.
	maxKeptAnswer, maxKept = 4 << 20, 16 << 20
	// keptHourlyBytes is the most bytes that are written an hour.
	keptHourlyBytes = 8 << 20
	// keepInterval is how long an answer may be in memory only, if not too much was written of late.
	keepInterval = time.Second
)

// keptAnswer is an answer. The fields of its JSON are its head.
type keptAnswer struct {
	ContentType     string `json:"contentType"`
	ContentEncoding string `json:"contentEncoding,omitempty"`
	// Reader is who read it last.
	Reader string `json:"reader,omitempty"`

	// data is what is stored: the head, a newline and the body. body is nil if that cannot be read.
	data, body []byte
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
	k := &KeptAnswers{KeptOptions: o, answers: map[string]keptAnswer{}, pending: map[string][]byte{}}
	opened, stored, problems := store.Open(store.Options{Dir: o.Dir, HourlyBytes: keptHourlyBytes, State: k.state})
	for _, problem := range problems {
		o.Logger.Error(problem, "Not all kept answers can be used, or nothing can be written", "directory", o.Dir)
	}
	k.store = opened
	for request, data := range stored {
		answer := keptAnswer{data: bytes.Clone(data)} // it is a part of something larger
		head, body, _ := bytes.Cut(answer.data, []byte("\n"))
		if json.Unmarshal(head, &answer) == nil {
			answer.body = body
		}
		k.answers[request] = answer
		k.asked = append(k.asked, request)
	}
	k.saved = sets.KeySet(k.answers)
	return k
}

// state is the store's State.
func (k *KeptAnswers) state() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for request, answer := range k.answers {
			if !yield(request, answer.data) {
				return
			}
		}
	}
}

// Run writes the answers to the disk until ctx is done.
func (k *KeptAnswers) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) { k.write() }, keepInterval)
}

// write writes what is not on the disk. If too much was written of late, or if it fails, the next call tries again.
func (k *KeptAnswers) write() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.pending) == 0 || k.store.Left() == 0 {
		return
	}
	before := k.failure
	if k.failure = k.store.Commit(k.pending); k.failure == nil {
		k.saved = sets.KeySet(k.answers)
		clear(k.pending)
	} else if before == nil {
		k.Logger.Error(k.failure, "Cannot write kept answers, trying again", "directory", k.Dir)
	}
}

// Close writes what is not on the disk, and lets another process use the directory. Run must have ended.
func (k *KeptAnswers) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.store.Commit(k.pending), k.store.Close())
}

// WithKeptAnswers keeps what the clients read with credentials of their own, but for Secrets and subresources: the last
// answer to each GET and LIST, and the objects at the beginning of each watch with sendInitialEvents. While the
// upstream is away it gives them to clients that know nothing yet, byte for byte, with the upstream's resourceVersions,
// so that clients continue from there when the upstream is back. A client that names a resourceVersion has a newer
// state, and gets none.
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
		if back := kept.Link.AwayUntil(); back != nil {
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
		recorder.complete = func() { kept.keep(request, reader, recorder) }
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
	kept := k.find(request)
	if kept.body == nil {
		return false
	}
	w.Header().Set("Content-Type", kept.ContentType)
	if kept.ContentEncoding != "" {
		w.Header().Set("Content-Encoding", kept.ContentEncoding)
	}
	_, _ = w.Write(kept.body) // if the client is gone, it needs no answer
	_ = http.NewResponseController(w).Flush()
	return true
}

// find returns a kept answer, which has no body if none is kept.
func (k *KeptAnswers) find(request string) keptAnswer {
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

// keep keeps an answer, unless it is kept already. Run writes it to the disk.
func (k *KeptAnswers) keep(request, reader string, recorded *answerRecorder) {
	answer := keptAnswer{ContentType: recorded.Header().Get("Content-Type"),
		ContentEncoding: recorded.Header().Get("Content-Encoding"), Reader: reader}
	head, _ := json.Marshal(answer) //nolint:errchkjson // strings
	head = append(head, '\n')
	answer.data = slices.Concat(head, recorded.body.Bytes())
	answer.body = answer.data[len(head):]
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noteAsked(request)
	if bytes.Equal(k.answers[request].data, answer.data) {
		return
	}
	k.answers[request], k.pending[request] = answer, answer.data
	for size, sizes := k.size(); size > maxKept; size, sizes = k.size() {
		k.drop(sizes)
	}
}

// size returns how many bytes are kept, of all readers and of each. The caller holds the lock.
func (k *KeptAnswers) size() (all int, of map[string]int) {
	of = map[string]int{}
	for request, answer := range k.answers {
		size := len(request) + len(answer.data)
		all += size
		of[answer.Reader] += size
	}
	return all, of
}

// drop drops an answer of the reader that has most. So one that reads much only displaces its own answers. The caller
// holds the lock.
func (k *KeptAnswers) drop(sizes map[string]int) {
	request := slices.MaxFunc(k.asked, func(a, b string) int { // the first of them
		return cmp.Compare(sizes[k.answers[a].Reader], sizes[k.answers[b].Reader])
	})
	k.asked = slices.DeleteFunc(k.asked, func(r string) bool { return r == request })
	delete(k.answers, request)
	delete(k.pending, request)
	if k.saved.Has(request) {
		k.pending[request] = nil
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

func (a *answerRecorder) keeping() bool { return a.status() == http.StatusOK && !a.over }

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
	if bytes.Contains(rest[:size], []byte(metav1.InitialEventsAnnotationKey)) {
		a.body.Truncate(a.parsed)
		a.complete()
		a.over = true
	}
	return true
}
