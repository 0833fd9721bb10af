package dashboard

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/clustertest"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

const (
	nodePath    = "/api/v1/nodes"
	servicePath = "/api/v1/services"
	slicePath   = "/apis/discovery.k8s.io/v1/endpointslices"
)

// newAPI has a Service with an endpoint in each of two sites, and no grids.
func newAPI(t *testing.T) *clustertest.API {
	t.Helper()
	a := clustertest.New(t, `
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: east}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {zone: west}}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: db, annotations: {topologyKeys: '["zone"]'}}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {namespace: shop, name: db-1, labels: {kubernetes.io/service-name: db}},
 endpoints: [{addresses: [10.0.0.1], nodeName: n1}, {addresses: [10.0.0.2], nodeName: n2}]}`)
	a.Refused["/version"] = http.StatusNotFound // so kubectl grid check, which would find more, has no part in it
	for _, grids := range []string{"deploymentgrids", "statefulsetgrids", "daemonsetgrids", "servicegrids"} {
		a.Refused["/apis/superedge.io/v1/"+grids] = http.StatusNotFound
	}
	return a
}

// run runs a dashboard of the API server until the test ends, and returns a function that asks it.
func run(t *testing.T, a *clustertest.API) (ask func(path string) (int, string), stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	connected, err := cluster.Connect(&rest.Config{Host: a.Serve()}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(ctx, connected, 0, Shown{Cluster: "test"})
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
	a := newAPI(t)
	ask, stop := run(t, a)
	await(t, ask, "/api/overview", `"name":"db"`, `{"name":"east","nodes":1,"state":"Ready",`,
		`"resource":"deploymentgrids","state":"NotServed"`, `"resource":"nodes","state":"Following"`)
	a.Change(func() {
		delete(a.Objects, nodePath+"/n1")
		a.Add(`{apiVersion: v1, kind: Node, metadata: {name: n3, labels: {zone: north}}}`)
	})
	await(t, ask, "/api/overview", `{"name":"north","nodes":1,"state":"Failed","severity":"failure"`, `"state":"Lacking"`)
	// A right that is lost.
	a.Change(func() { a.Refused[servicePath] = http.StatusForbidden })
	await(t, ask, "/api/overview", `"resource":"services","state":"Forbidden","known":false,"message":"code 403"`)
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	a.Change(func() {
		if len(a.Writes) > 0 {
			t.Errorf("it has written: %q", a.Writes)
		}
	})
}

// TestRunWithFewRights: what the user may read is shown, and what not is said.
func TestRunWithFewRights(t *testing.T) {
	a := newAPI(t)
	a.Refused[nodePath], a.Refused["watch "+slicePath] = http.StatusForbidden, http.StatusForbidden
	ask, _ := run(t, a)
	await(t, ask, "/api/overview", `"resource":"nodes","state":"Forbidden"`, `"resource":"endpointslices","state":"Forbidden"`, `"sites":[]`, `"services":[]`)
	if code, body := ask("/api/services/shop/db"); code != http.StatusNotFound || !strings.Contains(body, "cannot be read") {
		t.Errorf("got %d %s", code, body)
	}
}

// TestRunWhileTheServerIsAway: what was known is shown, with the word that it may be old.
func TestRunWhileTheServerIsAway(t *testing.T) {
	a := newAPI(t)
	ask, _ := run(t, a)
	await(t, ask, "/api/overview", `"name":"db"`)
	a.Change(func() { a.Refused[nodePath], a.Refused[servicePath], a.Refused[slicePath] = 500, 500, 500 })
	await(t, ask, "/api/overview", `"resource":"nodes","state":"Failing"`, `"name":"db"`, `{"name":"east","nodes":1,"state":"Ready",`)
	a.Change(func() { clear(a.Refused) })
	await(t, ask, "/api/overview", `"resource":"nodes","state":"Following"`)
}
