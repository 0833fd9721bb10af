package upstreamtest

import (
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzip"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

// ServeShare answers a watch of a node's share with everything that the API has, and with all of it again after every
// change.
func (a *API) ServeShare(w http.ResponseWriter, r *http.Request) {
	if _, failing := a.begin(w, r); failing {
		return
	}
	a.mu.Lock()
	cut := a.cut
	a.mu.Unlock()
	node := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	w.Header().Set("Content-Encoding", "gzip")
	zip, encoded := gzip.NewWriter(w), encoding{protobuf: true}
	for {
		a.mu.Lock()
		changed := a.changed
		mark := hubv1alpha1.Bookmark{Ends: true, Version: hubv1alpha1.Version{a.revision, a.revision, a.revision}}
		var frames []byte
		for _, s := range a.objects {
			if s.resource != "nodes" || accessorOf(s.object).GetName() == node {
				frames = append(frames, encoded.event(watch.Event{Type: watch.Modified, Object: s.object})...)
			}
			if s.resource == "nodes" {
				labels := watch.Event{Type: watch.Modified, Object: partialOf(s.object)}
				frames = append(frames, encoded.event(labels)...)
			}
		}
		a.mu.Unlock()
		for bucket := range mark.Whole {
			mark.Whole[bucket] = true
		}
		share := &metav1.PartialObjectMetadata{ObjectMeta: mark.ObjectMeta()}
		end := watch.Event{Type: watch.Bookmark, Object: share}
		_, _ = zip.Write(append(frames, encoded.event(end)...))
		_ = zip.Flush()
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}
