package e2e

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// balancer leads its clients to one API server or another.
type balancer struct {
	*httptest.Server
	to atomic.Pointer[httputil.ReverseProxy]
}

// leadTo leads new requests elsewhere.
func (b *balancer) leadTo(config *rest.Config) error {
	host := config.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	target, err := url.Parse(host)
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return err
	}
	b.to.Store(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
		},
		Transport: transport, FlushInterval: -1,
	})
	return nil
}

// TestClientMovesToTheAPIServerAndBack: an informer whose wrapper stops goes on at kube-apiserver, to which the
// wrapper's revisions mean nothing, and at the wrapper again afterwards.
func TestClientMovesToTheAPIServerAndBack(t *testing.T) {
	for _, protocol := range []cluster.Protocol{cluster.WatchList, cluster.ListThenWatch} {
		t.Run(string(protocol), func(t *testing.T) {
			featuretesting.SetFeatureDuringTest(t, features.WatchListClient, protocol == cluster.WatchList)
			f := newFixture(t)
			f.daemonSet("echo", siteLabel)
			node := f.Node("a1")
			b := &balancer{}
			b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b.to.Load().ServeHTTP(w, r)
			}))
			t.Cleanup(b.Close)
			f.Must(b.leadTo(node.WrapperConfig(cluster.RoleKubeProxy)))
			client, err := kubernetes.NewForConfig(&rest.Config{Host: b.URL})
			f.Must(err)
			factory := informers.NewSharedInformerFactory(client, 0)
			lister := factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(f.namespace)
			factory.Start(f.ctx.Done())
			t.Cleanup(factory.Shutdown)
			expect := func(what, nodes string) {
				t.Helper()
				f.Eventually(what, func() error {
					found, err := lister.List(labels.Everything())
					if got := readyOn(found); got != nodes {
						return fmt.Errorf("want endpoints on %s, got %s", nodes, got)
					}
					return err
				})
			}
			expect("at the wrapper", "a1 a2")

			f.Must(b.leadTo(shared.RESTConfig()))
			f.Must(node.Wrapper.Stop())
			expect("at kube-apiserver", "a1 a2 b1 b2")
			f.setReady("echo", "a2", corev1.ConditionFalse)
			expect("a change there", "a1 b1 b2")

			f.Must(node.Wrapper.Start(f.ctx))
			f.Must(b.leadTo(node.WrapperConfig(cluster.RoleKubeProxy)))
			b.CloseClientConnections()
			expect("at the wrapper again", "a1")
			f.setReady("echo", "a2", corev1.ConditionTrue)
			expect("a change there", "a1 a2")
		})
	}
}

// readyOn returns the nodes of the ready endpoints.
func readyOn(found []*discoveryv1.EndpointSlice) string {
	var nodes []string
	for _, slice := range found {
		for i := range slice.Endpoints {
			if isReady(&slice.Endpoints[i]) {
				nodes = append(nodes, *slice.Endpoints[i].NodeName)
			}
		}
	}
	return sorted(nodes)
}

// TestForeignRevisions holds what kube-apiserver answers to revisions that are not its own, on which a client that
// comes from the wrapper depends: docs/dev/design.md says what follows. "silence" is a watch that hears of no change.
func TestForeignRevisions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	earlier := f.service("earlier", workload.ServiceOptions{})
	ask := func(revision string, more ...string) string {
		request := f.client.CoreV1().RESTClient().Get().Resource("services").MaxRetries(0).
			Param("resourceVersion", revision)
		for i := 0; i < len(more); i += 2 {
			request.Param(more[i], more[i+1])
		}
		if len(more) == 0 {
			return answerOf(request.Do(f.ctx).Error())
		}
		stream, err := request.Param("watch", "true").Watch(f.ctx)
		if err != nil {
			return answerOf(err)
		}
		defer stream.Stop()
		workload.In(f.client, f.namespace).CreateService(f.ctx, "unheard", workload.ServiceOptions{}) // there may be one already
		switch event, answered := <-stream.ResultChan(); {
		case !answered:
			return "silence"
		case event.Type != watch.Error:
			return "served"
		default:
			return answerOf(apierrors.FromObject(event.Object))
		}
	}
	for _, test := range []struct{ what, revision, list, watchList, resume string }{
		{"the wrapper's", strconv.FormatInt(time.Now().UnixMicro(), 10), "too large", "too large", "silence"},
		{"the largest signed one", strconv.FormatInt(math.MaxInt64, 10), "too large", "too large", "silence"},
		{"the next one", strconv.FormatUint(math.MaxInt64+1, 10), "too large", "too large", "silence"},
		{"the largest one", strconv.FormatUint(math.MaxUint64, 10), "too large", "too large", "silence"},
		{"more than 64 bits", "18446744073709551616", "invalid", "invalid", "invalid"},
		{"one of its own", earlier.ResourceVersion, "served", "served", "served"}, // etcd still has it
	} {
		list, resume := ask(test.revision), ask(test.revision, "timeoutSeconds", "2")
		watchList := ask(test.revision, "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan",
			"allowWatchBookmarks", "true")
		t.Logf("%-22s %20s: list %s, watch with initial events %s, watch %s", test.what, test.revision, list, watchList, resume)
		if list != test.list || watchList != test.watchList || resume != test.resume {
			t.Errorf("%s: want %s, %s, %s", test.what, test.list, test.watchList, test.resume)
		}
	}
}

// answerOf names an API server's answer.
func answerOf(err error) string {
	switch {
	case err == nil:
		return "served"
	case apierrors.IsResourceExpired(err):
		return "expired"
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return "too large"
	case strings.Contains(strings.ToLower(err.Error()), "invalid"): // of several kinds
		return "invalid"
	default:
		return err.Error()
	}
}
