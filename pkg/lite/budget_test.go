package lite

import (
	"bytes"
	"context"
	"crypto/rand"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/program/store"
)

// TestHourlyBytes: a node on which a megabyte changes every second writes no more than its budget, and has the newest
// state on the disk when the process ends. A calm one is written within a second.
func TestHourlyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(inMemory(t), "store")
		kept := newStore("node0")
		opened, _, problems := store.Open(store.Options{Dir: dir, Lasting: isLasting, State: kept.wholeState,
			HourlyBytes: hourlyBytes})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		s := &Server{store: kept, disk: opened, config: Config{Dir: filepath.Dir(dir)}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			s.commitChanges(ctx)
			close(ended)
		}()
		noise := make([]byte, 1<<20)
		_, _ = rand.Read(noise)
		change := func(i int, size int) {
			s.store.mu.Lock()
			s.store.recordValue("x", append(strconv.AppendInt(nil, int64(i), 10), noise[:size]...))
			s.store.mu.Unlock()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		change(0, 10)
		if s.bytesWritten() == 0 || s.budgetLeft() == 0 {
			t.Error("a calm node is not written within a second")
		}
		const seconds = 900
		for i := range seconds {
			change(i, 1<<20)
		}
		if limit := int64(hourlyBytes*(1+seconds/3600.0)) + 8<<20; s.bytesWritten() > limit || s.budgetLeft() > 0 {
			t.Errorf("%d bytes in %d s, want %d at most", s.bytesWritten(), seconds, limit)
		}
		cancel()
		<-ended
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		state, problems := store.Read(dir, nil)
		if len(problems) > 0 || !bytes.HasPrefix(state["x"], []byte(strconv.Itoa(seconds-1))) {
			t.Errorf("the newest change is lost: %.20q, %v", state["x"], problems)
		}
	})
}

// TestStrangersServices: whatever changes in Services that no pod of the node gets environment variables of, what the
// node needs is on the disk at once.
func TestStrangersServices(t *testing.T) {
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "3"}}
	}
	s := kept(objects{podScope("node0"): pod("till")})
	version := 10
	apply := func(namespace, name, annotation string, port int32) {
		version++
		to := sink{s, scope{kind: services}}
		o := wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{"a": annotation}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", Ports: []corev1.ServicePort{{Port: port}}}})
		to.ChangeAt(strconv.Itoa(version), func() { to.Apply(to.Reduce(o)) })
	}
	names := func(changes changes) (names []string) {
		for key := range changes {
			names = append(names, key[strings.LastIndexByte(key, 0)+1:])
		}
		slices.Sort(names)
		return names
	}
	own := []string{"kubernetes", "late", "spec.nodeName=node0", "till"}
	apply("strangers", "stranger", "", 80)
	apply("strangers", "other", "", 80)
	apply("default", "kubernetes", "", 443)
	apply("shop", "till", "", 80)
	to := sink{s, podScope("node0")}
	to.ChangeAt("12", func() { to.Apply(wiretest.Object(pod("late"))) })
	if got := names(s.selectPending(1)); !slices.Equal(got, own) {
		t.Errorf("without spare bytes %q are written, want %q", got, own)
	}
	if got := names(s.selectPending(hourlyBytes)); len(got) != len(own)+3 {
		t.Errorf("with spare bytes %q are written", got)
	}
	s.noteSaved(s.selectPending(hourlyBytes))
	apply("strangers", "stranger", strings.Repeat("x", 1<<20), 80)
	if changes := s.selectPending(hourlyBytes); len(changes) > 0 {
		t.Errorf("an annotation has %q written", names(changes))
	}
	sink{s, scope{kind: services}}.ChangeAt("99", func() {
		sink{s, scope{kind: services}}.Remove("strangers", "stranger")
	})
	if got := names(s.selectPending(1)); len(got) > 0 {
		t.Errorf("without spare bytes %q are written", got)
	}
	if got := names(s.selectPending(hourlyBytes)); !slices.Equal(got, []string{"", "stranger"}) {
		t.Errorf("of a removed Service %q are written", got)
	}
	s = newStore("node0")
	apply("strangers", "stranger", "", 80)
	if got := names(s.selectPending(1)); !slices.Equal(got, []string{"", "stranger"}) {
		t.Errorf("of the first list %q are written", got)
	}
}

// diskFixture is a Server with a store on the disk, and nothing else.
type diskFixture struct {
	*testing.T
	*Server
}

func newDiskFixture(t *testing.T) diskFixture {
	t.Helper()
	s := newStore("node0")
	opened, _, problems := store.Open(store.Options{Dir: filepath.Join(inMemory(t), storeDir), Lasting: isLasting,
		State: s.wholeState, StateSaved: s.noteStateSaved, HourlyBytes: hourlyBytes})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	return diskFixture{t, &Server{store: s, disk: opened}}
}

func (f diskFixture) apply(in scope, version string, object interface{ Marshal() ([]byte, error) }) {
	sink{f.store, in}.ChangeAt(version, func() { sink{f.store, in}.Apply(wiretest.Object(object)) })
}

// config adds a ConfigMap that a pod names.
func (f diskFixture) config(namespace, name, version string, data []byte) {
	f.apply(objectScope(configMaps, namespace, name), version, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, ResourceVersion: version}, BinaryData: map[string][]byte{"x": data}})
}

func (f diskFixture) pod(namespace, name, version string) {
	f.apply(podScope("node0"), version, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		ResourceVersion: version}})
}

// isUnsaved reports whether a pod, or the ConfigMap of its name, is only in memory.
func (f diskFixture) isUnsaved(namespace, name string) bool {
	return f.store.isUnsaved(podScope("node0").key(keyObject, namespace, name),
		objectScope(configMaps, namespace, name).key(keyObject, namespace, name))
}

// tick does what keep does each second.
func (f diskFixture) tick() {
	time.Sleep(commitInterval)
	f.commit(klog.Background(), f.budgetLeft())
}

// TestOneTenantsChanges: when all large objects that a pod names change at once, a new pod of somebody else is on the
// disk soon, and so is a small object.
func TestOneTenantsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDiskFixture(t)
		noise := make([]byte, 1<<20-1000)
		_, _ = rand.Read(noise)
		for _, version := range []string{"4", "5"} {
			time.Sleep(3 * time.Hour) // all of the budget is there
			for i := range 48 {
				f.config("large", strconv.Itoa(i), version, noise)
			}
			for range 60 {
				f.tick()
			}
		}
		f.pod("shop", "till", "6")
		f.config("shop", "till", "6", nil)
		began := time.Now()
		for f.isUnsaved("shop", "till") {
			f.tick()
		}
		if took := time.Since(began); took > 10*time.Minute {
			t.Errorf("it is on the disk after %s, of %d MiB", took, f.bytesWritten()>>20)
		}
		for count, _ := f.store.unsavedChanges(); count > 0; count, _ = f.store.unsavedChanges() {
			f.tick()
		}
		if took := time.Since(began); took > 3*time.Hour {
			t.Errorf("all is on the disk after %s", took)
		}
	})
}

// TestTenantThatChangesAllTheTime: while one large object changes every second, a new pod is on the disk at once, and a
// change of somebody else within minutes.
func TestTenantThatChangesAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDiskFixture(t)
		noise, version := make([]byte, 1<<20-1000), 5
		tick := func() {
			version++
			_, _ = rand.Read(noise)
			f.config("large", "x", strconv.Itoa(version), noise)
			f.tick()
		}
		for range 200 {
			tick()
		}
		for _, test := range []struct {
			what   string
			size   int
			atMost time.Duration
		}{{"a new pod", 100, 2 * time.Second}, {"a change", 200, 3 * time.Minute}} {
			f.pod("shop", "till", strconv.Itoa(version))
			f.config("shop", "till", strconv.Itoa(version), noise[:test.size])
			began := time.Now()
			for f.isUnsaved("shop", "till") {
				tick()
			}
			if took := time.Since(began); took > test.atMost {
				t.Errorf("%s is on the disk after %s", test.what, took)
			}
		}
	})
}

// TestLargeFirstState: when what the pods name is larger than what may be written in an hour, it is on the disk as soon
// as it is known, if that is at once, and what a new pod needs is there soon after in any case.
func TestLargeFirstState(t *testing.T) {
	for _, inATick := range []int{48, 5} {
		synctest.Test(t, func(t *testing.T) {
			f := newDiskFixture(t)
			noise := make([]byte, 1<<20-1000)
			_, _ = rand.Read(noise)
			for i := range 48 {
				f.config("large", strconv.Itoa(i), "4", noise)
				if (i+1)%inATick == 0 {
					f.tick()
				}
			}
			if count, _ := f.store.unsavedChanges(); count > 0 && inATick == 48 {
				t.Errorf("%d changes are not in the first state", count)
			}
			f.pod("shop", "till", "6")
			f.config("shop", "till", "6", noise[:100<<10])
			began := time.Now()
			for f.isUnsaved("shop", "till") {
				f.tick()
			}
			took := time.Since(began)
			t.Logf("%d in a second: a new pod is on the disk after %s", inATick, took)
			if took > 5*time.Minute || took > 5*time.Second && inATick == 48 {
				t.Errorf("%d in a second: a new pod is on the disk after %s", inATick, took)
			}
			began = time.Now()
			for f.config("shop", "till", "7", noise[:1<<10]); f.isUnsaved("shop", "till"); {
				f.tick()
			}
			if took := time.Since(began); took > time.Minute && inATick == 48 {
				t.Errorf("a small change is on the disk after %s", took)
			}
		})
	}
}

// TestEquallyLargeNewObject: while what a tenant's pods name is not on the disk yet, because it is larger than what may
// be written in an hour, a pod of somebody else that names one object as large as each of theirs does not wait for all
// of them.
func TestEquallyLargeNewObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newDiskFixture(t)
		noise := make([]byte, 1<<20-1000)
		_, _ = rand.Read(noise)
		for i := range 48 {
			f.config("large", strconv.Itoa(i), "4", noise)
			if i%5 == 4 {
				f.tick()
			}
		}
		f.pod("shop", "till", "6")
		f.config("shop", "till", "6", noise)
		began := time.Now()
		for f.isUnsaved("shop", "till") {
			f.tick()
		}
		count, _ := f.store.unsavedChanges()
		if took := time.Since(began); took > 5*time.Minute || count < 10 {
			t.Errorf("it is on the disk after %s, and %d changes of the others are not", took, count)
		}
	})
}
