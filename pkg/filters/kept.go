package filters

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
	"github.com/application-grid/application-grid/pkg/serve"
)

// KeptAnswers are answers of the upstream that some clients need to start, which the wrapper gives them again while the
// upstream is away.
type KeptAnswers struct {
	// Dir is the directory of the files, one for each request.
	Dir string
	// Clients are the names of the clients, as their User-Agents begin, up to a slash.
	Clients []string
	// Reachable reports whether the upstream can be reached.
	Reachable func() bool
}

const (
	// maxKeptAnswer is how many bytes of one answer are kept, maxKeptAnswers how many answers.
	maxKeptAnswer, maxKeptAnswers = 4 << 20, 200
	// returnInterval is how often a watch that was answered from a file looks whether the upstream is back.
	returnInterval = time.Second
	// initialEventsEnd is the annotation of the bookmark after the objects that there are at the beginning of a watch.
	initialEventsEnd = "k8s.io/initial-events-end"
)

// keptAnswer is the head of a file. The body follows, after a newline.
type keptAnswer struct {
	// Request is for people who read the directory.
	Request         string `json:"request"`
	ContentType     string `json:"contentType"`
	ContentEncoding string `json:"contentEncoding,omitempty"`
}

// WithKeptAnswers keeps what the clients read, but for Secrets and subresources: the last answer to each GET and LIST,
// and the objects at the beginning of each watch with sendInitialEvents. While the upstream is away it gives them to
// clients that know nothing yet, byte for byte, with the upstream's resourceVersions, so that clients continue from
// there when the upstream is back. A client that names a resourceVersion has a newer state, and gets none.
func WithKeptAnswers(kept KeptAnswers) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			watch := serve.IsTrue(query, "watch")
			if !kept.concerns(r, query, watch) {
				next.ServeHTTP(w, r)
				return
			}
			version := query.Get("resourceVersion")
			path := kept.path(r, query)
			if !kept.Reachable() {
				if (version == "" || version == "0") && kept.answer(w, path) {
					if watch {
						kept.await(r)
					}
					return
				}
				next.ServeHTTP(w, r)
				return
			}
			recorder := &answerRecorder{statusRecorder: &statusRecorder{ResponseWriter: w}, watch: watch}
			recorder.complete = func() {
				if err := kept.keep(path, r, recorder); err != nil {
					klog.FromContext(r.Context()).Error(err, "Cannot keep an answer", "path", r.URL.Path)
				}
			}
			next.ServeHTTP(recorder, r) // it panics if the answer breaks off
			if !watch && recorder.keeping() {
				recorder.complete()
			}
		})
	}
}

// concerns reports whether the answer to a request is kept.
func (k KeptAnswers) concerns(r *http.Request, query url.Values, watch bool) bool {
	client, _, _ := strings.Cut(r.UserAgent(), "/")
	info := serve.ParseRequest(r)
	return r.Method == http.MethodGet && slices.Contains(k.Clients, client) && info.Subresource == "" &&
		info.Resource != "secrets" && query.Get("continue") == "" && !strings.Contains(r.URL.Path, "/watch/") &&
		(!watch || serve.IsTrue(query, "sendInitialEvents"))
}

// path returns the file of a request. What differs from one start of a client to the next has no part in its name, and
// is removed from the query.
func (k KeptAnswers) path(r *http.Request, query url.Values) string {
	for _, name := range []string{"resourceVersion", "timeout", "timeoutSeconds"} {
		query.Del(name)
	}
	client, _, _ := strings.Cut(r.UserAgent(), "/")
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{client, r.URL.Path, query.Encode(), r.Header.Get("Accept")}))
	return filepath.Join(k.Dir, hex.EncodeToString(sum[:]))
}

// answer answers from a file, and reports whether there is one.
func (k KeptAnswers) answer(w http.ResponseWriter, path string) bool {
	data, err := os.ReadFile(path) //nolint:gosec // a digest is its name
	head, body, whole := bytes.Cut(data, []byte("\n"))
	var kept keptAnswer
	if err != nil || !whole || json.Unmarshal(head, &kept) != nil {
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

// await returns when the upstream is back, or the client gone.
func (k KeptAnswers) await(r *http.Request) {
	_ = wait.PollUntilContextCancel(r.Context(), returnInterval, true, func(context.Context) (bool, error) {
		return k.Reachable(), nil
	})
}

// keep writes the file of an answer, unless it has the same already.
func (k KeptAnswers) keep(path string, r *http.Request, answer *answerRecorder) error {
	head, err := json.Marshal(keptAnswer{Request: r.URL.RequestURI(), ContentType: answer.Header().Get("Content-Type"),
		ContentEncoding: answer.Header().Get("Content-Encoding")})
	if err != nil {
		return err
	}
	data := slices.Concat(head, []byte("\n"), answer.body.Bytes())
	old, err := os.ReadFile(path) //nolint:gosec // a digest is its name
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	files, listErr := os.ReadDir(k.Dir)
	if listErr != nil {
		return listErr
	}
	if err != nil && len(files) >= maxKeptAnswers {
		return fmt.Errorf("there are %d answers in %s already: remove what no client asks for any more",
			maxKeptAnswers, k.Dir)
	}
	return atomicfile.Write(path, 0o600, data)
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
