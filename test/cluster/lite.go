package cluster

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
)

// Lite is an Interposer's stand-in for SuperEdge's lite-apiserver, with the habits that were seen when that was run,
// and that its source explains: it asks kube-apiserver in JSON, keeps the last answer to a GET by the User-Agent up to
// its first space, namespace, resource and name, whatever was asked for, and answers from that while kube-apiserver is
// away. It does not bring what it keeps up to date with the events of watches; the original does not with those in
// protobuf.
type Lite struct {
	proxy http.Handler

	mu     sync.Mutex
	cached map[string]liteAnswer // guarded by mu
	// overwritten are the keys under which answers to different questions came; guarded by mu.
	overwritten map[string]bool
	// habits are guarded by mu.
	habits LiteHabits
}

// LiteHabits are what differs from case to case.
type LiteHabits struct {
	// EmptyLists answers lists, while kube-apiserver is away, with nothing and without a resourceVersion.
	EmptyLists bool
	// Stuck lets an answer end in its middle, and not end, as when the disk is full.
	Stuck bool
	// Hangs lets requests wait that are not answered from what is kept, as while packets to the cloud are dropped.
	Hangs bool
}

// liteAnswer is what is kept of an answer.
type liteAnswer struct {
	question string
	header   http.Header
	body     []byte
}

func newLite(proxy http.Handler) *Lite {
	return &Lite{proxy: proxy, cached: map[string]liteAnswer{}, overwritten: map[string]bool{}}
}

// Online is the behaviour while kube-apiserver is there.
func (l *Lite) Online() Behaviour { return Behaviour{Answer: l.online} }

// Offline is the behaviour while it is away.
func (l *Lite) Offline(habits LiteHabits) Behaviour {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.habits = habits
	return Behaviour{Answer: l.offline}
}

// Forget drops what is kept.
func (l *Lite) Forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.cached)
}

// Kept reports whether something is kept under a key with this part.
func (l *Lite) Kept(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.cached {
		if strings.Contains(key, part) {
			return true
		}
	}
	return false
}

// Overwritten are the keys whose answers took each other's place, though they were to different questions.
func (l *Lite) Overwritten() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make([]string, 0, len(l.overwritten))
	for key := range l.overwritten {
		keys = append(keys, key)
	}
	return keys
}

// liteKey is the key of what is kept for a request; "" for one that nothing is kept for.
func liteKey(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case r.Method != http.MethodGet:
		return ""
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return ""
	}
	agent, _, _ := strings.Cut(r.UserAgent(), " ")
	// kube-apiserver's filters, which it uses, take a field selector for a name.
	name, _ := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	return agent + "_" + strings.Join(parts, "_") + "_" + name
}

func isLiteWatch(query url.Values) bool {
	return query.Get("watch") == "true" || query.Get("watch") == "1"
}

func (l *Lite) online(w http.ResponseWriter, r *http.Request) {
	key := liteKey(r)
	if isLiteWatch(r.URL.Query()) {
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			// kube-apiserver would compress, and its decoder waits for the end of a stream that has none.
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // the client may have gone
			<-r.Context().Done()
			return
		}
		r.Header.Del("Accept")
		l.proxy.ServeHTTP(w, r)
		return
	}
	if key == "" {
		l.proxy.ServeHTTP(w, r)
		return
	}
	accept := r.Header.Get("Accept")
	r.Header.Del("Accept")
	r.Header.Set("Accept-Encoding", "identity")
	answer := httptest.NewRecorder()
	l.proxy.ServeHTTP(answer, r)
	if answer.Code == http.StatusOK {
		l.keep(key, accept, r.URL.Query(), answer)
	}
	copyHeader(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()) // the client may have gone
}

func (l *Lite) keep(key, accept string, query url.Values, answer *httptest.ResponseRecorder) {
	for _, passing := range []string{"resourceVersion", "resourceVersionMatch", "timeout", "timeoutSeconds"} {
		query.Del(passing)
	}
	question := accept + "?" + query.Encode()
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, ok := l.cached[key]; ok && before.question != question {
		l.overwritten[key] = true
	}
	l.cached[key] = liteAnswer{question, answer.Header().Clone(), answer.Body.Bytes()}
}

func (l *Lite) offline(w http.ResponseWriter, r *http.Request) {
	key := liteKey(r)
	l.mu.Lock()
	answer, known := l.cached[key]
	habits := l.habits
	l.mu.Unlock()
	switch {
	case habits.Hangs && (key == "" || !known) && !isLiteWatch(r.URL.Query()):
		<-r.Context().Done()
	case key == "":
		http.Error(w, "dial tcp: connection refused", http.StatusServiceUnavailable)
	case habits.Stuck && isLiteWatch(r.URL.Query()):
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case habits.Stuck:
		copyHeader(w.Header(), answer.header)
		w.Header().Del("Content-Length")
		w.WriteHeader(http.StatusOK)
		_, _ = io.Copy(w, bytes.NewReader(answer.body[:len(answer.body)/2])) // the client may have gone
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case isLiteWatch(r.URL.Query()):
		w.WriteHeader(http.StatusOK)
	case habits.EmptyLists:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{},"items":[]}`, liteListKind(r), liteVersion(r))
	case !known:
		http.Error(w, "dial tcp: connection refused", http.StatusNotFound)
	default:
		copyHeader(w.Header(), answer.header)
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(answer.body) // the client may have gone
	}
}

func copyHeader(to, from http.Header) {
	for name, values := range from {
		to[name] = values
	}
}

// liteListKind is the kind of a list of what is asked for.
func liteListKind(r *http.Request) string {
	for resource, kind := range map[string]string{"nodes": "NodeList", "services": "ServiceList",
		"endpointslices": "EndpointSliceList", "endpoints": "EndpointsList"} {
		if strings.HasSuffix(r.URL.Path, "/"+resource) {
			return kind
		}
	}
	return "List"
}

func liteVersion(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, "/apis/discovery.k8s.io/") {
		return "discovery.k8s.io/v1"
	}
	return "v1"
}
