package lite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	// deleteLimit is how large the body of a DELETE may be, and statusLimit how much of the answer is read.
	deleteLimit, statusLimit = 1 << 20, 16 << 10
	// goneFor is how long a gone pod is remembered after kube-apiserver no longer lists it.
	goneFor = time.Hour
	// intendedPrefix begins the value of keyGone while the outcome of the DELETE is not known.
	intendedPrefix = "intended "
)

// end is the kubelet's report about the end of a pod.
type end struct {
	at time.Time
	// intended is set while kube-apiserver has not confirmed that the pod is gone. The pod is left out of answers
	// either way, because nothing is left of it on this node.
	intended bool
}

func (e end) text() []byte {
	text := textOf(e.at)
	if e.intended {
		text = append([]byte(intendedPrefix), text...)
	}
	return text
}

func endOf(value []byte) (e end) {
	text, intended := strings.CutPrefix(string(value), intendedPrefix)
	e.intended = intended
	_ = e.at.UnmarshalText([]byte(text)) // only the key matters
	return e
}

// setGone records the end of a pod; nil revokes an intention, because kube-apiserver has refused it. A pod that is gone
// stays so, because a repeated DELETE may get another answer, for example about a new pod of the same name. It reports
// whether anything has changed.
func (s *Store) setGone(uid types.UID, e *end) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, there := s.gone[uid]
	if there && !before.intended {
		return false
	}
	if e == nil {
		s.refused.Insert(uid)
	} else {
		s.refused.Delete(uid)
	}
	switch {
	case e == nil && !there, e != nil && e.intended && there:
		return false
	case e == nil:
		s.revive(uid)
	default:
		s.gone[uid] = *e
		s.recordValue(keyOf(keyGone, string(uid)), e.text())
	}
	return true
}

// isRefused reports whether kube-apiserver has refused to remove a pod. The kubelet then tries again every 10 seconds.
// If each of these intentions were written before its request is passed on, and then revoked, one such pod would use up
// most of the hourly bytes.
func (s *Store) isRefused(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused.Has(uid)
}

// revive drops the end of a pod. The caller holds the lock.
func (s *Store) revive(uid types.UID) {
	if _, there := s.gone[uid]; there {
		delete(s.gone, uid)
		s.recordValue(keyOf(keyGone, string(uid)), nil)
	}
}

// forgetGone drops gone pods that kube-apiserver has not listed for goneFor. It is called when the whole state is
// written, so that no file lists a pod and not its end. The caller holds the lock.
func (s *Store) forgetGone() {
	if !s.set(podsOf(s.node)).current {
		return
	}
	there := s.podUIDs()
	maps.DeleteFunc(s.refused, func(uid types.UID, _ sets.Empty) bool { return !there[uid] })
	maps.DeleteFunc(s.gone, func(uid types.UID, e end) bool { return !there[uid] && time.Since(e.at) > goneFor })
}

// removed is the context value of a DELETE that may remove a pod.
type removed struct {
	name string
	uid  types.UID
	// settled is set once its outcome is known.
	settled bool
}

type removedKey struct{}

// noteRemoval records on the disk, before a request is passed on, that the kubelet is about to remove a pod: with the
// DELETE without grace that it sends when nothing of the pod is left on the node. What kube-apiserver has refused is
// recorded afterwards, unless it is refused again. It returns the request to pass on.
func (s *Server) noteRemoval(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
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
	ofKubelet := len(body) == 0 || decodeBody(body, options) == nil // others may send YAML
	uid := s.store.podUID(types.NamespacedName{Namespace: info.Namespace, Name: info.Name})
	if options.Preconditions != nil && options.Preconditions.UID != nil {
		uid = *options.Preconditions.UID
	}
	if !ofKubelet || options.GracePeriodSeconds == nil || *options.GracePeriodSeconds != 0 || uid == "" ||
		len(options.DryRun) > 0 || r.URL.Query().Has("dryRun") {
		return r, nil
	}
	if !s.store.isRefused(uid) {
		s.recordEnd(klog.FromContext(r.Context()), uid, &end{at: time.Now(), intended: true})
	}
	return r.WithContext(context.WithValue(r.Context(), removedKey{}, &removed{name: info.Name, uid: uid})), nil
}

// noteUnsettled records that the outcome of a DELETE is not known, also if kube-apiserver has refused one before.
func (s *Server) noteUnsettled(r *http.Request) {
	if pod, ok := r.Context().Value(removedKey{}).(*removed); ok && !pod.settled {
		s.recordEnd(klog.FromContext(r.Context()), pod.uid, &end{at: time.Now(), intended: true})
	}
}

// recordEnd records the end of a pod on the disk. If that fails, the next commit tries again.
func (s *Server) recordEnd(logger klog.Logger, uid types.UID, e *end) {
	if s.store.setGone(uid, e) {
		s.commitGone(logger)
	}
}

// settleRemoval records the outcome. It is not known without an answer, or if the answer may not be kube-apiserver's;
// the kubelet then repeats the DELETE.
func (s *Server) settleRemoval(answer *http.Response) {
	pod, ok := answer.Request.Context().Value(removedKey{}).(*removed)
	if !ok {
		return
	}
	logger := klog.FromContext(answer.Request.Context())
	switch code := answer.StatusCode; {
	case code >= http.StatusOK && code < http.StatusMultipleChoices,
		code == http.StatusNotFound && saysNotFound(answer, pod.name):
		pod.settled = true
		s.recordEnd(logger, pod.uid, &end{at: time.Now()})
	case code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
		code != http.StatusTooManyRequests && code != http.StatusNotFound:
		pod.settled = true
		s.recordEnd(logger, pod.uid, nil)
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
