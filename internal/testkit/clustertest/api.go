// Package clustertest is an API server for tests of what kubectl grid asks a cluster. Only tests import it.
package clustertest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// API is an API server that gets, lists, watches, creates and deletes objects, as JSON. It knows no streaming lists, as
// servers before Kubernetes 1.32.
type API struct {
	testing.TB
	// Objects are by their paths. Once the API serves, it and what is below are changed by Change only.
	Objects map[string]*unstructured.Unstructured
	// Refused has the code of paths that are answered with an error; "watch PATH" is for watches only.
	Refused map[string]int
	// Forbidden reports whether reads of a resource are forbidden, in a namespace or, if that is empty, in all.
	Forbidden func(resource, namespace string) bool
	// Created completes an object that is created.
	Created func(*unstructured.Unstructured)
	// Writes are the requests that are no reads.
	Writes []string

	mu      sync.Mutex    // guards all of it
	changed chan struct{} // closed at the next change
	version int           // of all objects
}

// New makes an API with the objects of manifests.
func New(tb testing.TB, manifests string) *API {
	tb.Helper()
	a := &API{TB: tb, Objects: map[string]*unstructured.Unstructured{}, Refused: map[string]int{},
		changed: make(chan struct{}), version: 1, Forbidden: func(string, string) bool { return false }}
	a.Add(manifests)
	return a
}

// Serve serves until the test ends, and returns the URL.
func (a *API) Serve() string {
	server := httptest.NewServer(a)
	a.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// Change changes what there is.
func (a *API) Change(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
	a.version++
	close(a.changed)
	a.changed = make(chan struct{})
}

// Add adds objects, or replaces them, which are documents of YAML.
func (a *API) Add(manifests string) {
	a.Helper()
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			a.Fatal(err)
		}
		if len(o.Object) > 0 {
			o.SetUID("u")
			a.Objects[pathOf(o)] = o
		}
	}
}

func pathOf(o *unstructured.Unstructured) string {
	path := "/apis/" + o.GetAPIVersion()
	if !strings.Contains(o.GetAPIVersion(), "/") {
		path = "/api/" + o.GetAPIVersion()
	}
	if o.GetNamespace() != "" {
		path += "/namespaces/" + o.GetNamespace()
	}
	plural := strings.NewReplacer("ys/", "ies/").Replace(strings.ToLower(o.GetKind()) + "s/")
	return path + "/" + plural + o.GetName()
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	code, answer := a.answer(r)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if answer == nil {
		a.watch(w, r)
		return
	}
	encode(w, answer)
}

func encode(w io.Writer, object any) {
	if err := json.NewEncoder(w).Encode(object); err != nil {
		panic(http.ErrAbortHandler) // the client has gone
	}
}

// watch writes what changes, after all that there is if the client has not listed it.
func (a *API) watch(w http.ResponseWriter, r *http.Request) {
	write := func(event string, object any) { encode(w, map[string]any{"type": event, "object": object}) }
	known := map[string]*unstructured.Unstructured{}
	if from := r.URL.Query().Get("resourceVersion"); from == strconv.Itoa(a.version) {
		known = a.selected(r)
	} else if from != "" {
		write("ERROR", metav1.Status{TypeMeta: status, Reason: metav1.StatusReasonExpired, Code: http.StatusGone})
		return
	}
	for r.Context().Err() == nil && a.Refused[r.URL.Path] == 0 {
		now := a.selected(r)
		for path, o := range now {
			if before := known[path]; before == nil {
				write("ADDED", o)
			} else if before != o {
				write("MODIFIED", o)
			}
		}
		for path, o := range known {
			if now[path] == nil {
				write("DELETED", o)
			}
		}
		known = now
		_ = http.NewResponseController(w).Flush() // the client may have gone
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		a.mu.Lock()
	}
}

// partsOf finds the version, the namespace, the resource and the name in a path.
var partsOf = regexp.MustCompile(`^/apis?/((?:[^/]+/)?v\d[^/]*)(?:/namespaces/([^/]+))?/([^/]+)/?(.*)$`)

// objectOf reads an object of a built-in kind, as JSON or protobuf.
func objectOf(body io.Reader) (*unstructured.Unstructured, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	typed, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	return &unstructured.Unstructured{Object: fields}, err
}

// answer answers a request. It has none for a watch that begins.
func (a *API) answer(r *http.Request) (code int, answer any) {
	path, query := r.URL.Path, r.URL.Query()
	watch, parts := query.Get("watch") != "", partsOf.FindStringSubmatch(path)
	if r.Method != http.MethodGet {
		a.Writes = append(a.Writes, r.Method+" "+path)
	}
	refused := a.Refused[path]
	if watch {
		refused = cmp.Or(a.Refused["watch "+path], refused)
	}
	switch {
	case refused != 0:
		return failure(refused, "")
	case path == "/version":
		return http.StatusOK, map[string]string{"gitVersion": "v1.37.1"}
	case parts == nil:
		return failure(http.StatusNotFound, "")
	case a.Forbidden(parts[3], parts[2]):
		return failure(http.StatusForbidden, parts[4])
	case watch && query.Get("sendInitialEvents") != "":
		return failure(http.StatusUnprocessableEntity, "")
	case watch:
		return http.StatusOK, nil
	case r.Method == http.MethodPost:
		o, err := objectOf(r.Body)
		if err != nil {
			a.Errorf("%s %s: %v", r.Method, path, err)
			return failure(http.StatusBadRequest, "")
		}
		a.Created(o)
		a.Objects[path+"/"+o.GetName()] = o
		return http.StatusCreated, o.Object
	case r.Method == http.MethodDelete:
		delete(a.Objects, path)
		return http.StatusOK, metav1.Status{TypeMeta: status, Status: metav1.StatusSuccess}
	case a.Objects[path] != nil:
		return http.StatusOK, a.Objects[path].Object
	case parts[4] != "":
		return failure(http.StatusNotFound, parts[4])
	}
	items, selected := []any{}, a.selected(r)
	for _, path := range slices.Sorted(maps.Keys(selected)) {
		items = append(items, selected[path])
	}
	list := map[string]any{"metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)}, "items": items}
	if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") { // else the client knows the kind
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	return http.StatusOK, list
}

// selected are the objects that a list or watch asks for.
func (a *API) selected(r *http.Request) map[string]*unstructured.Unstructured {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		panic(err) // one of the client's
	}
	found, want := map[string]*unstructured.Unstructured{}, partsOf.FindStringSubmatch(r.URL.Path)
	for path, o := range a.Objects {
		if is := partsOf.FindStringSubmatch(path); is[1] == want[1] && (want[2] == "" || is[2] == want[2]) &&
			is[3] == want[3] && selector.Matches(labels.Set(o.GetLabels())) {
			found[path] = o
		}
	}
	return found
}

var status = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

// failure is an error about the object with a name; without a name, about a resource that is not served.
func failure(code int, name string) (int, any) {
	answer := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, name, "", 0, false).ErrStatus
	if answer.TypeMeta, answer.Message = status, fmt.Sprint("code ", code); name == "" {
		answer.Details = nil
	}
	return code, answer
}
