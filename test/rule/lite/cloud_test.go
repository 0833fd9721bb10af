package lite

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
)

// kinds are the resources of this cloud.
var kinds = map[string]schema.GroupVersionKind{
	"nodes": corev1.SchemeGroupVersion.WithKind("Node"), "pods": corev1.SchemeGroupVersion.WithKind("Pod"),
	"services": corev1.SchemeGroupVersion.WithKind("Service"), "secrets": corev1.SchemeGroupVersion.WithKind("Secret"),
	"configmaps":             corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	"serviceaccounts":        corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	"persistentvolumeclaims": corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"),
	"persistentvolumes":      corev1.SchemeGroupVersion.WithKind("PersistentVolume"),
	"namespaces":             corev1.SchemeGroupVersion.WithKind("Namespace"),
	"csinodes":               {Group: "storage.k8s.io", Version: "v1", Kind: "CSINode"},
	"csidrivers":             {Group: "storage.k8s.io", Version: "v1", Kind: "CSIDriver"},
	"volumeattachments":      {Group: "storage.k8s.io", Version: "v1", Kind: "VolumeAttachment"},
	"runtimeclasses":         {Group: "node.k8s.io", Version: "v1", Kind: "RuntimeClass"},
	"leases":                 {Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
}

type object interface {
	runtime.Object
	metav1.Object
}

// key names an object of the cloud.
type key struct{ resource, namespace, name string }

func keyOf(resource string, o metav1.Object) key { return key{resource, o.GetNamespace(), o.GetName()} }

// change is what happened to an object at a version. object is nil if it was removed, and last is how it was before.
type change struct {
	version uint64
	key     key
	object  object
	last    object
}

// cloud is a kube-apiserver that remembers everything it has said.
type cloud struct {
	keys *keys

	mu sync.Mutex
	// changes are in order. Watches from before oldest are answered with 410. replica, if not 0, is the version that a
	// kube-apiserver has that lags behind. cuts counts the ends of all watches; expired is set if they end with 410.
	changes      []change
	head, oldest uint64
	replica      uint64
	cuts         int
	expired      bool
	grown        chan struct{}
	mode         answer
	onDelete     func(*corev1.Pod) verdict
	tokens       map[string]types.UID
	uids         int
}

func newCloud(keys *keys) *cloud {
	return &cloud{keys: keys, head: 1000, grown: make(chan struct{}), tokens: map[string]types.UID{}}
}

// wake has all watches look. The caller holds mu.
func (c *cloud) wake() {
	close(c.grown)
	c.grown = make(chan struct{})
}

// at is an object at a version, nil if it does not exist. The caller holds mu.
func (c *cloud) at(k key, version uint64) (found object) {
	for _, ch := range c.changes {
		if ch.version <= version && ch.key == k {
			found = ch.object
		}
	}
	return found
}

// state is all of a resource at a version. The caller holds mu.
func (c *cloud) state(resource string, version uint64) map[key]object {
	all := map[key]object{}
	for _, ch := range c.changes {
		switch {
		case ch.version > version || ch.key.resource != resource:
		case ch.object == nil:
			delete(all, ch.key)
		default:
			all[ch.key] = ch.object
		}
	}
	return all
}

// versions are the states that an object has had between two versions, nil among them if it did not exist at some time.
func (c *cloud) versions(k key, from, to uint64) []object {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []object{c.at(k, from)}
	for _, ch := range c.changes {
		if ch.key == k && ch.version > from && ch.version <= to {
			all = append(all, ch.object)
		}
	}
	return all
}

func (c *cloud) now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.head
}

func (c *cloud) get(k key) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at(k, c.head)
}

func (c *cloud) list(resource string) map[key]object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state(resource, c.head)
}

// put makes or changes an object.
func (c *cloud) put(resource string, o object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(keyOf(resource, o), o)
}

// store is put, by who holds mu. A nil object is removed.
func (c *cloud) store(k key, o object) {
	c.head++
	last := c.at(k, c.head)
	if o != nil {
		o = o.DeepCopyObject().(object)
		if o.GetUID() == "" {
			c.uids++
			o.SetGeneration(int64(c.uids))
			o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", c.keys.number, c.uids)))
			o.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
		}
		o.SetResourceVersion(strconv.FormatUint(c.head, 10))
		o.GetObjectKind().SetGroupVersionKind(kinds[k.resource])
	}
	c.changes = append(c.changes, change{c.head, k, o, last})
	c.wake()
}

func (c *cloud) remove(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at(k, c.head) != nil {
		c.store(k, nil)
	}
}

// cutWatches ends all watches, with 410 if they have expired, which loses the history.
func (c *cloud) cutWatches(expired bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cuts++
	c.expired = expired
	if expired {
		c.oldest = c.head
	}
	c.wake()
}

// restore goes back to a version, as a restore of etcd does.
func (c *cloud) restore(version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes = slices.DeleteFunc(c.changes, func(ch change) bool { return ch.version > version })
	c.head, c.oldest, c.replica = version, version, 0
	c.cuts++
	c.expired = false
	c.wake()
}

func (c *cloud) setMode(mode answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mode = mode
	c.cuts++
	c.expired = false
	c.wake()
}

// lag has all requests answered by a kube-apiserver that is so many versions behind. 0 ends that.
func (c *cloud) lag(behind uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replica = 0
	if behind > 0 {
		c.replica = max(c.head-behind, 1000)
	}
	c.cuts++
	c.expired = false
	c.wake()
}

// visible is the version that the kube-apiserver which is asked has. The caller holds mu.
func (c *cloud) visible() uint64 {
	if c.replica != 0 {
		return c.replica
	}
	return c.head
}

func attributes(o object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch typed := o.(type) {
	case *corev1.Pod:
		set["spec.nodeName"] = typed.Spec.NodeName
	case *corev1.Service:
		set["spec.clusterIP"] = typed.Spec.ClusterIP
	}
	return set
}

// request is a list or a watch.
type request struct {
	resource, namespace string
	selector            fields.Selector
	version             string
	initial, bookmarks  bool
}

func (q request) matches(k key, o object) bool {
	return o != nil && k.resource == q.resource && (q.namespace == "" || k.namespace == q.namespace) &&
		q.selector.Matches(attributes(o))
}

// since is the version that a list or the start of a watch is answered with, or what is wrong with the request.
func (c *cloud) since(q request) (uint64, *metav1.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.version == "" {
		return c.head, nil
	}
	asked, err := strconv.ParseUint(q.version, 10, 64)
	switch {
	case err != nil:
		return 0, status(http.StatusBadRequest, metav1.StatusReasonBadRequest, "invalid resource version")
	case asked > c.visible():
		tooLarge := status(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "Too large resource version")
		tooLarge.Details = &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{
			{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}}
		return 0, tooLarge
	}
	return c.visible(), nil
}

func (c *cloud) selected(q request, version uint64) []runtime.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []runtime.Object{}
	for k, o := range c.state(q.resource, version) {
		if q.matches(k, o) {
			all = append(all, o)
		}
	}
	return all
}

func (c *cloud) serveList(w http.ResponseWriter, r *http.Request, q request) {
	version, problem := c.since(q)
	if problem != nil {
		reply(w, r, int(problem.Code), problem)
		return
	}
	kind := kinds[q.resource]
	list, err := scheme.Scheme.New(kind.GroupVersion().WithKind(kind.Kind + "List"))
	must(err)
	must(apimeta.SetList(list, c.selected(q, version)))
	accessor, err := apimeta.ListAccessor(list)
	must(err)
	accessor.SetResourceVersion(strconv.FormatUint(version, 10))
	reply(w, r, http.StatusOK, list)
}

// bookmark is an empty object of the kind with a version.
func (q request) bookmark(version uint64, initial bool) object {
	empty, err := scheme.Scheme.New(kinds[q.resource])
	must(err)
	o := empty.(object)
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	if initial {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return o
}

func (c *cloud) serveWatch(w http.ResponseWriter, r *http.Request, q request) {
	c.mu.Lock()
	cuts, oldest := c.cuts, c.oldest
	c.mu.Unlock()
	from, err := strconv.ParseUint(q.version, 10, 64)
	fresh := q.initial || err != nil || from == 0
	if fresh {
		version, problem := c.since(q)
		if problem != nil {
			reply(w, r, int(problem.Code), problem)
			return
		}
		from = version
	}
	out := newStream(w, r)
	if !fresh && from < oldest {
		out.send("ERROR", gone())
		return
	}
	if fresh {
		for _, o := range c.selected(q, from) {
			out.send("ADDED", o)
		}
		if q.initial {
			out.send("BOOKMARK", q.bookmark(from, true))
		}
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for out.err == nil {
		c.mu.Lock()
		grown, ended, expired, visible := c.grown, c.cuts != cuts, c.expired, c.visible()
		var news []change
		if !ended && visible > from {
			first, _ := slices.BinarySearchFunc(c.changes, from+1,
				func(ch change, v uint64) int { return int(int64(ch.version) - int64(v)) })
			for _, ch := range c.changes[first:] {
				if ch.version <= visible {
					news = append(news, ch)
				}
			}
			from = visible
		}
		c.mu.Unlock()
		if ended {
			if expired {
				out.send("ERROR", gone())
			}
			return
		}
		for _, ch := range news {
			q.sendChange(out, ch)
		}
		select {
		case <-grown:
		case <-ticker.C:
			if q.bookmarks && visible >= from {
				out.send("BOOKMARK", q.bookmark(from, false))
			}
		case <-r.Context().Done():
			return
		}
	}
}

func (q request) sendChange(out *stream, ch change) {
	was, is := q.matches(ch.key, ch.last), q.matches(ch.key, ch.object)
	switch {
	case is && was:
		out.send("MODIFIED", ch.object)
	case is:
		out.send("ADDED", ch.object)
	case was:
		last := ch.last.DeepCopyObject().(object)
		last.SetResourceVersion(strconv.FormatUint(ch.version, 10))
		out.send("DELETED", last)
	}
}

func status(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}
}

func gone() *metav1.Status {
	return status(http.StatusGone, metav1.StatusReasonExpired, "too old resource version")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
