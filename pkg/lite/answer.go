package lite

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// unknownAnswer is the answer to a request that kube-apiserver has not answered before. It has no Retry-After, because
// client-go would delay the kubelet by repeating the request ten times.
func unknownAnswer(r *http.Request) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("kube-apiserver is away, and it has not said what the answer "+
		"to %s %s is", r.Method, r.URL.Path))
}

// answerAway answers the kubelet, or the ServiceAccount of this name, while kube-apiserver is away, until back is
// closed; or with an error if there is one.
func (s *Server) answerAway(w http.ResponseWriter, r *http.Request, account string, err error, back <-chan struct{}) {
	if err = cmp.Or(err, s.checkAge()); err != nil {
		err = apierrors.NewServiceUnavailable(err.Error())
	} else {
		// Whoever follows what is kept should not take it for news.
		w.Header().Set("Warning", fmt.Sprintf(`%d lite-apiserver "kube-apiserver is away"`, apiclient.Disconnected))
		err = s.answerKept(w, r, account, back)
	}
	s.metrics.answered(err)
	if err != nil {
		serve.WriteError(w, r, err)
	}
}

func (s *Server) answerKept(w http.ResponseWriter, r *http.Request, account string, back <-chan struct{}) error {
	info, query := serve.ParseRequest(r), r.URL.Query()
	k := s.store.kindOf(info, kind{account: account})
	switch {
	case account == "" && info.Verb == "create" && info.Group == "" && info.Resource == "serviceaccounts" &&
		info.Subresource == "token":
		return s.answerToken(w, r, types.NamespacedName{Namespace: info.Namespace, Name: info.Name})
	case k == nil, r.Method != http.MethodGet, info.Subresource != "", info.Verb == "watch" && info.Name != "",
		query.Get("labelSelector") != "", query.Get("continue") != "":
		return unknownAnswer(r)
	case info.Name == "":
		return s.answerListOrWatch(w, r, scope{kind: k, namespace: info.Namespace}, back)
	}
	object := s.store.getObject(info, account)
	if object == nil {
		_, _, known := s.store.readScope(objectScope(k, info.Namespace, info.Name))
		if known && namedByPods[k] { // kube-apiserver has said that it does not exist, and some pods start without it
			return apierrors.NewNotFound(k.GroupResource(), info.Name)
		}
		return unknownAnswer(r)
	}
	release, err := s.admit(w, account, object)
	if err != nil {
		return err
	}
	defer release()
	return serve.WriteObject(w, r, k.resource, object)
}

// answerListOrWatch answers a list, or begins a watch as kube-apiserver does, and holds it until kube-apiserver is
// back. The client then continues there from its version.
//
// A client may have a newer version than the set, from a bookmark or from another list. It gets the set nevertheless,
// because a reflector without an answer gives its pods nothing at all. A watch from an older version is refused.
func (s *Server) answerListOrWatch(w http.ResponseWriter, r *http.Request, in scope, back <-chan struct{}) error {
	query := r.URL.Query()
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	in.fields = selector.String()
	version, objects, ok := s.store.readScope(in)
	newest, err := strconv.ParseUint("0"+query.Get("resourceVersion"), 10, 64)
	if !ok || err != nil || query.Get("resourceVersionMatch") == "Exact" {
		return unknownAnswer(r)
	}
	if in == podScope(s.store.node) {
		s.store.podsAnswered.Store(true)
	}
	release, err := s.admit(w, in.kind.account, objects...)
	if err != nil {
		return err
	}
	defer release()
	initial, bookmark := serve.IsTrue(query, "sendInitialEvents"), uint64(0)
	switch {
	case !isWatch(r):
		return serve.WriteList(w, r, in.kind.resource, version, objects)
	case initial && serve.IsTrue(query, "allowWatchBookmarks"):
		bookmark = version
	case initial, newest == 0:
	case newest < version:
		return apierrors.NewResourceExpired(fmt.Sprintf("what changed between version %d and version %d is not known: "+
			"list again", newest, version))
	default:
		objects = nil
	}
	if err := serve.BeginWatch(w, r, in.kind.resource, objects, bookmark); err != nil {
		return err
	}
	release()
	ended, cancel := context.WithTimeout(r.Context(), timeoutOf(r, 24*time.Hour))
	defer cancel()
	select {
	case <-back:
	case <-ended.Done():
	case <-s.stopping.Done():
	}
	return nil
}

// admit takes what an answer to an account takes in memory, until it is written: who reads nothing of it holds it up,
// until the write times out. It may be all that there is.
func (s *Server) admit(
	w http.ResponseWriter, account string, objects ...*wire.Object,
) (release func(), err error) {
	if account == "" { // the kubelet always gets an answer
		return func() {}, nil
	}
	bytes := 0
	for _, o := range objects {
		bytes += sizeOf(o)
	}
	giveBack, ok := s.answerBytes.AcquireN(account, bytes)
	if !ok {
		return nil, apierrors.NewTooManyRequests("other answers to this account, or to others, are not read yet", 1)
	}
	response := http.NewResponseController(w)
	_ = response.SetWriteDeadline(time.Now().Add(s.writeTimeout)) // a ResponseWriter of a test may have none
	return sync.OnceFunc(func() {
		_ = response.SetWriteDeadline(time.Time{})
		giveBack()
	}), nil
}

func isWatch(r *http.Request) bool {
	return serve.IsTrue(r.URL.Query(), "watch") || serve.ParseRequest(r).Verb == "watch"
}

// timeoutOf returns how long a watch lasts.
func timeoutOf(r *http.Request, most time.Duration) time.Duration {
	if seconds, err := strconv.ParseUint(r.URL.Query().Get("timeoutSeconds"), 10, 31); err == nil && seconds > 0 {
		return min(time.Duration(seconds)*time.Second, most)
	}
	return most
}

// answerToken answers with the token that kube-apiserver gave for the same request, while the token is valid.
func (s *Server) answerToken(w http.ResponseWriter, r *http.Request, account types.NamespacedName) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, tokenLimit))
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	asked := &authenticationv1.TokenRequest{}
	if err := decodeBody(body, asked); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	request, ok := requestOf(account, asked)
	if !ok {
		return unknownAnswer(r)
	}
	kept, ok := s.store.token(request)
	switch {
	case !ok:
		return unknownAnswer(r)
	case kept.hasExpired(s.store.now()):
		return apierrors.NewServiceUnavailable(fmt.Sprintf("kube-apiserver is away, and the last token of pod %s/%s "+
			"has expired at %s", request.Namespace, request.Pod, kept.Until.UTC().Format(time.RFC3339)))
	}
	asked.Status = authenticationv1.TokenRequestStatus{Token: kept.Token,
		ExpirationTimestamp: metav1.NewTime(kept.Expiration)}
	return serve.WriteTyped(w, r, http.StatusCreated,
		wire.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"}, asked)
}

func decodeBody(body []byte, into served.Typed) error {
	if _, message, err := wire.Unwrap(body); err == nil {
		return into.Unmarshal(message)
	}
	return json.Unmarshal(body, into)
}
