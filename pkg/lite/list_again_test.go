package lite

import (
	"context"
	"errors"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// TestKubeletListsAgain: a kubelet that has restarted without the cloud lists its pods when the cloud is back, if one
// was left out of the answers, and kube-apiserver still has it. It would never see it otherwise. A watch of one
// namespace changes nothing.
func TestKubeletListsAgain(t *testing.T) {
	const watch = "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3Dnode0&resourceVersion=5"
	const elsewhere = "/api/v1/namespaces/shop/pods?watch=true&fieldSelector=spec.nodeName%3Dnode0&resourceVersion=5"
	for name, test := range map[string]struct {
		deleted *answerOf
		lists   bool
	}{
		"no pod is deleted":          {},
		"the DELETE is not answered": {deleted: &answerOf{code: -1}, lists: true},
		"a gateway answers it":       {deleted: &answerOf{http.StatusOK, "<html></html>"}, lists: true},
		"kube-apiserver refuses it":  {deleted: &answerOf{http.StatusConflict, "{}"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := running(t)
			if test.deleted != nil {
				f.cloud.deletes.Store(test.deleted)
				_ = f.clientFor(f.kubelet()).CoreV1().Pods("shop").Delete(t.Context(), "till", metav1.DeleteOptions{
					GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions("u1")})
			}
			f.stop()
			f.cloud.gateway.Store(true)
			f.start()
			pods, err := f.podsOfNode0(f.clientFor(f.kubelet()))
			if f.must(err); len(pods) > 0 == test.lists {
				t.Fatalf("without the cloud there are %d pods", len(pods))
			}
			f.cloud.gateway.Store(false)
			patience.Until(t, "the cloud is back", func() error {
				if f.server.link.AwayUntil() != nil {
					return errors.New("it is away")
				}
				return nil
			})
			expired := http.StatusOK
			if test.lists {
				expired = http.StatusGone
			}
			for _, ask := range []struct {
				path string
				want int
			}{
				{elsewhere, http.StatusOK}, {watch, expired}, {watch, http.StatusOK},
			} {
				if code := f.begin(ask.path); code != ask.want {
					t.Errorf("%s: %d, want %d", ask.path, code, ask.want)
				}
			}
		})
	}
}

// begin sends a GET of the kubelet, and returns the code of the answer, which may be without an end.
func (f *fixture) begin(path string) int {
	f.Helper()
	config := f.kubelet()
	transport, err := rest.TransportFor(config)
	f.must(err)
	ctx, cancel := context.WithCancel(f.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	f.must(err)
	response, err := transport.RoundTrip(r)
	f.must(err)
	f.must(response.Body.Close())
	return response.StatusCode
}
