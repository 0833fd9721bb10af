package lite

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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

// setGone records the end of a pod; nil revokes it. It reports whether anything has changed.
func (s *Store) setGone(uid types.UID, e *end) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, there := s.gone[uid]
	key := keyOf(keyGone, string(uid))
	switch {
	case e == nil && !there, e != nil && there && (before.intended == e.intended || !before.intended):
		return false
	case e == nil:
		delete(s.gone, uid)
		s.change(key, nil)
	default:
		s.gone[uid] = *e
		s.change(key, e.text())
	}
	return true
}

// forget drops gone pods that kube-apiserver has not listed for goneFor.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[types.UID]bool{}
	for _, o := range s.set(podsOf(s.node)).objects {
		there[types.UID(o.UID)] = true
	}
	for uid, e := range s.gone {
		if !there[uid] && time.Since(e.at) > goneFor {
			delete(s.gone, uid)
			s.change(keyOf(keyGone, string(uid)), nil)
		}
	}
}

// confirmation passes on the answer to a DELETE, and learns from it whether the pod is gone.
type confirmation struct {
	http.ResponseWriter

	server *Server
	name   string
	uid    types.UID
	logger klog.Logger
	code   int
	// answer is the beginning of the body.
	answer bytes.Buffer
}

// Unwrap is for http.ResponseController.
func (c *confirmation) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (c *confirmation) WriteHeader(code int) {
	if c.code == 0 && code >= http.StatusOK {
		c.code = code
	}
	c.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (c *confirmation) Write(data []byte) (int, error) {
	if c.code == 0 {
		c.code = http.StatusOK
	}
	c.answer.Write(data[:min(len(data), statusLimit-c.answer.Len())])
	return c.ResponseWriter.Write(data)
}

// confirmation records on the disk, before a request is passed on, that the kubelet is about to remove a pod: with the
// DELETE without grace that it sends when nothing of the pod is left on the node. It returns nil for other requests.
func (s *Server) confirmation(w http.ResponseWriter, r *http.Request) (*confirmation, error) {
	info := serve.ParseRequest(r)
	if info.Verb != "delete" || info.Group != "" || info.Resource != "pods" || info.Subresource != "" {
		return nil, nil //nolint:nilnil // nothing is confirmed
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, deleteLimit))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	options := &metav1.DeleteOptions{}
	if len(body) > 0 {
		if err := decodeBody(body, options); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	uid := s.store.podUID(types.NamespacedName{Namespace: info.Namespace, Name: info.Name})
	if options.Preconditions != nil && options.Preconditions.UID != nil {
		uid = *options.Preconditions.UID
	}
	if options.GracePeriodSeconds == nil || *options.GracePeriodSeconds != 0 || uid == "" ||
		len(options.DryRun) > 0 || r.URL.Query().Has("dryRun") {
		return nil, nil //nolint:nilnil // nothing is confirmed
	}
	logger := klog.FromContext(r.Context())
	s.say(logger, uid, &end{at: time.Now(), intended: true})
	return &confirmation{ResponseWriter: w, server: s, name: info.Name, uid: uid, logger: logger}, nil
}

// say records the end of a pod on the disk. If that fails, the next commit tries again.
func (s *Server) say(logger klog.Logger, uid types.UID, e *end) {
	if s.store.setGone(uid, e) {
		s.commitGone(logger)
	}
}

// settle records the outcome. It is not known without an answer, or if the answer may not be kube-apiserver's; the
// kubelet then repeats the DELETE.
func (c *confirmation) settle() {
	switch {
	case c.code >= http.StatusOK && c.code < http.StatusMultipleChoices,
		c.code == http.StatusNotFound && c.saysNotFound():
		c.server.say(c.logger, c.uid, &end{at: time.Now()})
	case c.code >= http.StatusBadRequest && c.code < http.StatusInternalServerError &&
		c.code != http.StatusTooManyRequests && c.code != http.StatusNotFound:
		c.server.say(c.logger, c.uid, nil)
	}
}

// saysNotFound reports whether the answer is kube-apiserver's that the pod does not exist.
func (c *confirmation) saysNotFound() bool {
	status := &metav1.Status{}
	if decodeBody(c.answer.Bytes(), status) != nil {
		return false
	}
	return isNotFound(&apierrors.StatusError{ErrStatus: *status}, c.name)
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
