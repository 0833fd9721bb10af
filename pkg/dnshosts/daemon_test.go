package dnshosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/await"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

// api is an API server of few words: it lists, and a watch on it tells that something has changed by ending.
// That makes every change a new list.
type api struct {
	*httptest.Server

	mu      sync.Mutex
	objects map[string][]metav1.Object // guarded by mu; by resource
	treat   map[string]behaviour       // guarded by mu; by resource, or "" for all
	treated map[string]int             // guarded by mu; how many requests, by resource
	queries []string                   // guarded by mu; of lists
	changed chan struct{}              // guarded by mu; closed at the next change
	version int                        // guarded by mu
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{
		objects: map[string][]metav1.Object{}, treat: map[string]behaviour{},
		treated: map[string]int{}, changed: make(chan struct{}), version: 1,
	}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

// change changes what there is, and lets all watches end.
func (a *api) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.version++
	close(a.changed)
	a.changed = make(chan struct{})
}

var kinds = map[string]schemaKind{
	"nodes": {"meta.k8s.io/v1", "PartialObjectMetadata"}, "services": {"meta.k8s.io/v1", "PartialObjectMetadata"},
	"endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
}

type schemaKind struct{ apiVersion, kind string }

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	resource, query := parts[len(parts)-1], r.URL.Query()
	a.mu.Lock()
	treat := a.treat[resource]
	if treat == nil {
		treat = a.treat[""]
	}
	if treat != nil && r.Context().Value(treatedKey{}) == nil {
		a.treated[resource]++
		a.mu.Unlock()
		treat(a, w, r.WithContext(context.WithValue(r.Context(), treatedKey{}, true)))
		return
	}
	changed, version := a.changed, a.version
	objects := slices.Clone(a.objects[resource])
	if query.Get("watch") == "" {
		a.queries = append(a.queries, r.URL.Path+"?"+query.Get("labelSelector")+query.Get("fieldSelector"))
	}
	a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if query.Get("watch") != "" {
		if query.Get("resourceVersion") != strconv.Itoa(version) {
			fmt.Fprint(w,
				`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired",`+
					`"code":410}}`)
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		return
	}
	selector, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	kind := kinds[resource]
	list := map[string]any{
		"apiVersion": kind.apiVersion, "kind": kind.kind + "List",
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(version)},
	}
	items := []any{}
	for _, object := range objects {
		if selector.Matches(labels.Set(object.GetLabels())) {
			items = append(items, object)
		}
	}
	list["items"] = items
	if err := json.NewEncoder(w).Encode(list); err != nil {
		panic(http.ErrAbortHandler) // the client went away
	}
}

func meta(namespace, name string, uid types.UID, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, Labels: labels}
}

func metadataObject(m metav1.ObjectMeta) metav1.Object {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: m,
	}
}

// endpointsPerSlice is how many endpoints the EndpointSlice controller puts into a slice.
const endpointsPerSlice = 100

// addSite adds the pods of a site's set of grid demo to the slices of its Service.
func (a *api) addSite(site string, network, pods int) {
	for i := range pods {
		var slice *discoveryv1.EndpointSlice
		if all := a.objects["endpointslices"]; len(all) > 0 {
			slice = all[len(all)-1].(*discoveryv1.EndpointSlice)
		}
		if slice == nil || len(slice.Endpoints) == endpointsPerSlice {
			slice = &discoveryv1.EndpointSlice{
				ObjectMeta: meta("default", fmt.Sprint("demo-svc-", len(a.objects["endpointslices"])), "",
					map[string]string{
						v1.LabelGridSelector: "demo", v1.LabelGridUniqKey: "zone1",
						discoveryv1.LabelServiceName: "demo-svc",
					}),
				AddressType: discoveryv1.AddressTypeIPv4,
			}
			slice.ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager:  "controller",
				FieldsV1: metav1.NewFieldsV1(`{"f:endpoints":{"f:x":"` + strings.Repeat("y", 1500) + `"}}`),
			}}
			a.objects["endpointslices"] = append(a.objects["endpointslices"], slice)
		}
		name := fmt.Sprintf("demo-%s-%d", site, i)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", network>>8, network&0xff, i+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			Hostname:   &name,
			NodeName:   new("node-" + site),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name, UID: types.UID(name)},
		})
	}
}

// changeSlice changes the first slice, which has the own site's pods. It is called within change.
func (a *api) changeSlice(f func(*discoveryv1.EndpointSlice)) {
	slice := a.objects["endpointslices"][0].(*discoveryv1.EndpointSlice).DeepCopy()
	f(slice)
	a.objects["endpointslices"] = slices.Concat([]metav1.Object{slice}, a.objects["endpointslices"][1:])
}

// populate makes this node, grid demo, its Service and its sites, east the first of them.
func (a *api) populate(sites, pods int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.objects["nodes"] = []metav1.Object{metadataObject(meta("", "node0", "n", map[string]string{"zone1": "east"}))}
	a.objects["services"] = []metav1.Object{
		metadataObject(meta("default", "demo-svc", "svc", map[string]string{v1.LabelGridUniqKey: "zone1"})),
	}
	a.addSite("east", 0, pods)
	for i := 1; i < sites; i++ {
		a.addSite(fmt.Sprintf("site%d", i), i, pods)
	}
}

func newDaemon(url, path string) *Daemon {
	c, err := apiclient.Options{Master: url, QPS: 1e6, Burst: 1e6, PassesOn: true}.Connect()
	if err != nil {
		panic(err)
	}
	d, err := New(Config{
		Connection: c, NodeName: "node0", Path: path, Domain: testDomain, WholeSync: 30 * time.Second,
	}, klog.Background())
	if err != nil {
		panic(err)
	}
	return d
}

func startDaemon(t *testing.T, url, path string) *Daemon {
	t.Helper()
	d := newDaemon(url, path)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := d.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { <-ended })
	return d
}

// following starts a daemon on two sites with two pods each, and waits until the file has the lines of its own.
func following(t *testing.T) (a *api, d *Daemon, path string) {
	t.Helper()
	a, path = newAPI(t), filepath.Join(t.TempDir(), "hosts")
	a.populate(2, 2)
	d = startDaemon(t, a.URL, path)
	eventually(t, "the lines are there", fileIs(path, block(east0, east1)))
	d.says(t) // the file counts as written only when its directory is on the disk
	return a, d, path
}

// says waits until these are the reasons why the daemon is not ready; none if it is.
func (d *Daemon) says(t *testing.T, wanted ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the daemon says %q", wanted), func() error {
		reasons := d.report().Reasons
		if !slices.EqualFunc(reasons, wanted, strings.Contains) {
			return fmt.Errorf("it says %q", reasons)
		}
		return nil
	})
}

// notes waits until a text is so often among what is worth knowing.
func (d *Daemon) notes(t *testing.T, text string, times int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the daemon says %q %d times", text, times), func() error {
		details := strings.Join(d.report().Details, "\n")
		if strings.Count(details, text) != times {
			return errors.New("it says " + details)
		}
		return nil
	})
}

func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	await.Patience{Within: 20 * time.Second, Between: 5 * time.Millisecond}.Until(t, what, ask)
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func fileIs(path, want string) func() error {
	return func() error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if string(data) != want {
			return fmt.Errorf("the file is\n%s\nwant\n%s", data, want)
		}
		return nil
	}
}

const (
	east0 = "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local"
	east1 = "10.0.0.2 demo-1.demo-svc.default.svc.cluster.local"
)

// TestNodeUnknown: the file stays as it is while there is no node, whether it was never there or has gone, although a
// wrapper shows no endpoints to a node whose site it does not know. A node without the label has no names.
func TestNodeUnknown(t *testing.T) {
	a := newAPI(t)
	a.populate(1, 2)
	nodes := a.objects["nodes"]
	a.objects["nodes"] = nil
	path := filepath.Join(t.TempDir(), "hosts")
	writeFile(t, path, block(east1))
	d := startDaemon(t, a.URL, path)
	d.says(t, "node node0 does not exist")
	if err := fileIs(path, block(east1))(); err != nil {
		t.Error(err)
	}
	a.change(func() { a.objects["nodes"] = nodes })
	eventually(t, "the lines are there", fileIs(path, block(east0, east1)))
	slice := a.objects["endpointslices"]
	a.change(func() {
		a.objects["nodes"] = nil
		a.changeSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
	})
	d.says(t, "node node0 does not exist")
	if err := fileIs(path, block(east0, east1))(); err != nil {
		t.Error(err)
	}
	a.change(func() { a.objects["endpointslices"] = slice })
	a.change(func() { a.objects["nodes"] = []metav1.Object{metadataObject(meta("", "node0", "n", nil))} })
	eventually(t, "no names without the label", fileIs(path, block()))
}

// TestAllNamesGo: not before the API server is known to have the node, because a wrapper shows no endpoints to a node
// that was deleted.
func TestAllNamesGo(t *testing.T) {
	a, d, path := following(t)
	a.change(func() {
		a.treat["nodes"] = refuse(http.StatusServiceUnavailable)
		a.changeSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
	})
	d.says(t, "not removing all names")
	if err := fileIs(path, block(east0, east1))(); err != nil {
		t.Error(err)
	}
	a.settle(func() {})
	eventually(t, "there are no names", fileIs(path, block()))
}

// TestWhatIsAskedFor: of nodes the own one, and of Services and their EndpointSlices those of ServiceGrids.
func TestWhatIsAskedFor(t *testing.T) {
	a, _, _ := following(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := map[string]bool{
		"/api/v1/nodes?metadata.name=node0":                               true,
		"/api/v1/services?" + v1.LabelGridUniqKey:                         true,
		"/apis/discovery.k8s.io/v1/endpointslices?" + v1.LabelGridUniqKey: true,
	}
	asked := map[string]bool{}
	for _, query := range a.queries {
		asked[query] = true
	}
	if !maps.Equal(asked, wanted) {
		t.Errorf("asked for %v, want %v", slices.Sorted(maps.Keys(asked)), slices.Sorted(maps.Keys(wanted)))
	}
}

const memoryEnv = "DNSHOSTS_DAEMON_OF"

// TestMemory: 1,000 sites with 10 pods each, in a process of its own.
func TestMemory(t *testing.T) {
	const limit = 40 << 10 // KiB
	a := newAPI(t)
	a.populate(1000, 10)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hosts")
	process := exec.Command(self)
	process.Env = append(os.Environ(), memoryEnv+"="+a.URL, killedEnv+"="+path)
	process.Stderr = os.Stderr
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer process.Wait()
	defer process.Process.Kill()
	eventually(t, "the lines are there", func() error {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := strings.Count(string(data), "demo-svc"); n != 10 {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	})
	for i := range 20 { // full lists again and again
		a.change(func() {
			a.changeSlice(func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints[0].Addresses[0] = fmt.Sprintf("10.0.0.%d", 100+i)
			})
		})
		time.Sleep(100 * time.Millisecond)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 || (fields[0] != "VmRSS:" && fields[0] != "VmHWM:") {
			continue
		}
		t.Log(line)
		if size, _ := strconv.Atoi(fields[1]); size > limit && !raceDetector {
			t.Errorf("%s, and %d KiB are the limit", line, limit)
		}
	}
}

// runDaemon is a daemon for a process of its own.
func runDaemon(url, path string) {
	debug.SetGCPercent(GCPercent)
	panic(newDaemon(url, path).Run(context.Background()))
}
