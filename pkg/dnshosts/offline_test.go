package dnshosts

import (
	"crypto/rand"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/serve"
)

// behaviour is how an API server, or what is before it, treats a request.
type behaviour func(a *api, w http.ResponseWriter, r *http.Request)

// treatedKey is the context key of a request that a behaviour hands back to the api.
type treatedKey struct{}

// answer sends a body with status 200.
func answer(contentType, body string) behaviour {
	return func(_ *api, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

// refuse sends a Status.
func refuse(code int) behaviour {
	return func(_ *api, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused on purpose","code":%d}`, code)
	}
}

// half sends the first half of the right answer to a list, and with honest a length that tells of the rest.
func half(honest bool) behaviour {
	return func(a *api, w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			panic(http.ErrAbortHandler)
		}
		whole := httptest.NewRecorder()
		a.ServeHTTP(whole, r)
		w.Header().Set("Content-Type", "application/json")
		if honest {
			w.Header().Set("Content-Length", fmt.Sprint(whole.Body.Len()))
		}
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
		if honest {
			panic(http.ErrAbortHandler)
		}
	}
}

// behaviours are all ways in which a list or a watch fails.
var behaviours = map[string]behaviour{
	"500": refuse(http.StatusInternalServerError), "403": refuse(http.StatusForbidden),
	"404": refuse(http.StatusNotFound),
	"410": refuse(http.StatusGone), "429": refuse(http.StatusTooManyRequests),
	"empty body":     answer("application/json", ""),
	"empty protobuf": answer("application/vnd.kubernetes.protobuf", ""),
	"no object":      answer("application/json", "{}"),
	"a success": answer("application/json",
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`),
	"a page":                answer("text/html", "<html><body>Please log in</body></html>"),
	"truncated":             half(true),
	"truncated and at ease": half(false),
	"garbage": func(_ *api, w http.ResponseWriter, _ *http.Request) {
		garbage := make([]byte, 4096)
		_, _ = rand.Read(garbage)
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		_, _ = w.Write(append([]byte("k8s\x00"), garbage...))
	},
	"cut off": func(*api, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	// The stall guard of package apiclient ends these after half a minute; here the test does.
	"silent": func(_ *api, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	},
	"hanging": func(_ *api, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
}

// isQuiet names the behaviours that no error tells of soon: what says nothing.
func isQuiet(name string) bool { return name == "silent" || name == "hanging" }

// settle ends a behaviour, with what it has under way.
func (a *api) settle(change func()) {
	a.change(func() {
		clear(a.treat)
		change()
	})
	a.CloseClientConnections()
}

// get asks the daemon.
func (d *Daemon) get(path string) (code int, body string) {
	response := httptest.NewRecorder()
	d.handler().ServeHTTP(response, httptest.NewRequest(http.MethodGet, path, nil))
	return response.Code, response.Body.String()
}

// treatedOften waits until a resource has been asked for so often since the behaviour began.
func (a *api) treatedOften(t *testing.T, resource string, times int) {
	t.Helper()
	eventually(t, resource+" are asked for", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.treated[resource] < times {
			return fmt.Errorf("%d times", a.treated[resource])
		}
		return nil
	})
}

// untouched checks that a file has not even been written again, and that nothing is beside it.
func untouched(t *testing.T, path string, before fs.FileInfo, want string) {
	t.Helper()
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !sameVersion(before, after) {
		t.Errorf("the file was written: modified %s, before %s", after.ModTime(), before.ModTime())
	}
	if err := fileIs(path, want)(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("files are left: %v", entries)
	}
}

func mustStat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// TestStartedWhileAway: a daemon that starts, as after a reboot, and does not get all lists, leaves the file byte by
// byte as it is, does not write it again, and says why; when the lists come, it converges.
func TestStartedWhileAway(t *testing.T) {
	for name := range behaviours {
		t.Run(name, func(t *testing.T) { startWhileAway(t, name, "node", "nodes", "services", "endpointslices") })
	}
	for source, resource := range map[string]string{
		"node": "nodes", "services": "services", "endpointslices": "endpointslices",
	} {
		t.Run("500 of "+resource, func(t *testing.T) { startWhileAway(t, "500", source, resource) })
	}
}

// startWhileAway has these resources treated so. source is the first that is missed.
func startWhileAway(t *testing.T, name, source string, resources ...string) {
	t.Helper()
	t.Parallel()
	a := newAPI(t)
	a.populate(2, 2)
	for _, resource := range resources {
		a.treat[resource] = behaviours[name]
	}
	path := filepath.Join(t.TempDir(), "hosts")
	const head, tail = "127.0.0.1 localhost\n", "\n10.1.1.1\tprinter # no newline at the end"
	outdated := strings.Replace(east0, "10.0.0.1", "10.9.9.9", 1)
	present := head + block(east1, outdated) + tail // not in order, either
	writeFile(t, path, present)
	before := mustStat(t, path)
	d := startDaemon(t, a.URL, path)
	for _, resource := range resources {
		a.treatedOften(t, resource, 1)
	}
	eventually(t, "the daemon says why", func() error {
		code, body := d.get("/readyz")
		says := "[-] " + source + ": not listed yet: "
		silent := strings.Contains(body, says+"waiting for the API server")
		if code != http.StatusServiceUnavailable || !strings.Contains(body, says) || silent != isQuiet(name) {
			return fmt.Errorf("status %d: %s", code, body)
		}
		return nil
	})
	untouched(t, path, before, present)
	a.settle(func() {})
	eventually(t, "the lines are right", fileIs(path, head+block(east0, east1)+tail))
}

// TestRelistFailsHalfWay: all watches end and have to begin with a list, of which one fails: the rest is followed,
// and nothing is taken away, nor even written.
func TestRelistFailsHalfWay(t *testing.T) {
	resources := slices.Sorted(maps.Keys(kinds))
	test := func(name, resource string) {
		t.Run(name+" "+resource, func(t *testing.T) {
			t.Parallel()
			a, d, path := following(t)
			before := mustStat(t, path)
			var lost []metav1.Object
			a.change(func() {
				a.treat[resource] = behaviours[name]
				if !strings.HasPrefix(name, "truncated") {
					lost, a.objects[resource] = a.objects[resource], nil // to be believed only once a list says so
				}
			})
			a.treatedOften(t, resource, 1)
			if !isQuiet(name) {
				d.notes(t, "using what was last known", 1)
			}
			untouched(t, path, before, block(east0, east1))
			if reasons := d.report().Reasons; len(reasons) > 0 {
				t.Errorf("not ready: %q", reasons)
			}
			// The others are followed meanwhile.
			if resource == "endpointslices" {
				return
			}
			a.change(func() {
				a.changeSlice(func(slice *discoveryv1.EndpointSlice) { slice.Endpoints[0].Addresses[0] = "10.0.0.77" })
			})
			moved := block(strings.Replace(east0, "10.0.0.1", "10.0.0.77", 1), east1)
			eventually(t, "a pod's new address is followed", fileIs(path, moved))
			a.settle(func() {
				if lost != nil {
					a.objects[resource] = lost
				}
			})
			d.notes(t, "using what was last known", 0)
			if err := fileIs(path, moved)(); err != nil {
				t.Error(err)
			}
		})
	}
	for i, name := range slices.Sorted(maps.Keys(behaviours)) {
		test(name, resources[i%len(resources)]) // each with three or more
		if code, err := strconv.Atoi(name); err == nil && code != http.StatusGone {
			test(name, resources[(i+1)%len(resources)])
			test(name, resources[(i+2)%len(resources)])
		}
	}
}

// TestStrangerIsNotBelieved: an API server that knows nothing any more, not even this node, takes nothing away, in
// whatever order it is asked; one that knows the node does.
func TestStrangerIsNotBelieved(t *testing.T) {
	a, d, path := following(t)
	before := mustStat(t, path)
	objects := maps.Clone(a.objects)
	a.change(func() { clear(a.objects) })
	d.notes(t, "does not know node node0 either", 2)
	untouched(t, path, before, block(east0, east1))
	a.change(func() { maps.Copy(a.objects, objects) })
	d.notes(t, "using what was last known", 0)
	untouched(t, path, before, block(east0, east1))
	a.change(func() { a.objects["endpointslices"] = nil })
	eventually(t, "the truth is believed", fileIs(path, block()))
}

// TestDiskFails: a full disk, and one that is read-only, are told in /readyz and the metrics, and tried again; the
// old file stays whole.
func TestDiskFails(t *testing.T) {
	for name, says := range map[string]string{"full": "no space left on device", "read-only": "read-only file system"} {
		t.Run(name, func(t *testing.T) {
			path := mounted(t, "tmpfs", "size=64k").Path
			dir := filepath.Dir(path)
			a := newAPI(t)
			a.populate(1, 2)
			d := startDaemon(t, a.URL, path)
			eventually(t, "the lines are there", fileIs(path, block(east0, east1)))
			filler := filepath.Join(dir, "filler")
			if name == "full" {
				if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
					t.Fatal("the disk is not full")
				}
			} else if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			a.change(func() {
				a.changeSlice(func(slice *discoveryv1.EndpointSlice) { slice.Endpoints = slice.Endpoints[:1] })
			})
			eventually(t, "it is said", func() error {
				if code, body := d.get("/readyz"); code != http.StatusServiceUnavailable ||
					!strings.Contains(body, says) || !strings.Contains(body, "trying again") {
					return fmt.Errorf("status %d: %s", code, body)
				}
				_, metrics := d.get("/metrics")
				for _, line := range []string{
					"statefulset_grid_daemon_in_sync 0\n", "statefulset_grid_daemon_write_failures_total ",
				} {
					if !strings.Contains(metrics, line) || strings.Contains(metrics, line+"0\n") {
						return fmt.Errorf("the metrics do not say %q", line)
					}
				}
				return nil
			})
			if err := fileIs(path, block(east0, east1))(); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*")); len(left) > 1 { // one may be being written
				t.Errorf("files are left: %v", left)
			}
			if name == "full" {
				if err := os.Remove(filler); err != nil {
					t.Fatal(err)
				}
			} else if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the file is written", fileIs(path, block(east0)))
			d.says(t)
		})
	}
}

// TestDirectoryComesLate: what is wrong with the file, and that the API server is away, are both told, and each no
// longer than it is so.
func TestDirectoryComesLate(t *testing.T) {
	a := newAPI(t)
	a.populate(1, 2)
	a.treat[""] = refuse(http.StatusInternalServerError)
	target := filepath.Join(t.TempDir(), "late")
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	path := filepath.Join(dir, "hosts")
	d := startDaemon(t, a.URL, path)
	d.says(t, "not a directory", "not listed yet")
	if err := os.Mkdir(target, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, dir); err != nil {
		t.Fatal(err)
	}
	d.says(t, "not listed yet")
	a.settle(func() {})
	eventually(t, "the lines are there", fileIs(path, block(east0, east1)))
}

// marked answers as a wrapper that has restored its snapshot, or corrects what it has while the API server is away.
func marked(a *api, w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(serve.RestoredHeader) != serve.RestoredMarked {
		refuse(http.StatusServiceUnavailable)(a, w, r)
		return
	}
	w.Header().Set(serve.RestoredHeader, serve.RestoredMarked)
	a.ServeHTTP(w, r)
}

// restored waits until the daemon knows that all answers are marked.
func (d *Daemon) restored(t *testing.T) {
	t.Helper()
	eventually(t, "all is restored", func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		node, services, slices := d.node.restored, d.services.restored, d.slices.restored
		if !node || !services || !slices {
			return fmt.Errorf("node: %v, services: %v, slices: %v", node, services, slices)
		}
		return nil
	})
}

// TestRestored: what a wrapper has restored changes the addresses of names that the file has, and nothing else, until
// the wrapper has the upstream again. However late it sends then what it did not have, no name goes.
func TestRestored(t *testing.T) {
	a := newAPI(t)
	a.populate(1, 2)
	path := newFile(t).Path
	d := startDaemon(t, a.URL, path)
	d.says(t)
	a.settle(func() { a.treat[""] = marked })
	d.restored(t)
	moved := ""
	var whole metav1.Object
	a.change(func() {
		whole = a.objects["endpointslices"][0]
		a.changeSlice(func(s *discoveryv1.EndpointSlice) {
			moved = s.Endpoints[0].Addresses[0]
			s.Endpoints[0].Addresses[0] = "10.99.0.1"
			added := *s.Endpoints[0].DeepCopy()
			added.Addresses = []string{"10.99.0.2"}
			added.TargetRef.Name = strings.TrimSuffix(added.TargetRef.Name, "0") + "7"
			added.Hostname = &added.TargetRef.Name
			s.Endpoints = append(s.Endpoints[:1], added) // the other one is not there yet
		})
	})
	corrected := block(strings.Replace(east0, moved+" ", "10.99.0.1 ", 1), east1)
	eventually(t, "the address is the new one", fileIs(path, corrected))
	before := mustStat(t, path)
	a.settle(func() {
		a.objects["endpointslices"][0] = whole
		a.changeSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "10.99.0.1" })
		a.treat[""] = func(a *api, w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") != "" {
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(3 * time.Second): // longer than a watch that counts as followed
				case <-r.Context().Done():
				}
			}
			a.ServeHTTP(w, r)
		}
	})
	d.notes(t, "the API server is away", 0)
	untouched(t, path, before, corrected)
	a.change(func() { a.changeSlice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] }) })
	a.settle(func() {})
	eventually(t, "a name goes", fileIs(path, block(strings.Replace(east0, moved+" ", "10.99.0.1 ", 1))))
}

// TestFirstStartWhileRestored: there is no file yet, so that the names of a wrapper's snapshot are better than none.
func TestFirstStartWhileRestored(t *testing.T) {
	a := newAPI(t)
	a.populate(1, 2)
	a.treat[""] = marked
	path := filepath.Join(t.TempDir(), "hosts")
	startDaemon(t, a.URL, path).restored(t)
	eventually(t, "the lines are there", fileIs(path, block(east0, east1)))
}

// TestFileIsLost: while the cloud is away somebody removes the file, or puts another one in its place.
func TestFileIsLost(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced": func(path string) error {
			return os.WriteFile(path, []byte("10.1.1.1 printer\n"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.populate(1, 2)
			path := filepath.Join(t.TempDir(), "hosts")
			d := startDaemon(t, a.URL, path)
			d.says(t)
			a.settle(func() { a.treat[""] = marked })
			d.restored(t)
			if err := lose(path); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the names are back", func() error {
				content, err := os.ReadFile(path)
				if err == nil && !slices.Contains(Parse(content).Block, east0) {
					err = fmt.Errorf("the file has %q", content)
				}
				return err
			})
		})
	}
}
