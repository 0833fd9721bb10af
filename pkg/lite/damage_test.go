package lite

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// damagedStarts is how many times a server is started on a damaged store.
const damagedStarts = 500

// damages are what a loss of power or a failing disk does to the files of a store, newest first. before is how long
// the newest file was when the last commit began.
var damages = map[string]func(random *rand.Rand, files []string, before int){
	"cut off in the last commit": func(random *rand.Rand, files []string, before int) {
		rewrite(files[0], func(data []byte) []byte { return data[:before+random.IntN(len(data)-before+1)] })
	},
	"zeros in the last commit": func(random *rand.Rand, files []string, before int) {
		rewrite(files[0], func(data []byte) []byte {
			if before < len(data) {
				clear(data[before+random.IntN(len(data)-before):])
			}
			return data
		})
	},
	"a bit of the newest": func(random *rand.Rand, files []string, _ int) { rewrite(files[0], flip(random)) },
	"a bit of the older": func(random *rand.Rand, files []string, _ int) {
		rewrite(files[len(files)-1], flip(random))
	},
	"a bit of each of two": func(random *rand.Rand, files []string, _ int) {
		for _, file := range files {
			rewrite(file, flip(random))
		}
	},
	"the newest is empty": func(_ *rand.Rand, files []string, _ int) {
		rewrite(files[0], func([]byte) []byte { return nil })
	},
	"a new one was begun": func(random *rand.Rand, files []string, _ int) { begun(random, files[0]) },
}

func rewrite(file string, change func(data []byte) []byte) {
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, change(data), 0o600)
	}
	if err != nil {
		panic(err)
	}
}

func flip(random *rand.Rand) func(data []byte) []byte {
	return func(data []byte) []byte {
		data[random.IntN(len(data))] ^= 1 << random.IntN(8)
		return data
	}
}

// begun leaves part of the next file, which had not got its name yet.
func begun(random *rand.Rand, newest string) {
	data, err := os.ReadFile(newest)
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(newest), "store-new"), data[:random.IntN(len(data))], 0o600)
	}
	if err != nil {
		panic(err)
	}
}

// TestDamagedStarts starts a server on what 500 losses of power and failures of the disk leave of its store. The
// kubelet is answered all that was committed, or an older state and the log names a file, or nothing if no file is
// left; never a pod that it has removed, and never a list that kube-apiserver has not given.
func TestDamagedStarts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cloud.end()
	names := slices.Sorted(maps.Keys(damages))
	outcomes := map[string]int{}
	for seed := range uint64(damagedStarts / 20) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 9)))
		w.truth[w.version]["stays"] = "uid-stays"
		w.start()
		w.list()
		w.commit()
		for range 20 {
			for range w.random.IntN(6) {
				w.change()
			}
			if w.random.IntN(4) == 0 {
				w.remove()
			}
			committed := w.committed
			before := size(t, files(t, w.dir)[0])
			w.commit()
			if newest := files(t, w.dir)[0]; size(t, newest) < before {
				before = size(t, newest) // it is a new one
			}
			what := names[w.random.IntN(len(names))]
			dir := inMemory(t)
			f.must(os.CopyFS(filepath.Join(dir, storeDir), os.DirFS(w.dir)))
			damages[what](w.random, files(t, filepath.Join(dir, storeDir)), before)
			outcomes[what+": "+w.judgeStart(f, dir, what, committed)]++
		}
		f.must(w.disk.Close())
	}
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		t.Logf("%3d times %s", outcomes[outcome], outcome)
	}
}

// files are those of a store, the newest first.
func files(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "store-0*"))
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	slices.Reverse(found)
	return found
}

func size(t *testing.T, file string) int {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// judgeStart starts a server on a damaged store without the cloud, and says what the kubelet is answered. committed
// is the version that was on the disk before the last commit.
func (w *world) judgeStart(f *fixture, dir, damage string, committed uint64) string {
	kept := files(w.t, filepath.Join(dir, storeDir))
	var log bytes.Buffer
	config := f.config
	config.Dir, config.Address = dir, "127.0.0.1:0"
	server, err := New(config, textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	named := strings.Contains(log.String(), filepath.Join(dir, storeDir, "store-"))
	if err != nil {
		if !strings.Contains(err.Error(), filepath.Join(dir, storeDir)) {
			w.t.Errorf("%s: the error names no file: %v", damage, err)
		}
		return "refused"
	}
	defer server.disk.Close()
	defer server.listener.Close()
	server.link.NoteAway()
	answer := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(w.t.Context(), http.MethodGet,
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode0", nil)
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: node0}}}}
	server.ServeHTTP(answer, r)
	if answer.Code == http.StatusServiceUnavailable {
		for _, file := range kept {
			// A file whose damage makes it one of another version stands for those before it.
			if !strings.Contains(log.String(), file) && !strings.Contains(log.String(), "in another version") {
				w.t.Errorf("%s: the kubelet is answered nothing, and the log has %q, but not %s", damage, &log, file)
			}
		}
		return "nothing, and the log names all files"
	}
	var list corev1.PodList
	if err := decodeBody(answer.Body.Bytes(), &list); err != nil || answer.Code != http.StatusOK {
		w.t.Fatalf("%s: %d, %v", damage, answer.Code, err)
	}
	version, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	rotten := strings.HasPrefix(damage, "a bit") && (len(kept) < 2 || damage == "a bit of each of two")
	w.judgeList(damage, version, list.Items, rotten)
	switch {
	case version == w.committed:
		return "all that was committed"
	case !named || version > committed:
		w.t.Errorf("%s: version %d is answered, after %d version %d was committed, and the log has %q", damage, version,
			committed, w.committed, &log)
	case version < committed && strings.HasSuffix(damage, "in the last commit"):
		w.t.Errorf("%s: version %d is answered, and %d was committed before", damage, version, committed)
	case version < committed:
		return "an older state, and the log names a file"
	}
	return "all but the last commit, and the log names a file"
}

// judgeList compares a list with what kube-apiserver has said.
func (w *world) judgeList(damage string, version uint64, items []corev1.Pod, rotten bool) {
	got := map[string]string{}
	for _, pod := range items {
		got[pod.Name] = string(pod.UID)
	}
	// Of two files that rot at once, or of the only one, also the ends of pods, and refusals of them, may be lost.
	want := w.shown(version)
	maps.DeleteFunc(want, func(_, uid string) bool { _, ended := w.again[uid]; return ended })
	if !maps.Equal(got, want) && (!rotten || !w.mayBe(got, version)) {
		w.t.Errorf("%s: at version %d there are %v, and kube-apiserver said %v", damage, version, got, want)
	}
}

// mayBe reports whether pods are those of a version, but for some that the kubelet has asked to remove.
func (w *world) mayBe(got map[string]string, version uint64) bool {
	for name, uid := range got {
		if w.truth[version][name] != uid {
			return false
		}
	}
	for name, uid := range w.shown(version) {
		if got[name] != uid && !w.asked[uid] {
			return false
		}
	}
	return true
}

// keeper is a node's store with pods, on the disk.
type keeper struct {
	*testing.T
	dir    string
	server *Server
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	p := &keeper{T: t, dir: filepath.Join(inMemory(t), storeDir)}
	p.open()
	return p
}

func (p *keeper) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *keeper) open() {
	p.Helper()
	s := newStore("node0")
	opened, state, _ := store.Open(store.Options{Dir: p.dir, Lasting: isLasting, State: s.wholeState,
		StateSaved: s.noteStateSaved})
	if problems := s.load(state); len(problems) > 0 {
		p.Fatal(problems)
	}
	p.server = &Server{store: s, disk: opened}
}

// reopen starts again from what is on the disk.
func (p *keeper) reopen() {
	p.Helper()
	p.server.commit(klog.Background(), hourlyBytes)
	p.must(p.server.disk.Close())
	p.open()
}

func (p *keeper) at(version string, change func(to sink)) {
	to := sink{p.server.store, podScope("node0")}
	to.ChangeAt(version, func() { change(to) })
}

// end records the end of a pod.
func (p *keeper) end(uid types.UID, since time.Duration) {
	if p.server.store.setRemoval(uid, removal{at: time.Now().Add(-since), outcome: confirmed}) {
		p.server.commitSelected(klog.Background(), p.server.store.pendingRemovals)
	}
}

// expect compares the UIDs of the pods that the kubelet is answered.
func (p *keeper) expect(what string, uids ...string) {
	p.Helper()
	_, objects, ok := p.server.store.readScope(podScope("node0"))
	var got []string
	for _, o := range objects {
		got = append(got, o.UID)
	}
	if !ok || !slices.Equal(got, uids) {
		p.Errorf("%s: the pods are %q, want %q", what, got, uids)
	}
}

func till(uid types.UID) *wire.Object {
	return wiretest.Object(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: uid,
		ResourceVersion: "5"}})
}

// TestForgottenPodStaysGone: a pod that was confirmed gone does not come back from the older file when the newest one
// rots, however long ago that was. The next whole state is without it.
func TestForgottenPodStaysGone(t *testing.T) {
	p := newKeeper(t)
	p.at("5", func(to sink) { to.Apply(till("u1")) })
	p.server.commit(klog.Background(), hourlyBytes)
	p.must(p.server.disk.Rewrite()) // the older file lists the pod now
	p.end("u1", 2*goneFor)
	p.at("6", func(to sink) { to.Remove("shop", "till") })
	p.reopen()
	newest := files(t, p.dir)[0]
	whole, err := os.ReadFile(newest)
	p.must(err)
	rewrite(newest, func(data []byte) []byte {
		clear(data[60:80]) // of its first state
		return data
	})
	p.must(p.server.disk.Close())
	p.open()
	p.expect("of the older file")
	p.must(p.server.disk.Close())
	p.must(os.WriteFile(newest, whole, 0o600))
	for _, forgotten := range []bool{false, true} {
		p.open()
		if forgotten {
			p.at("7", func(sink) {}) // kube-apiserver does not list it
		}
		p.must(p.server.disk.Rewrite())
		p.reopen()
		if _, there := p.server.store.removals["u1"]; there == forgotten {
			t.Errorf("after a whole state its end is remembered: %v", there)
		}
		p.must(p.server.disk.Close())
	}
}

// TestRestoredPod: a pod that was confirmed gone is there again if kube-apiserver, which was restored from a backup,
// lists it again, at whatever version, and however long ago it was removed.
func TestRestoredPod(t *testing.T) {
	for _, since := range []time.Duration{0, 2 * goneFor} {
		for _, version := range []string{"4", "900"} {
			p := newKeeper(t)
			p.at("5", func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
			p.end("u1", since)
			p.at("6", func(to sink) { to.Remove("shop", "till") })
			p.reopen()
			p.at(version, func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
			p.expect("restored", "u1")
			p.reopen()
			p.expect("restored, after a restart at "+version, "u1")
		}
	}
	p := newKeeper(t)
	p.at("5", func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
	p.end("u1", 0)
	p.at("4", func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
	p.expect("restored before it was known that it was removed", "u1")
}

// TestRestoredToHigherVersions: etcdutl snapshot restore --bump-revision sets kube-apiserver back, and its version is
// higher than ever. A pod that is in the list as it was before its end was restored.
func TestRestoredToHigherVersions(t *testing.T) {
	p := newKeeper(t)
	ending := till("u1")
	ending.ResourceVersion = "8"
	p.at("8", func(to sink) { to.Apply(ending) })
	p.end("u1", 0)
	p.at("9", func(to sink) { to.Replace([]*wire.Object{ending}) })
	p.expect("a list from before the removal")
	p.at("1000000009", func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
	p.expect("restored", "u1")
	p.reopen()
	p.expect("restored, after a restart", "u1")
}

// TestLateListOfAGonePod: what kube-apiserver sends late of a pod that is gone does not bring it back.
func TestLateListOfAGonePod(t *testing.T) {
	p := newKeeper(t)
	p.end("u1", 0)
	p.at("5", func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
	p.expect("the first list")
	p.at("6", func(to sink) { to.Replace([]*wire.Object{till("u1")}) })
	p.expect("a list from before the removal")
	p.at("7", func(to sink) { to.Remove("shop", "till") })
	p.at("8", func(to sink) { to.Apply(till("u2")) })
	p.end("u3", 0)
	p.at("9", func(to sink) { to.Apply(till("u3")) })
	p.expect("a change from before the removal")
}

// TestDamagedCertificate: a kubelet that runs is still answered when the serving certificate on the disk is damaged,
// and so is one that starts later.
func TestDamagedCertificate(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.away()
	asking := func() *rest.Config {
		kubelet := f.kubelet()
		kubelet.Dial = (&net.Dialer{}).DialContext // its client makes a connection of its own
		return kubelet
	}
	running := asking()
	f.must(rest.LoadTLSFiles(running)) // as it has read them
	running.CAFile = ""
	for _, damage := range []func(path string) error{
		func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }, os.Remove,
	} {
		for _, name := range []string{servingFile, trustFile} {
			f.must(damage(filepath.Join(f.config.Dir, name)))
		}
		f.server.writeKubeletFiles(klog.Background()) // as it does from time to time
		for name, kubelet := range map[string]*rest.Config{"running": running, "new": asking()} {
			if pods, err := f.podsOfNode0(f.clientFor(kubelet)); err != nil || len(pods) != 1 {
				t.Errorf("a %s kubelet gets %d pods, %v", name, len(pods), err)
			}
		}
	}
	f.rebootWithoutTheCloud()
	if pods, err := f.podsOfNode0(f.clientFor(running)); err != nil || len(pods) != 1 {
		t.Errorf("after a restart a running kubelet gets %d pods, %v", len(pods), err)
	}
}

// TestWrongKey: as long as a start with another key writes nothing, /readyz says why.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.stop()
	f.config.SealKey = bytes.Repeat([]byte{1}, 32)
	f.cloud.end()
	var log bytes.Buffer
	f.prepare = func(s *Server) {
		s.commit(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), hourlyBytes)
	}
	f.start()
	f.server.commit(klog.Background(), hourlyBytes)
	if said := f.server.notOnDisk(); !strings.Contains(said, store.ErrKey.Error()) {
		t.Errorf("/readyz says %q", said)
	}
	if strings.Contains(log.String(), "on the disk again") {
		t.Errorf("the log says %s", &log)
	}
}
