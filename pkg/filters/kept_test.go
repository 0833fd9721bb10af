package filters

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/application-grid/application-grid/pkg/program/store"
)

// keptServer is an upstream behind WithKeptAnswers, which can go away.
type keptServer struct {
	*testing.T
	url, dir string
	// token is what clients show; "" for none.
	token string
	link  linkStub
	kept  *KeptAnswers
	// restart has another process answer.
	restart func()
	// answers is what the upstream answers, by path.
	answers map[string]string
}

func newKeptServer(t *testing.T) *keptServer {
	t.Helper()
	s := &keptServer{T: t, token: "agent's", dir: filepath.Join(t.TempDir(), "kept"), answers: map[string]string{}}
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.link.AwayUntil() != nil {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		answer, ok := s.answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		for _, part := range strings.SplitAfter(answer, "|") { // in parts that are no events
			fmt.Fprint(w, strings.TrimSuffix(part, "|"))
			_ = http.NewResponseController(w).Flush()
		}
	})
	var handler atomic.Value
	s.restart = func() {
		t.Helper()
		if s.kept != nil {
			if err := s.kept.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s.kept = OpenKeptAnswers(KeptOptions{Dir: s.dir, Clients: []string{"agent"}, Logger: logr.Discard(),
			Link: &s.link})
		handler.Store(WithKeptAnswers(s.kept)(upstream))
	}
	s.restart()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.Load().(http.Handler).ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// get requests a path as a client, and returns the answer. A watch from a file lasts until the upstream is back.
func (s *keptServer) get(client, path, accept string) (code int, body string) {
	s.Helper()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.url+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	r.Header.Set("User-Agent", client+"/v1.2.3 (linux)")
	r.Header.Set("Accept", accept)
	if s.token != "" {
		r.Header.Set("Authorization", "Bearer "+s.token)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	if strings.Contains(path, "watch=true") && response.StatusCode == http.StatusOK {
		s.link.set(false)
		defer s.link.set(true)
	}
	data, err := io.ReadAll(response.Body)
	if err != nil || (code == http.StatusOK && response.Header.Get("Content-Type") != accept) {
		s.Errorf("%s: %v, %s", path, err, response.Header.Get("Content-Type"))
	}
	return response.StatusCode, string(data)
}

// TestKeptAnswers: what a client has read it reads again while the upstream is away, and nobody else does.
func TestKeptAnswers(t *testing.T) {
	const list, watch = "/apis/x/v1/things", "?watch=true&sendInitialEvents=true&timeoutSeconds="
	const begin = `{"type":"ADDED"}` + "\n" + `{"type":"BOOKMARK","k8s.io/initial-events-end":"true"}` + "\n"
	frames := "\x00\x00\x00\x03a\nb\x00\x00\x00\x1b\n\x19k8s.io/initial-events-end"
	s := newKeptServer(t)
	s.answers = map[string]string{
		"/version": "v1", list: "list", "/api/v1/namespaces/n/secrets/s": "secret", "/api/v1/namespaces/n": "n",
		"/apis/x/v1/json": `{"type":"AD|DED"}` + "\n" + strings.TrimPrefix(begin, `{"type":"ADDED"}`+"\n") + "later\n",
		"/apis/x/v1/pb":   frames[:5] + "|" + frames[5:] + "|later", "/apis/x/v1/cut": "no end",
		"/apis/x/v1/large": strings.Repeat("x", maxKeptAnswer+1), "/apis/x/v1/things/one/token": "token",
	}
	const json, protobuf = "application/json", "application/vnd.kubernetes.protobuf;stream=watch"
	for _, test := range []struct {
		client, path, accept string
		// again is the path of the second request, path if it is empty; want the answer to it, "" for none.
		again, want string
	}{
		{"agent", "/version", json, "", "v1"},
		{"agent", "/api/v1/namespaces/n", json, "", "n"},
		{"agent", list + "?timeout=1s&resourceVersion=7", json, list + "?timeout=2s&resourceVersion=0", "list"},
		{"agent", "/apis/x/v1/json" + watch + "300", json, "/apis/x/v1/json" + watch + "400", begin},
		{"agent", "/apis/x/v1/pb" + watch + "300", protobuf, "/apis/x/v1/pb" + watch + "400", frames},
		// What a client that has a newer state must not get, nor one that was answered otherwise or is not named.
		{"agent", list, json, list + "?resourceVersion=7", ""},
		{"agent", list + "?limit=1", json, list + "?limit=2", ""},
		{"agent", list + "?continue=x", json, "", ""},
		{"agent", "/apis/x/v1/json?watch=true", json, "", ""},
		{"agent", "/apis/x/v1/cut" + watch + "300", json, "", ""},
		{"agent", "/apis/x/v1/large", json, "", ""},
		{"agent", "/apis/x/v1/absent", json, "", ""},
		{"agent", "/api/v1/namespaces/n/secrets/s", json, "", ""},
		{"agent", "/apis/x/v1/things/one/token", json, "", ""},
		{"agents", "/version", json, "", ""},
	} {
		s.link.set(false)
		s.get(test.client, test.path, test.accept)
		s.link.set(true)
		s.restart()
		again := test.again
		if again == "" {
			again = test.path
		}
		code, body := s.get(test.client, again, test.accept)
		if test.want != "" && (code != http.StatusOK || body != test.want) {
			t.Errorf("%s: got %d %q, want %q", again, code, body, test.want)
		}
		if test.want == "" && code != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d %q, want none", again, code, body)
		}
	}
	s.link.set(true)
	if code, body := s.get("agent", "/version", protobuf); code != http.StatusServiceUnavailable {
		t.Errorf("another encoding: got %d %q", code, body)
	}
	if len(s.kept.answers) != 6 {
		t.Errorf("kept: %q", slices.Collect(maps.Keys(s.kept.answers)))
	}
}

func record(body string) *answerRecorder {
	answer := &answerRecorder{statusRecorder: &statusRecorder{ResponseWriter: httptest.NewRecorder()}}
	answer.body.WriteString(body)
	return answer
}

// TestKeptAnswersAreBounded in memory and on the disk, by their bytes. What nobody asks for any more goes first.
func TestKeptAnswersAreBounded(t *testing.T) {
	t.Parallel()
	kept := OpenKeptAnswers(KeptOptions{Dir: t.TempDir(), Logger: logr.Discard()})
	large := strings.Repeat("x", 1<<20)
	for i := range 40 {
		kept.keep(strconv.Itoa(i), "agent", record(large))
		if kept.find("0").body == nil {
			t.Fatalf("after %d others what is asked for is gone", i)
		}
	}
	size, _ := kept.size()
	if size > maxKept || len(kept.answers) != 15 || kept.find("1").body != nil || kept.find("39").body == nil {
		t.Errorf("%d answers of %d bytes", len(kept.answers), size)
	}
	if kept.keep("0", "agent", record("another")); string(kept.find("0").body) != "another" {
		t.Error("another answer in the place of one is not kept")
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	again := OpenKeptAnswers(KeptOptions{Dir: kept.Dir, Logger: logr.Discard()})
	if !reflect.DeepEqual(again.answers, kept.answers) || len(again.asked) != len(kept.asked) {
		t.Errorf("after a restart there are %d answers, want %d", len(again.answers), len(kept.answers))
	}
}

// TestKeptAnswersOfStrangers: a process without credentials displaces nothing, and one with its own displaces its own.
func TestKeptAnswersOfStrangers(t *testing.T) {
	s := newKeptServer(t)
	const json, kept = "application/json", "/api/v1/namespaces/n"
	s.answers[kept], s.answers["/version"] = "n", strings.Repeat("x", 1<<20)
	s.get("agent", kept, json)
	for _, token := range []string{"", "stranger"} {
		s.token = token
		for i := range 20 {
			s.get("agent", "/version?N="+strconv.Itoa(i), json)
		}
		if n := len(s.kept.answers); token == "" && n != 1 {
			t.Errorf("%d answers are kept", n)
		}
	}
	s.link.set(true)
	s.token = ""
	if code, body := s.get("agent", kept, json); code != http.StatusOK || body != "n" {
		t.Errorf("%d: %s", code, body)
	}
}

// TestReaderOf: the subject of a token, whatever else it has; other credentials as a whole.
func TestReaderOf(t *testing.T) {
	t.Parallel()
	of := func(credentials string) string {
		return readerOf(&http.Request{Header: http.Header{"Authorization": {credentials}}})
	}
	jwt := func(payload string) string {
		return "Bearer h." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".s"
	}
	first, renewed, other := of(jwt(`{"sub":"a","exp":1}`)), of(jwt(`{"sub":"a","exp":2}`)), of(jwt(`{"sub":"b"}`))
	if first != renewed || first == other || first == "" {
		t.Errorf("%s, %s, %s", first, renewed, other)
	}
	if of("Bearer x") == of("Bearer y") || of("Bearer a.b.c") == "" || of("") != "" {
		t.Error("credentials that are no JWT")
	}
}

// running is KeptAnswers that run until stop is called, in virtual time.
func running(t *testing.T, dir string) (kept *KeptAnswers, stop func()) {
	t.Helper()
	kept = OpenKeptAnswers(KeptOptions{Dir: dir, Logger: logr.Discard()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		kept.Run(ctx)
		close(ended)
	}()
	return kept, func() {
		cancel()
		<-ended
		if err := kept.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeptAnswersThatChangeAllTheTime wear no flash: beyond the budget they are in memory, and written at the end.
func TestKeptAnswersThatChangeAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, stop := running(t, t.TempDir())
		waited := 0
		for i := range 2000 {
			kept.keep("lease", "agent", record(strconv.Itoa(i)))
			time.Sleep(time.Second)
			kept.mu.Lock() // Run writes at the same time
			if len(kept.pending) > 0 && kept.store.Left() == 0 {
				waited++
			}
			kept.mu.Unlock()
		}
		if waited < 500 {
			t.Errorf("only in %d of 2,000 seconds an answer had to wait: %d bytes were written", waited,
				kept.store.Written())
		}
		stop()
		again, stop := running(t, kept.Dir)
		if got := again.find("lease").body; string(got) != "1999" {
			t.Errorf("got %q", got)
		}
		stop()
	})
}

// TestKeptAnswersBeyondTheBudget are written as soon as the budget allows, although no other answer follows.
func TestKeptAnswersBeyondTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, stop := running(t, t.TempDir())
		noise := make([]byte, maxKeptAnswer)
		_, _ = rand.Read(noise)
		for i := range 3 {
			kept.keep(strconv.Itoa(i), "agent", record(string(noise)))
			time.Sleep(2 * keepInterval)
		}
		kept.keep("last", "agent", record("last"))
		time.Sleep(2 * time.Hour)
		if state, problems := store.Read(kept.Dir, nil); len(state) != 4 || len(problems) > 0 {
			t.Errorf("after 2 h %d answers of 4 are on the disk, %v", len(state), problems)
		}
		stop()
	})
}
