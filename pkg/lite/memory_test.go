package lite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestMemoryOfAList: a list of Services whose annotations are large, which are not kept, takes much less memory than
// the list is long, while it arrives too. The unit's MemoryMax ends a process that takes more.
func TestMemoryOfAList(t *testing.T) {
	const count, annotation = 480, 64 << 10 // 30 MiB
	written := make(chan struct{})
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
		writeServices(w, count, annotation)
		close(written)
	}))
	defer cloud.Close()
	group, err := follow.NewGroup(&rest.Config{Host: cloud.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore("node0")
	f := &follower{store: s, groups: map[string]*follow.Group{"": group}, sources: map[scope]*follow.Source{}}
	in := scope{kind: services}
	if err := f.follow(in); err != nil {
		t.Fatal(err)
	}
	const gcPercent = 5 // so that what other tests have left does not count
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	before := liveHeap()
	peak := heapPeak(t.Context(), func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
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
	})
	if kept := len(s.set(in).objects); kept != count {
		t.Errorf("%d of %d Services are kept", kept, count)
	}
	const size = count * annotation
	t.Logf("of %d MiB the peak is %.1f MiB, and %.1f MiB are kept", size>>20, float64(peak-before)/(1<<20),
		float64(liveHeap()-before)/(1<<20))
	if peak-before > size/2 {
		t.Errorf("the peak of the heap is %d MiB, of a list of %d MiB", (peak-before)>>20, size>>20)
	}
	runtime.KeepAlive(s)
}

// writeServices writes a list of Services, each with an annotation of so many bytes.
func writeServices(w http.ResponseWriter, count, annotation int) {
	service := func(i int) []byte {
		message, _ := (&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("s", i),
			ResourceVersion: "5", Annotations: map[string]string{"a": strings.Repeat("a", annotation)}},
			Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}).Marshal() // a valid object
		return message
	}
	size := wire.ListItemSize(len(service(1000)))
	head := wire.AppendListMeta(nil, 7)
	_, _ = w.Write(wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "v1", Kind: "ServiceList"},
		len(head)+count*size))
	_, _ = w.Write(head)
	for i := range count {
		message := service(1000 + i)
		_, _ = w.Write(append(wire.AppendListItem(nil, len(message)), message...))
	}
}

func liveHeap() int64 {
	runtime.GC()
	return heap()
}

// heap is the size of the objects on the heap, those included that the next collection removes.
func heap() int64 {
	sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(sample)
	return int64(sample[0].Value.Uint64()) //nolint:gosec // far below 8 EiB
}

// heapPeak returns the largest size of the heap while something runs.
func heapPeak(ctx context.Context, run func()) (peak int64) {
	ctx, cancel := context.WithCancel(ctx)
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		for ctx.Err() == nil {
			peak = max(peak, heap())
			time.Sleep(100 * time.Microsecond)
		}
	}()
	run()
	cancel()
	<-measured
	return peak
}
