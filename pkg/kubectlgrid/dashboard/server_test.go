package dashboard

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const secret = "SECRET"

// serve serves facts, and returns the server and its URL.
func serve(t *testing.T, f *facts) (*server, string) {
	t.Helper()
	s := &server{
		facts: f, shown: Shown{Cluster: "test"},
		sources: func() []SourceStatus { return []SourceStatus{{Resource: nodes, State: SourceFollowing}} },
	}
	listening := httptest.NewUnstartedServer(nil)
	listening.Config.Handler = s.handler(secret, listening.Listener.Addr().String())
	listening.Start()
	t.Cleanup(listening.Close)
	return s, listening.URL
}

// response is what a server has answered.
type response struct {
	code   int
	header http.Header
	body   string
}

// request asks the server, with the token unless the headers have another. A header Host names the host.
func request(t *testing.T, method, url string, headers ...string) response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	for _, header := range headers {
		name, value, ok := strings.Cut(header, ": ")
		if !ok {
			continue
		}
		r.Header.Set(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answered, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answered.Body.Close()
	body, err := io.ReadAll(answered.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{answered.StatusCode, answered.Header, string(body)}
}

// TestWhoIsAnswered: the API takes the token and the right host, everything is only read, and nothing but the page's
// own files is served.
func TestWhoIsAnswered(t *testing.T) {
	_, url := serve(t, read(t, node("n1", "east")))
	port := url[strings.LastIndexByte(url, ':'):]
	for _, test := range []struct {
		method, path, header string
		want                 int
		says                 string
	}{
		{"GET", "/api/overview", "", 200, `"kind":"DashboardOverview"`},
		{"HEAD", "/api/overview", "", 200, ""},
		{"GET", "/api/overview", "Host: localhost" + port, 200, "DashboardOverview"},
		{"GET", "/api/overview", "Host: LOCALHOST" + port, 200, "DashboardOverview"},
		{"GET", "/api/overview", "Host: evil.example" + port, 421, "another host"},
		{"GET", "/api/overview", "Host: localhost:1", 421, "another host"},
		{"GET", "/api/overview", "Host: localhost", 421, "another host"},
		{"GET", "/", "Host: evil.example" + port, 421, "another host"},
		{"GET", "/api/overview", "Authorization: ", 401, "no valid token"},
		{"GET", "/api/overview", "Authorization: Bearer", 401, "no valid token"},
		{"GET", "/api/overview", "Authorization: Bearer SECRE", 401, "no valid token"},
		{"GET", "/api/overview", "Authorization: Bearer SECRETS", 401, "no valid token"},
		{"GET", "/api/overview?token=SECRET", "Authorization: ", 401, "no valid token"},
		{"GET", "/api/revision", "Authorization: ", 401, "no valid token"},
		{"GET", "/api/nothing", "Authorization: ", 401, "no valid token"},
		{"GET", "/api/overview", "Sec-Fetch-Site: cross-site", 403, "other origins"},
		{"GET", "/api/overview", "Sec-Fetch-Site: same-site", 403, "other origins"},
		{"GET", "/api/overview", "Sec-Fetch-Site: same-origin", 200, "DashboardOverview"},
		{"POST", "/api/overview", "", 405, "only read"},
		{"DELETE", "/api/services/shop/db", "", 405, "only read"},
		{"OPTIONS", "/api/overview", "Origin: http://evil.example", 405, "only read"},
		{"GET", "/", "Authorization: ", 200, "<title>application-grid</title>"},
		{"GET", "/main.js", "Authorization: ", 200, "takeToken"},
		{"GET", "/style.css", "", 200, "prefers-color-scheme"},
		{"GET", "/icon.svg", "", 200, "<svg"},
		{"GET", "/index.html", "", 404, "nothing at this path"},
		{"GET", "/page/", "", 404, ""},
		{"GET", "/../../etc/passwd", "", 404, ""},
		{"GET", "/%2e%2e/%2e%2e/etc/passwd", "", 404, ""},
		{"GET", "/..%2f..%2fetc%2fpasswd", "", 404, ""},
		{"GET", "/server.go", "", 404, ""},
		{"GET", "/api/", "", 404, "nothing at this path"},
		{"GET", "/api/sites/nowhere", "", 404, "this site does not exist"},
		{"GET", "/api/cells/east/shop/nothing", "", 404, "this Service does not exist"},
		{"GET", "/api/services/shop/nothing", "", 404, "this Service does not exist"},
		{"GET", "/api/grids/pods/shop/nothing", "", 404, "is not a kind of grid"},
		{"GET", "/api/grids/dg/shop/nothing", "", 404, "this DeploymentGrid does not exist"},
	} {
		got := request(t, test.method, url+test.path, test.header)
		for range 3 { // a path that is not clean is redirected to the clean one
			if location := got.header.Get("Location"); location != "" && test.want == http.StatusNotFound {
				got = request(t, test.method, url+location, test.header)
			}
		}
		if got.code != test.want || !strings.Contains(got.body, test.says) || strings.Contains(got.body, "root:") {
			t.Errorf("%s %s %s: got %d %.200s, want %d %s", test.method, test.path, test.header, got.code, got.body, test.want, test.says)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Access-Control-Allow-Origin": "", "Set-Cookie": "",
		} {
			if value := got.header.Get(name); value != want {
				t.Errorf("%s %s: %s is %q", test.method, test.path, name, value)
			}
		}
		if strings.Contains(got.body, secret) {
			t.Errorf("%s %s: the token is in %s", test.method, test.path, got.body)
		}
	}
}

// TestPage: the page asks nobody but its server, and has nothing that its policy forbids.
func TestPage(t *testing.T) {
	files, err := embedded.ReadDir("page")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		data, err := embedded.ReadFile("page/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), "http://www.w3.org/2000/svg", "")
		for _, forbidden := range []string{"http:", "https:", "//cdn", " style=", " onclick=", "innerHTML", "eval(", "document.write"} {
			if strings.Contains(text, forbidden) {
				t.Errorf("%s has %s", file.Name(), forbidden)
			}
		}
		if _, _, ok := strings.Cut(file.Name(), "."); !ok || mediaTypes[file.Name()[strings.LastIndexByte(file.Name(), '.'):]] == "" {
			t.Errorf("%s has no media type", file.Name())
		}
	}
}

// askJSON reads the answer to a path into a pointer, and returns what is there as fmt prints it.
func askJSON(t *testing.T, url, path string, into any) string {
	t.Helper()
	got := request(t, http.MethodGet, url+path)
	if err := json.Unmarshal([]byte(got.body), into); err != nil || got.code != http.StatusOK ||
		got.header.Get("Content-Type") != "application/json" ||
		!strings.Contains(got.body, `"apiVersion":"kubectl-grid.superedge.io/v1alpha1"`) {
		t.Fatalf("%s: %v, %d, %s", path, err, got.code, got.body)
	}
	return strings.TrimPrefix(fmt.Sprint(into), "&")
}

// answering serves two sites with two Services that are closed, of which one lacks an endpoint, and a grid.
func answering(t *testing.T) string {
	t.Helper()
	_, url := serve(t, read(t, node("n1", "east"), node("n2", "west"), closed("db"), slice("db", "db-1", "n1"),
		closed("web"), slice("web", "web-1", "n1", "n2"), echo(v1.SiteProgressing)))
	return url
}

type siteService struct {
	Name    string
	Verdict struct{ Word, Severity string }
}

type named struct{ Namespace, Name, State string }

// TestOverview reads the fields of the overview on which scripts rely.
func TestOverview(t *testing.T) {
	got := askJSON(t, answering(t), "/api/overview", &struct {
		Kind, Cluster string
		Revision      int
		Keys          []struct{ Key string }
		Matrix        struct {
			Key   string
			Sites []struct {
				Name, State, Problem, Grids, Services string
				Nodes                                 int
			}
		}
		Services []named
		Grids    []struct {
			Kind, Name, Problem string
			Phases              map[string]int
			Rollout             struct {
				Summary string
				Waves   []named
			}
		}
	}{})
	for _, want := range []string{
		"{DashboardOverview test 1 [{zone}] {zone [{east Failed DeploymentGrid shop/echo: Missing: there is no " +
			"Deployment echo-east of this grid p ee 1}",
		"{west Failed DeploymentGrid shop/echo: Missing: there is no Deployment echo-west of this grid p je 1}",
		"[{shop db Lacking} {shop web Closed}]",
		"{DeploymentGrid echo east: there is no Deployment echo-east of this grid map[Missing:2] {echo-2: Soaking, wave lab [{ lab Soaking} {  Pending}]}}",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant in it\n%s", got, want)
		}
	}
}

// TestAnswers reads the fields of the other answers on which scripts rely.
func TestAnswers(t *testing.T) {
	url := answering(t)
	for _, test := range []struct {
		path string
		into any
		want string
	}{
		{"/api/grids/dg/shop/echo", &struct {
			Kind string
			Grid struct {
				Sites []struct{ Name, Phase, Problem string }
			}
		}{}, "{DashboardGrid {[{east Missing there is no Deployment echo-east of this grid} {west Missing there is no " +
			"Deployment echo-west of this grid}]}}"},
		{"/api/services/shop/db?key=zone", &struct {
			Kind, Title, Conclusion string
			View                    struct{ Without []string }
			Preview                 struct{ Dark []string }
		}{}, `{DashboardService Service shop/db, topologyKeys ["zone"] 1 site without a ready endpoint that it may use: west. The Service is not kept to its sites, as no edge node is in one; 2 nodes can reach every endpoint. {[west]} {[west]}}`},
		{"/api/sites/west", &struct {
			Kind      string
			Nodes     []string
			Workloads []struct{ Name string }
			Services  []siteService
		}{}, "{DashboardSite [n2] [{echo}] [{db {none failure}} {web {open ok}}]}"},
		{"/api/cells/west/shop/db", &struct {
			Kind string
			siteService
			Nodes    []struct{ Node, Keeps, Reaches string }
			Findings []struct{ Message string }
			Command  string
		}{}, "{DashboardCell {db {none failure}} [{n2 no: it is not an edge node TCP over IPv4: none}] " +
			"[{1 of 2 sites have no ready endpoint: west}] kubectl grid view svc/db -n shop}"},
	} {
		if got := askJSON(t, url, test.path, test.into); got != test.want {
			t.Errorf("%s: got %s, want %s", test.path, got, test.want)
		}
	}
}

// TestNotYetRead: until everything was read there is no answer, which would look like a cluster that lacks the rest.
func TestNotYetRead(t *testing.T) {
	s, url := serve(t, newFacts())
	s.sources = func() []SourceStatus {
		return []SourceStatus{{Resource: nodes, State: SourceForbidden}, {Resource: services, State: SourceReading}}
	}
	got := request(t, http.MethodGet, url+"/api/overview")
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "1" || !strings.Contains(got.body, "is being read: services") {
		t.Errorf("got %d %s", got.code, got.body)
	}
	s.sources = func() []SourceStatus {
		return []SourceStatus{{Resource: nodes, State: SourceForbidden, Message: "not you"}}
	}
	got = request(t, http.MethodGet, url+"/api/overview")
	if got.code != http.StatusOK || !strings.Contains(got.body, `"state":"Forbidden","known":false,"message":"not you"`) {
		t.Errorf("got %d %s", got.code, got.body)
	}
}

// TestRevision: a page learns that something has changed.
func TestRevision(t *testing.T) {
	s, url := serve(t, newFacts())
	for revision, changed := range []bool{false, false, true} {
		s.facts.update(func() bool { return changed })
		want := fmt.Sprintf(`{"revision":%d}`, max(revision, 1))
		if got := request(t, http.MethodGet, url+"/api/revision"); got.body != want {
			t.Errorf("got %s, want %s", got.body, want)
		}
	}
}

// TestHosts: requests name the loopback, by its address or its name.
func TestHosts(t *testing.T) {
	for _, address := range []string{"127.0.0.1:8001", "[::1]:8001"} {
		for host, want := range map[string]int{address: 200, "localhost:8001": 200, "localhost:80": 421, "evil.example:8001": 421} {
			r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
			r.Host = host
			readOnly(address, http.HandlerFunc(page)).ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s at %s: %d", host, address, w.Code)
			}
		}
	}
}

// TestResources: every resource has another name, and the children of every kind of grid of workloads are among them.
func TestResources(t *testing.T) {
	var names []string
	for _, r := range resources() {
		names = append(names, r.name)
	}
	for _, kind := range v1.Kinds {
		if !slices.Contains(names, resourceOf(kind.Child)) || !slices.Contains(names, kind.Plural) {
			t.Errorf("%s or its children are not in %q", kind.Kind, names)
		}
	}
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("got %q", names)
	}
}
