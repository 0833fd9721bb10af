package dashboard

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

//go:embed page
var embedded embed.FS

// index is the file at the root.
const index = "index.html"

// mediaTypes are those of the page's files. The system's may be wrong, and a browser does not run a script with a wrong
// one.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// server answers the requests of the page, and of scripts.
type server struct {
	facts   *facts
	sources func() []SourceStatus
	shown   Shown
}

// Shown is the part of the cluster that is shown.
type Shown struct {
	// Cluster names the cluster. Grids and Services of Namespace are shown; empty for all namespaces.
	Cluster, Namespace string
	// Key is the default label key of the map; empty for the one that is used most.
	Key string
}

// handler answers everything. address is that on which it listens.
func (s *server) handler(token, address string) http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("/api/overview", s.whenRead(s.overview))
	api.HandleFunc("/api/grids/{kind}/{namespace}/{name}", s.whenRead(s.grid))
	api.HandleFunc("/api/services/{namespace}/{name}", s.whenRead(s.service))
	api.HandleFunc("/api/sites/{site}", s.whenRead(s.site))
	api.HandleFunc("/api/cells/{site}/{namespace}/{name}", s.whenRead(s.cell))
	api.HandleFunc("/api/revision", s.whenRead(s.revision))
	api.HandleFunc("/", notFound)
	mux := http.NewServeMux()
	mux.Handle("/api/", withToken(token, api))
	mux.HandleFunc("/{$}", page)
	mux.HandleFunc("/{file}", page)
	mux.HandleFunc("/", notFound)
	return readOnly(address, mux)
}

// page answers with a file of the page, which has no data of the cluster.
func page(w http.ResponseWriter, r *http.Request) {
	name := cmp.Or(r.PathValue("file"), index)
	data, err := embedded.ReadFile("page/" + name)
	if err != nil || r.PathValue("file") == index { // the index has one URL only
		notFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mediaTypes[path.Ext(name)])
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data) // a client that has gone needs no answer
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusNotFound, "there is nothing at this path; the API is described in docs/operate.md")
}

// whenRead writes the answer of one of the methods below, or 404 for an error. It answers 503 until every resource was
// read, or is known to be unreadable: otherwise a part of the cluster would seem to be missing.
func (s *server) whenRead(answer func(*http.Request) (any, error)) http.HandlerFunc {
	locked := func(r *http.Request) (code int, object any) {
		s.facts.mu.Lock()
		defer s.facts.mu.Unlock()
		for _, source := range s.sources() {
			if source.State == SourceReading {
				return failure(http.StatusServiceUnavailable, "the cluster is being read: "+source.Resource)
			}
		}
		object, err := answer(r)
		if err != nil {
			return failure(http.StatusNotFound, err.Error())
		}
		return http.StatusOK, object
	}
	return func(w http.ResponseWriter, r *http.Request) {
		code, object := locked(r)
		if code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1")
		}
		write(w, code, object)
	}
}

func (s *server) revision(*http.Request) (any, error) {
	return map[string]uint64{"revision": s.facts.revision}, nil
}

func (s *server) overview(r *http.Request) (any, error) {
	o := s.facts.overview(s.key(r))
	o.Cluster, o.Namespace, o.Sources = s.shown.Cluster, s.shown.Namespace, s.sources()
	return o, nil
}

// key returns the requested label key; empty for the one that is used most.
func (s *server) key(r *http.Request) string {
	return cmp.Or(r.URL.Query().Get("key"), s.shown.Key)
}

func (s *server) grid(r *http.Request) (any, error) {
	kind, err := cluster.ParseKind(r.PathValue("kind"))
	if err != nil {
		return nil, err
	}
	return found(s.facts.grid(gridview.Object{
		Kind: kind.Kind, Namespace: r.PathValue("namespace"), Name: r.PathValue("name"),
	}), "this "+kind.Kind+" does not exist")
}

const noService = "this Service does not exist, or nodes, Services or EndpointSlices cannot be read"

func serviceName(r *http.Request) types.NamespacedName {
	return types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

func (s *server) service(r *http.Request) (any, error) {
	return found(s.facts.serviceDetail(serviceName(r), s.chosenKey(r)), noService)
}

func (s *server) cell(r *http.Request) (any, error) {
	return found(s.facts.cell(s.chosenKey(r), r.PathValue("site"), serviceName(r)),
		"this site does not exist, or "+noService)
}

func (s *server) site(r *http.Request) (any, error) {
	return found(s.facts.site(s.chosenKey(r), r.PathValue("site")), "this site does not exist")
}

// chosenKey returns the requested key, or that of the map.
func (s *server) chosenKey(r *http.Request) string {
	if key := s.key(r); key != "" {
		return key
	}
	return s.facts.overview("").Matrix.Key
}

func found[T any](object *T, otherwise string) (any, error) {
	if object == nil {
		return nil, errors.New(otherwise)
	}
	return object, nil
}

// failure returns a Status, as an API server does.
func failure(code int, message string) (int, any) {
	return code, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Message: message,
		Code: int32(code), //nolint:gosec // it has three digits
	}
}

func fail(w http.ResponseWriter, code int, message string) {
	code, status := failure(code, message)
	write(w, code, status)
}

func write(w http.ResponseWriter, code int, object any) {
	data, err := json.Marshal(object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	_, _ = w.Write(data) // a client that has gone needs no answer
}
