package lite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestMemoryOfAList: while a list of Services arrives whose annotations are large, which are not kept, it takes much
// less memory than it is long. The unit's MemoryMax ends a process that takes more.
func TestMemoryOfAList(t *testing.T) {
	const count, annotation = 480, 64 << 10
	const size = count * annotation
	before, peak := liveheap.Size(), 0
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			<-r.Context().Done()
			return
		}
		writeServices(w, count, annotation, func(sent int) {
			if sent%(count/8) == 0 { // the client has read all but what the system buffers
				peak = max(peak, liveheap.Size())
			}
		})
	}))
	defer cloud.Close()
	group, err := follow.NewGroup(&rest.Config{Host: cloud.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore("node0")
	f := &follower{store: s, groups: map[string]*follow.Group{"": group}, sources: map[any]*follow.Source{}}
	in := scope{kind: services}
	if err := f.follow(in); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Run(ctx)
	}()
	patience.Until(t, "the Services are kept", func() error {
		if !s.isCurrent(in) {
			return errors.New("they are not")
		}
		return nil
	})
	cancel()
	<-ended
	cloud.Close()
	if kept := len(s.getOrAddSet(in).objects); kept != count {
		t.Errorf("%d of %d Services are kept", kept, count)
	}
	t.Logf("of a list of %d MiB %.1f MiB are in memory at most", size>>20, float64(peak-before)/(1<<20))
	if peak == 0 || peak-before > size/2 {
		t.Errorf("of a list of %d MiB %d MiB are in memory", size>>20, (peak-before)>>20)
	}
}

// TestPodsThatNameTooMuch: a pod that names thousands of objects, and one whose objects are large, are not kept, and
// explain names them. What other pods name is kept.
func TestPodsThatNameTooMuch(t *testing.T) {
	const large = 80
	noise := make([]byte, 1<<20)
	_, _ = rand.Read(noise)
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			<-r.Context().Done()
			return
		}
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		config := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "5"}}
		if strings.HasPrefix(name, "large") {
			config.BinaryData = map[string][]byte{"x": noise}
		}
		message, _ := (&corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "5"},
			Items: []corev1.ConfigMap{config}}).Marshal() // a valid list
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		_, _ = w.Write(wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, len(message)))
		_, _ = w.Write(message) // a client that is gone has no answer
	}))
	defer cloud.Close()
	group, err := follow.NewGroup(&rest.Config{Host: cloud.URL, QPS: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := kept(nil)
	f := &follower{store: s, groups: map[string]*follow.Group{byName: group}, sources: map[any]*follow.Source{}}
	for _, in := range nodeScopes("node0") {
		f.sources[in] = nil // these are there
	}
	for name, count := range map[string]int{"till": 3, "large": large, "many": 5000} {
		pod := podOf("shop/"+name, types.UID(name))
		pod.Spec.Volumes = nil
		for i := range count {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{
					Name: fmt.Sprint(name, "-", i)}}}})
		}
		sink{s, podScope("node0")}.ChangeAt("5", func() { sink{s, podScope("node0")}.Apply(wiretest.Object(&pod)) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		group.Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	followed := len(nodeScopes("node0")) + 3
	patience.Until(t, "the large objects are forgotten", func() error {
		select {
		case <-s.needed:
			f.syncSources(ctx)
		default:
		}
		if len(f.sources) != followed || len(s.heavy) != 2 {
			return fmt.Errorf("%d are followed", len(f.sources))
		}
		return nil
	})
	pods, err := s.pods()
	if err != nil || len(pods) != 3 {
		t.Fatal(pods, err)
	}
	for _, pod := range pods {
		if needed, _ := s.needsOf(pod); len(needed) > podsBytes/namedBytes+1 {
			t.Errorf("of pod %s %d needs are listed, which are left out", pod.Name, len(needed))
		}
	}
	if f.syncSources(ctx); len(f.sources) != followed {
		t.Errorf("%d are followed, and will be forgotten again", len(f.sources))
	}
	patience.Until(t, "what the other pod names is kept", func() error {
		for i := range 3 {
			if s.findObject(types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("till-", i)}, configMaps) == nil {
				return fmt.Errorf("%d is not", i)
			}
		}
		return nil
	})
	for _, of := range (&Server{store: s}).updateExplanation().Pods {
		out := strings.Contains(strings.Join(of.Missing, "; "), "and is not kept: of what the node's pods name, 64 MiB")
		if out != (of.Name != "till") || len(of.Missing) > 10 {
			t.Errorf("of %s it is said: %.500q", of.Name, of.Missing)
		}
	}
}

// writeServices writes a list of Services, each with an annotation of so many bytes. sent is called after each of them.
func writeServices(w http.ResponseWriter, count, annotation int, sent func(count int)) {
	service := func(i int) []byte {
		message, _ := (&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("s", 1000+i),
			ResourceVersion: "5", Annotations: map[string]string{"a": strings.Repeat("a", annotation)}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}).Marshal() // a valid object
		return message
	}
	head := wire.AppendListMeta(nil, 7)
	size := len(head) + count*wire.ListItemSize(len(service(0)))
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	envelope := wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, size)
	_, _ = w.Write(append(envelope, head...))
	for i := range count {
		message := service(i)
		_, _ = w.Write(append(wire.AppendListItem(nil, len(message)), message...))
		sent(i + 1)
	}
}

// TestMemoryOfUnsavedObjects: objects are not in memory twice while they wait for the disk.
func TestMemoryOfUnsavedObjects(t *testing.T) {
	const count, size = 16, 1 << 20
	s := newStore("node0")
	before := liveheap.Size()
	for i := range count {
		in := objectScope(configMaps, "shop", fmt.Sprint(i))
		sink{s, in}.ChangeAt("5", func() {
			sink{s, in}.Apply(&wire.Object{Namespace: "shop", Name: fmt.Sprint(i), Body: make([]byte, size)})
		})
	}
	if taken := liveheap.Size() - before; taken > count*size*3/2 {
		t.Errorf("%d MiB are taken by %d MiB of objects", taken>>20, count*size>>20)
	}
	if unsaved, _ := s.unsavedChanges(); unsaved < count {
		t.Errorf("%d of %d wait for the disk", unsaved, count)
	}
}
