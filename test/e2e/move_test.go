package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
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
			f.daemonSet("echo", unitLabel)
			node, err := shared.Node("a1")
			f.must(err)
			b := &balancer{}
			b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b.to.Load().ServeHTTP(w, r)
			}))
			t.Cleanup(b.Close)
			f.must(b.leadTo(node.WrapperConfig(cluster.RoleKubeProxy)))
			client, err := kubernetes.NewForConfig(&rest.Config{Host: b.URL})
			f.must(err)
			factory := informers.NewSharedInformerFactory(client, 0)
			lister := factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(f.namespace)
			factory.Start(f.ctx.Done())
			t.Cleanup(factory.Shutdown)
			expect := func(what, nodes string) {
				t.Helper()
				took := f.eventually(what, func() error {
					found, err := lister.List(labels.Everything())
					if got := readyOn(found); got != nodes {
						return fmt.Errorf("want endpoints on %s, got %s", nodes, got)
					}
					return err
				})
				t.Logf("%-40s %d ms", what, took.Milliseconds())
			}
			expect("at the wrapper", "a1 a2")

			f.must(b.leadTo(shared.RESTConfig()))
			f.must(node.Wrapper.Stop())
			expect("at kube-apiserver", "a1 a2 b1 b2")
			f.setReady("echo", "a2", corev1.ConditionFalse)
			expect("a change there", "a1 b1 b2")

			f.must(node.Wrapper.Start(f.ctx))
			f.must(b.leadTo(node.WrapperConfig(cluster.RoleKubeProxy)))
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
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				nodes = append(nodes, *endpoint.NodeName)
			}
		}
	}
	slices.Sort(nodes)
	return strings.Join(nodes, " ")
}

// TestRevisionsOfTheFuture holds what kube-apiserver answers to a revision that it has not reached, on which a client
// that comes from the wrapper depends: an error to a list, and to a watch with initial events, from which reflectors
// recover; silence to a watch that resumes. To a revision of more than 64 bits it answers with an error from which they
// do not recover.
func TestRevisionsOfTheFuture(t *testing.T) {
	f := newFixture(t)
	ask := func(revision string, more ...string) error {
		request := f.client.CoreV1().RESTClient().Get().Resource("services").MaxRetries(0).
			Param("resourceVersion", revision)
		for i := 0; i < len(more); i += 2 {
			request.Param(more[i], more[i+1])
		}
		if len(more) == 0 {
			return request.Do(f.ctx).Error()
		}
		stream, err := request.Watch(f.ctx)
		if err != nil {
			return err
		}
		defer stream.Stop()
		workload.CreateService(f.ctx, f.client, f.namespace, "unheard", workload.ServiceOptions{}) // there may be one already
		if event, answered := <-stream.ResultChan(); answered {
			return apierrors.FromObject(event.Object)
		}
		return nil
	}
	future := strconv.FormatInt(time.Now().UnixMicro(), 10)
	if err := ask(future); !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Errorf("a list: want ResourceVersionTooLarge, got %v", err)
	}
	if err := ask(future, "watch", "true", "sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks",
		"true"); !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Errorf("a watch with initial events: want ResourceVersionTooLarge, got %v", err)
	}
	if err := ask(future, "watch", "true", "timeoutSeconds", "2"); err != nil {
		t.Errorf("a watch that resumes: want silence, got %v", err)
	}
	const tooLong = "18446744073709551616"
	for _, err := range []error{ask(tooLong), ask(tooLong, "watch", "true", "timeoutSeconds", "2")} {
		if err == nil || apierrors.IsResourceExpired(err) ||
			apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("a revision of more than 64 bits: want an error of another kind, got %v", err)
		}
	}
}
