package serve

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

const (
	asTable        = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asMetadataList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// metadataClient is client-go's, for one encoding.
func (c *cluster) metadataClient(contentType string) metadata.Interface {
	c.t.Helper()
	config := metadata.ConfigFor(&rest.Config{Host: c.url})
	switch contentType {
	case asJSON:
		// The client names both encodings with every request, whatever its configuration says.
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return jsonOnly{next} })
	case asProtobuf:
	default:
		c.t.Fatalf("no client for %q", contentType)
	}
	return metadata.NewForConfigOrDie(config)
}

// jsonOnly takes protobuf off what a client accepts.
type jsonOnly struct{ next http.RoundTripper }

func (t jsonOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	var kept []string
	for clause := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if !strings.Contains(clause, "protobuf") {
			kept = append(kept, clause)
		}
	}
	r.Header.Set("Accept", strings.Join(kept, ","))
	return t.next.RoundTrip(r)
}

// TestMetadataClient reads metadata as client-go's metadata client does: in protobuf, and in JSON.
func TestMetadataClient(t *testing.T) {
	for _, contentType := range []string{asProtobuf, asJSON} {
		t.Run(contentType, func(t *testing.T) {
			one := labelled(service("one"), map[string]string{"app": "shop"})
			one.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Owner", Name: "o", UID: "u"}}
			c := newSyncedCluster(t, one, governed("two"), slice("two", "node0", "node2"))
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			client := c.metadataClient(contentType)
			services := client.Resource(served.Services.GroupVersionResource)
			list, err := services.List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != 2 || list.ResourceVersion == "" {
				t.Fatalf("got %d items at %q, want 2", len(list.Items), list.ResourceVersion)
			}
			got, err := services.Namespace("default").Get(ctx, "one", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(got.Labels, one.Labels) || len(got.OwnerReferences) != 1 ||
				got.CreationTimestamp.Unix() != one.CreationTimestamp.Unix() || got.UID != one.UID {
				t.Errorf("got the metadata %+v, want that of %+v", got.ObjectMeta, one.ObjectMeta)
			}
			if got.ResourceVersion != list.Items[0].ResourceVersion || got.ResourceVersion == one.ResourceVersion {
				t.Errorf("the object has the resourceVersion %q, its item %q; want the wrapper's own, twice",
					got.ResourceVersion, list.Items[0].ResourceVersion)
			}
		})
	}
}

// TestMetadataBodies holds the bodies against what kube-apiserver writes: no spec, and a kind with every item in JSON.
func TestMetadataBodies(t *testing.T) {
	c := newSyncedCluster(t, service("s"))
	var list struct {
		Kind, APIVersion string
		Items            []map[string]any
	}
	if err := json.Unmarshal(c.get(servicesPath, "Accept", asJSON+asMetadataList).body, &list); err != nil {
		t.Fatal(err)
	}
	if list.Kind != "PartialObjectMetadataList" || list.APIVersion != "meta.k8s.io/v1" || len(list.Items) != 1 {
		t.Fatalf("got the list %+v", list)
	}
	item := list.Items[0]
	if item["kind"] != "PartialObjectMetadata" || item["apiVersion"] != "meta.k8s.io/v1" || len(item) != 3 {
		t.Errorf("got the item %v, want its kind, apiVersion and metadata", item)
	}
}

// TestMetadataWatch looks at the stream itself: kinds, initial events, the bookmark that ends them, and changes.
func TestMetadataWatch(t *testing.T) {
	for _, contentType := range []string{asProtobuf, asJSON} {
		c := newSyncedCluster(t, service("one"))
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		w, err := c.metadataClient(contentType).Resource(served.Services.GroupVersionResource).Watch(ctx,
			metav1.ListOptions{
				SendInitialEvents: new(true), AllowWatchBookmarks: true,
				ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for i, want := range []string{"ADDED one", "BOOKMARK", "MODIFIED one", "DELETED one"} {
			e, ok := <-w.ResultChan()
			if !ok {
				t.Fatalf("%s: the stream ended before event %d", contentType, i)
			}
			partial, ok := e.Object.(*metav1.PartialObjectMetadata)
			if !ok || strings.TrimSpace(string(e.Type)+" "+partial.Name) != want {
				t.Fatalf("%s: event %d: got %s %+v, want %s", contentType, i, e.Type, e.Object, want)
			}
			switch {
			case i == 1 && partial.Annotations[metav1.InitialEventsAnnotationKey] != "true":
				t.Errorf("%s: the bookmark does not end the initial events: %+v", contentType, partial)
			case i == 1:
				c.apply(labelled(service("one"), map[string]string{"changed": "yes"}))
				c.remove(service("one"))
			case i > 1 && partial.Labels["changed"] != "yes":
				t.Errorf("%s: event %d has not the change: %+v", contentType, i, partial)
			}
		}
	}
}

// TestStatusForConvertingClients: a client that asks for tables or metadata gets errors that it can read.
func TestStatusForConvertingClients(t *testing.T) {
	c := newSyncedCluster(t)
	for _, accept := range []string{asTable + "," + asJSON, asJSON + asMetadata, asProtobuf + asMetadata} {
		if s := c.get("/api/v1/namespaces/default/services/gone", "Accept",
			accept).status(t); s.Code != http.StatusNotFound {
			t.Errorf("%s: got %+v", accept, s)
		}
	}
}
