package lite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	// deleteLimit is how large the body of a DELETE may be, and statusLimit how much of the answer is read.
	deleteLimit, statusLimit = 1 << 20, 16 << 10
	// goneFor is how long a gone pod is remembered after kube-apiserver no longer lists it.
	goneFor = time.Hour
	// intendedPrefix begins the value of keyRemoval while the outcome of the DELETE is not known.
	intendedPrefix = "intended "
)

// removal is what is known about the removal of a pod, from the kubelet's DELETE and its answer.
type removal struct {
	at time.Time
	outcome
	// refusals is how many of the kubelet's DELETEs kube-apiserver has refused.
	refusals int
}

type outcome int

const (
	// refused is when kube-apiserver has refused to remove the pod.
	refused outcome = iota + 1
	// intended is while kube-apiserver has not confirmed that the pod is gone. The pod is left out of answers already,
	// because nothing is left of it on this node.
	intended
	confirmed
)

// isKept reports whether the removal is on the disk. The first refusal is erased there. Then the kubelet repeats the
// DELETE every 10 seconds: if each intention were written and erased, one such pod would use up most of the hourly
// bytes. So the second one stays on the disk, and is found if the power fails before the answer to any later DELETE is
// known.
func (r removal) isKept() bool { return r.outcome > refused || r.refusals > 1 }

func (r removal) text() []byte {
	text := textOf(r.at)
	if r.outcome != confirmed {
		text = append([]byte(intendedPrefix), text...)
	}
	return text
}

func removalOf(value []byte) removal {
	r := removal{outcome: confirmed}
	text, ok := strings.CutPrefix(string(value), intendedPrefix)
	if ok {
		r.outcome = intended
	}
	_ = r.at.UnmarshalText([]byte(text)) // only the key matters
	return r
}

// setRemoval records the removal of a pod. A pod that is gone stays so, because a repeated DELETE may get another
// answer, for example about a new pod of the same name. It reports whether anything has changed on the disk.
func (s *Store) setRemoval(uid types.UID, r removal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.removals[uid]
	if before.outcome == confirmed || before.outcome == r.outcome {
		return false
	}
	if r.refusals = before.refusals; r.outcome == refused {
		r.refusals++
	}
	s.removals[uid] = r
	switch {
	case !r.isKept():
		s.recordValue(removalKey(uid), nil)
	case r.outcome == confirmed, !before.isKept():
		s.recordValue(removalKey(uid), r.text())
	default:
		return false
	}
	return true
}

// revive drops the removal of a pod. The caller holds the lock.
func (s *Store) revive(uid types.UID) {
	if s.removals[uid].isKept() {
		s.recordValue(removalKey(uid), nil)
	}
	delete(s.removals, uid)
}

// forgetRemovals drops the removals of pods that kube-apiserver has not listed for goneFor. It is called when the whole
// state is written, so that no file lists a pod and not its removal. The caller holds the lock.
func (s *Store) forgetRemovals() {
	if pods := s.getOrAddSet(podScope(s.node)); pods.current {
		there := map[types.UID]bool{}
		for _, o := range pods.objects {
			there[types.UID(o.UID)] = true
		}
		for uid, r := range s.removals {
			if !there[uid] && time.Since(r.at) > goneFor {
				delete(s.removals, uid)
				delete(s.values, removalKey(uid))
			}
		}
	}
}

// mustListAgain reports whether the kubelet, which is about to continue a watch of its pods, may not know one that is
// still being deleted for kube-apiserver, because the answers from the Store leave it out. kube-apiserver would send
// only later changes, and a kubelet that has restarted would never repeat the DELETE. It is reported once, as the
// kubelet then has kube-apiserver's list.
func (s *Store) mustListAgain(r *http.Request) bool {
	if !s.podsAnswered.Load() { // as for almost every request
		return false
	}
	info, query := serve.ParseRequest(r), r.URL.Query()
	in := podScope(s.node)
	if info.Group != "" || info.Resource != "pods" || info.Namespace != in.namespace ||
		query.Get("fieldSelector") != in.fields || !isWatch(r) || serve.IsTrue(query, "sendInitialEvents") ||
		strings.Trim(query.Get("resourceVersion"), "0") == "" || !s.podsAnswered.Swap(false) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.getOrAddSet(in).objects {
		if s.isGone(in.kind, o) { // perhaps a gateway has confirmed it
			return true
		}
	}
	return false
}

// removing is the context value of a DELETE that may remove a pod.
type removing struct {
	name string
	uid  types.UID
}

type removingKey struct{}

// noteDelete records on the disk, before a request is passed on, that the kubelet is about to remove a pod: with the
// DELETE without grace that it sends when nothing of the pod is left on the node. It returns the request to pass on.
func (s *Server) noteDelete(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	info := serve.ParseRequest(r)
	if info.Verb != "delete" || info.Group != "" || info.Resource != "pods" || info.Subresource != "" {
		return r, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, deleteLimit))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	options := &metav1.DeleteOptions{}
	ofKubelet := decodeBody(body, options) == nil                      // others may send YAML
	of := ptr.Deref(options.Preconditions, metav1.Preconditions{}).UID // the kubelet always gives it
	if !ofKubelet || of == nil || ptr.Deref(options.GracePeriodSeconds, -1) != 0 || len(options.DryRun) > 0 ||
		r.URL.Query().Has("dryRun") {
		return r, nil
	}
	s.commitRemoval(r, *of, intended)
	return r.WithContext(context.WithValue(r.Context(), removingKey{}, removing{info.Name, *of})), nil
}

// commitRemoval records the removal of a pod on the disk. If that fails, the next commit tries again.
func (s *Server) commitRemoval(of *http.Request, uid types.UID, how outcome) {
	if s.store.setRemoval(uid, removal{at: time.Now(), outcome: how}) {
		s.commitSelected(klog.FromContext(of.Context()), s.store.pendingRemovals)
	}
}

// settleRemoval records the outcome. It is not known without an answer, or if the answer may not be kube-apiserver's;
// the kubelet then repeats the DELETE.
func (s *Server) settleRemoval(asked *http.Request, answer *http.Response) {
	pod, ok := asked.Context().Value(removingKey{}).(removing)
	if !ok {
		return
	}
	switch code := answer.StatusCode; {
	case code >= http.StatusOK && code < http.StatusMultipleChoices,
		code == http.StatusNotFound && saysNotFound(answer, pod.name):
		s.commitRemoval(asked, pod.uid, confirmed)
	case code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
		code != http.StatusTooManyRequests && code != http.StatusNotFound:
		s.commitRemoval(asked, pod.uid, refused)
	}
}

// saysNotFound reports whether an answer is kube-apiserver's that the pod does not exist.
func saysNotFound(answer *http.Response, name string) bool {
	begin, _ := io.ReadAll(io.LimitReader(answer.Body, statusLimit)) // a Status that is cut off cannot be decoded
	answer.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(begin), answer.Body), answer.Body}
	status := &metav1.Status{}
	return decodeBody(begin, status) == nil && isNotFound(&apierrors.StatusError{ErrStatus: *status}, name)
}

// isNotFound reports whether kube-apiserver says that no object of this name exists. A gateway's 404 has no Status with
// the name: client-go then makes one, and marks it.
func isNotFound(err error, name string) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsNotFound(err) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
