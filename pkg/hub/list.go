package hub

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
)

// list answers a GET of a node's share: a v1.List of its objects in JSON, or with ?kind=KIND a list of that kind. Nodes
// have their labels and addresses. A labelSelector selects.
func (s *Server) list(w http.ResponseWriter, r *http.Request, node string) error {
	kind := r.URL.Query().Get("kind")
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if err := s.checkCurrent(); err != nil {
		return err
	}
	release, err := s.acquire(caller(r), maxStreams)
	if err != nil {
		return err
	}
	defer release()
	objects := make(map[objectName]*object)
	err = s.shares.whenReady(func(s lockedShares) {
		visitor := &stream{node: node}
		s.joinClasses(visitor)
		for _, c := range visitor.classes {
			s.visitObjects(c, func(o *object) {
				// The node's own object is left out, because only its event is kept.
				if o.encoded == nil && (kind == "" || kind == o.kind.listed.Kind) &&
					selector.Matches(labels.Set(o.upstream.Labels)) {
					objects[o.objectName] = o
				}
			})
		}
		s.leave(visitor, visitor.classes)
	})
	if err != nil {
		return err
	}
	s.shares.queued.Add(listedBytes * int64(len(objects)))
	defer s.shares.queued.Add(-listedBytes * int64(len(objects)))
	w.Header().Set("Content-Type", "application/json")
	sorted := slices.SortedFunc(maps.Values(objects), func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.kind.resource, b.kind.resource), cmp.Compare(a.name.String(), b.name.String()))
	})
	if err := writeList(w, kind, sorted); err != nil {
		// The answer has begun. A list without its end is not valid JSON, so the client notices.
		klog.FromContext(r.Context()).Info("A share was not listed to its end", "node", node, "err", err)
	}
	return nil
}

// listedBytes is the part of the budget of streams that an object of a running list takes.
const listedBytes = 64

// writeList writes a list of objects of a kind, or of several kinds if that is empty.
func writeList(w io.Writer, kind string, objects []*object) error {
	before := fmt.Sprintf(`{"kind":%q,"apiVersion":"v1","metadata":{},"items":[`, kind+"List")
	for _, o := range objects {
		encoded, err := o.json()
		if err == nil {
			_, err = fmt.Fprintf(w, "%s%s", before, encoded)
		}
		if err != nil {
			return err
		}
		before = ",\n"
	}
	if len(objects) > 0 {
		before = ""
	}
	_, err := io.WriteString(w, before+"]}\n")
	return err
}

func (o *object) json() ([]byte, error) {
	body := o.body
	if o.kind == &kindLabels {
		body = o.upstream.Body
	}
	typed := o.kind.listed.New()
	if err := typed.Unmarshal(o.message(body)); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", o.kind.listed.Kind, o.name, err)
	}
	typed.GetObjectKind().SetGroupVersionKind(o.kind.listed.GroupVersion().WithKind(o.kind.listed.Kind))
	return json.Marshal(typed)
}
