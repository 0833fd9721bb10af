package serve

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// TestInformersConverge runs client-go's own informers against the server, in both modes and both encodings,
// through changes, relabels and broken connections.
func TestInformersConverge(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		for _, contentType := range bothEncodings {
			t.Run(fmt.Sprintf("WatchList=%v %s", streaming, contentType), func(t *testing.T) {
				featurestesting.SetFeatureDuringTest(t, features.WatchListClient, streaming)
				testInformers(t, contentType, streaming)
			})
		}
	}
}

func testInformers(t *testing.T, contentType string, streaming bool) {
	t.Helper()
	c := newCluster(t, func(o *storagetest.Options, _ *Server) { o.LogEvents = 40 })
	var lists, streamingLists atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("sendInitialEvents") == "true":
			streamingLists.Add(1)
		case r.URL.Query().Get("watch") == "":
			lists.Add(1)
		}
		c.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	c.sync(service("s0"), governed("g"), slice("g", thisNode, "node2"))
	services := startInformer(t, front.URL, contentType, &corev1.Service{}, "services")
	slices := startInformer(t, front.URL, contentType, &discoveryv1.EndpointSlice{}, "endpointslices")

	for i := range 200 {
		name := "s" + strconv.Itoa(i%20)
		switch i % 5 {
		case 4:
			c.remove(service(name))
		default:
			c.apply(labelled(service(name), map[string]string{"n": strconv.Itoa(i)}))
		}
		if i%10 == 0 {
			c.apply(node("node2", []string{"a", "b"}[i/10%2]))
		}
		if i%50 == 49 {
			front.CloseClientConnections()
		}
	}
	c.apply(node("node2", "a"))
	soon.UntilQuiet(t, func() string { return differs(c, served.Services, services) })
	soon.UntilQuiet(t, func() string { return differs(c, served.EndpointSlices, slices) })

	if streaming && (lists.Load() > 0 || streamingLists.Load() < 2) {
		t.Errorf("streaming lists are wanted, got %d and %d ordinary ones", streamingLists.Load(), lists.Load())
	}
	if !streaming && (lists.Load() < 2 || streamingLists.Load() > 0) {
		t.Errorf("ordinary lists are wanted, got %d and %d streaming ones", lists.Load(), streamingLists.Load())
	}
}

func startInformer(
	tb testing.TB, url, contentType string, example served.Typed, resource string,
) cache.SharedInformer {
	tb.Helper()
	gv := corev1.SchemeGroupVersion
	apiPath := "/api"
	if resource == "endpointslices" {
		gv, apiPath = discoveryv1.SchemeGroupVersion, "/apis"
	}
	client, err := rest.RESTClientFor(&rest.Config{
		Host: url, APIPath: apiPath, QPS: -1,
		ContentConfig: rest.ContentConfig{
			GroupVersion: &gv, NegotiatedSerializer: scheme.Codecs.WithoutConversion(), ContentType: contentType,
			AcceptContentTypes: contentType,
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	informer := cache.NewSharedInformer(cache.NewListWatchFromClient(client, resource, "", fields.Everything()),
		example, 0)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	soon.UntilQuiet(tb, func() string {
		if !informer.HasSynced() {
			return "the informer of " + resource + " does not sync"
		}
		return ""
	})
	return informer
}

// differs compares an informer's store with the Store, down to the resourceVersions.
func differs(c *cluster, resource *served.Resource, informer cache.SharedInformer) string {
	objects, _, err := c.store.History.List(resource, "", 0)
	if err != nil {
		return err.Error()
	}
	got := informer.GetStore().ListKeys()
	if len(got) != len(objects) {
		return fmt.Sprintf("the client has %d %s, the server %d", len(got), resource.Resource, len(objects))
	}
	for _, o := range objects {
		want, err := o.Decode()
		if err != nil {
			return err.Error()
		}
		held, ok, err := informer.GetStore().GetByKey(o.Namespace + "/" + o.Name)
		if err != nil || !ok {
			return fmt.Sprintf("the client has no %s", o.Name)
		}
		wantJSON, err := runtime.Encode(scheme.Codecs.LegacyCodec(resource.GroupVersion()), want)
		if err != nil {
			return err.Error()
		}
		heldJSON, err := runtime.Encode(scheme.Codecs.LegacyCodec(resource.GroupVersion()), held.(runtime.Object))
		if err != nil {
			return err.Error()
		}
		if string(wantJSON) != string(heldJSON) {
			return fmt.Sprintf("the client has\n%s\nthe server\n%s", heldJSON, wantJSON)
		}
	}
	return ""
}
