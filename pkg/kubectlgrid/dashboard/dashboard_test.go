package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// api is an API server with the objects of a map, as JSON by path. It knows no streaming lists, as servers before
// Kubernetes 1.32.
type api struct {
	mu      sync.Mutex
	objects map[string][]string
	// status is the code of paths that are answered with an error; watches has that of watches only.
	status, watches map[string]int
	changed         chan struct{} // closed when something has changed
	// writes are requests that are no reads.
	writes []string
}

func (a *api) change(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	watch := r.URL.Query().Get("watch") != ""
	a.mu.Lock()
	if r.Method != http.MethodGet {
		a.writes = append(a.writes, r.Method+" "+r.URL.Path)
	}
	code, objects, changed := a.status[r.URL.Path], a.objects[r.URL.Path], a.changed
	if refused := a.watches[r.URL.Path]; watch && refused != 0 {
		code = refused
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case watch && r.URL.Query().Get("sendInitialEvents") != "" && code == 0:
		code = http.StatusUnprocessableEntity
		fallthrough
	case code != 0:
		w.WriteHeader(code)
		reason := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 422: metav1.StatusReasonInvalid}
		status := &metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason[code], Message: "code " + fmt.Sprint(code),
		}
		data, err := json.Marshal(status)
		if err != nil {
			panic(err) // an object of the test's
		}
		_, _ = w.Write(data)
	case watch: // it ends with the next change, as expired, and the list is taken again
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-changed:
			fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}`)
		case <-r.Context().Done():
		}
	default:
		kind, version := "PartialObjectMetadataList", "meta.k8s.io/v1"
		switch {
		case strings.HasSuffix(r.URL.Path, "/endpointslices"):
			kind, version = "EndpointSliceList", "discovery.k8s.io/v1"
		case strings.HasSuffix(r.URL.Path, "/services"):
			kind, version = "ServiceList", "v1"
		case strings.HasPrefix(r.URL.Path, gridPath):
			kind, version = gridLists[strings.TrimPrefix(r.URL.Path, gridPath)], "superedge.io/v1"
		}
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[%s]}`, kind, version, strings.Join(objects, ","))
	}
}

const (
	nodePath    = "/api/v1/nodes"
	servicePath = "/api/v1/services"
	slicePath   = "/apis/discovery.k8s.io/v1/endpointslices"
	gridPath    = "/apis/superedge.io/v1/"
)

// gridLists are the kinds of lists of grids.
var gridLists = map[string]string{
	"deploymentgrids": "DeploymentGridList", "statefulsetgrids": "StatefulSetGridList", "daemonsetgrids": "DaemonSetGridList",
	"servicegrids": "ServiceGridList",
}

func newAPI() *api {
	a := &api{objects: map[string][]string{}, status: map[string]int{}, watches: map[string]int{}, changed: make(chan struct{})}
	for name, unit := range map[string]string{"n1": "east", "n2": "west"} {
		a.objects[nodePath] = append(a.objects[nodePath], fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"zone":%q}}}`, name, unit))
	}
	a.objects[servicePath] = []string{`{"metadata":{"namespace":"shop","name":"db","annotations":{"topologyKeys":"[\"zone\"]"}}}`}
	a.objects[slicePath] = []string{`{"metadata":{"namespace":"shop","name":"db-1","labels":{"kubernetes.io/service-name":"db"}},
		"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"nodeName":"n1"},{"addresses":["10.0.0.2"],"nodeName":"n2"}]}`}
	for kind := range gridLists {
		a.status[gridPath+kind] = http.StatusNotFound
	}
	return a
}

// run runs a dashboard of the API server until the test ends, and returns a function that asks it.
func run(t *testing.T, a *api) (ask func(path string) (int, string), stop func() error) {
	t.Helper()
	server := httptest.NewServer(a)
	ctx, cancel := context.WithCancel(t.Context())
	connected, err := cluster.Connect(&rest.Config{Host: server.URL}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(ctx, connected, Address{IP: "127.0.0.1"}, Shown{Cluster: "test"})
	if err != nil {
		t.Fatal(err)
	}
	url, token, ok := strings.Cut(d.URL, "/#token=")
	if !ok || len(token) < 20 {
		t.Fatalf("the URL is %s", d.URL)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() {
		_ = stop() // the test has looked at it, if it is about that
		server.Close()
	})
	return func(path string) (int, string) {
		got := request(t, http.MethodGet, url+path, "Authorization: Bearer "+token)
		return got.code, got.body
	}, stop
}

// await asks until the answer has all of the texts.
func await(t *testing.T, ask func(string) (int, string), path string, says ...string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		code, body := ask(path)
		missing := ""
		for _, want := range says {
			if !strings.Contains(body, want) {
				missing = want
			}
		}
		if missing == "" && code == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %s is not in %d %s", path, missing, code, body)
		}
	}
}

// TestRun: the cluster is shown, and what changes in it; nothing is written to the cluster; and the end is no error.
func TestRun(t *testing.T) {
	a := newAPI()
	ask, stop := run(t, a)
	await(t, ask, "/api/overview", `"state":"Closed"`, `{"name":"east","nodes":1,"state":"Ready"}`,
		`"resource":"deploymentgrids","state":"NotServed"`, `"resource":"nodes","state":"Following"`)
	a.change(func() { a.objects[nodePath][0] = `{"metadata":{"name":"n3","labels":{"zone":"north"}}}` })
	await(t, ask, "/api/overview", `{"name":"north","nodes":1,"state":"Failed"`, `"state":"Lacking"`)
	// A right that is lost.
	a.change(func() { a.status[servicePath] = http.StatusForbidden })
	await(t, ask, "/api/overview", `"resource":"services","state":"Forbidden","known":false,"message":"code 403"`)
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.writes) > 0 {
		t.Errorf("it has written: %q", a.writes)
	}
}

// TestRunWithFewRights: what the user may read is shown, and what not is said.
func TestRunWithFewRights(t *testing.T) {
	a := newAPI()
	a.status[nodePath], a.watches[slicePath] = http.StatusForbidden, http.StatusForbidden
	ask, _ := run(t, a)
	await(t, ask, "/api/overview", `"resource":"nodes","state":"Forbidden"`, `"resource":"endpointslices","state":"Forbidden"`, `"units":[]`, `"services":[]`)
	if code, body := ask("/api/services/shop/db"); code != http.StatusNotFound || !strings.Contains(body, "cannot be read") {
		t.Errorf("got %d %s", code, body)
	}
}

// TestRunWhileTheServerIsAway: what was known is shown, with the word that it may be old.
func TestRunWhileTheServerIsAway(t *testing.T) {
	a := newAPI()
	ask, _ := run(t, a)
	await(t, ask, "/api/overview", `"state":"Closed"`)
	a.change(func() {
		a.status[nodePath], a.status[servicePath], a.status[slicePath] = 500, 500, 500
	})
	await(t, ask, "/api/overview", `"resource":"nodes","state":"Failing"`, `"state":"Closed"`, `{"name":"east","nodes":1,"state":"Ready"}`)
	a.change(func() { clear(a.status) })
	await(t, ask, "/api/overview", `"resource":"nodes","state":"Following"`)
}
