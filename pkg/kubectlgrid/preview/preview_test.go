package preview

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// largeCluster is an API server of so many nodes, Services and slices, which it makes up as they are asked for.
type largeCluster struct {
	*testing.T
	nodes, services, slices, endpoints int
	codec                              kruntime.Encoder
	// expire lets this many lists of slices expire after their first page.
	expire int
	// forbidden is a path that may not be read.
	forbidden string
	peak      int
}

func (c *largeCluster) start() cluster.Cluster {
	c.Helper()
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(scheme); err != nil {
			c.Fatal(err)
		}
	}
	c.codec = protobuf.NewSerializer(scheme, scheme)
	server := httptest.NewServer(c)
	c.Cleanup(server.Close)
	connected, err := cluster.Connect(&rest.Config{Host: server.URL}, &bytes.Buffer{})
	if err != nil {
		c.Fatal(err)
	}
	return connected
}

func (c *largeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == c.forbidden {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"not you"}`)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit > 500 {
		c.Errorf("%s is not asked for in pages", r.URL)
	}
	page := func(total int) (to int, meta metav1.ListMeta) {
		to, meta.ResourceVersion = min(from+limit, total), "1"
		if to < total {
			meta.Continue = strconv.Itoa(to)
		}
		return to, meta
	}
	var list kruntime.Object
	switch strings.Replace(r.URL.Path, "/namespaces/ns", "", 1) {
	case "/api/v1/nodes":
		if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			c.Errorf("more than the metadata of nodes is asked for: %s", r.Header.Get("Accept"))
		}
		l := &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
		}
		var to int
		for to, l.ListMeta = page(c.nodes); from < to; from++ {
			labels := map[string]string{
				"site": fmt.Sprint("s", from%3), "kubernetes.io/hostname": fmt.Sprint("n", from),
			}
			l.Items = append(l.Items, metav1.PartialObjectMetadata{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", from), Labels: labels},
			})
		}
		list = l
	case "/api/v1/services":
		l := &corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}}
		var to int
		for to, l.ListMeta = page(c.services); from < to; from++ {
			l.Items = append(l.Items, corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("svc", from)},
			})
		}
		list = l
	case "/apis/discovery.k8s.io/v1/endpointslices":
		if from > 0 && c.expire > 0 {
			c.expire--
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusGone)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{"continue":"0%s"},"status":"Failure","reason":"Expired","code":410}`,
				r.URL.Query().Get("continue"))
			return
		}
		if from > 0 && from%1000 == 0 {
			c.peak = max(c.peak, liveheap.Size())
		}
		l := &discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"},
		}
		var to int
		for to, l.ListMeta = page(c.slices); from < to; from++ {
			l.Items = append(l.Items, c.slice(from))
		}
		list = l
	default:
		c.Errorf("asked for %s", r.URL)
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kruntime.ContentTypeProtobuf)
	if err := c.codec.Encode(list, w); err != nil {
		c.Error(err)
	}
}

// slice is the slice i, of Service i modulo their number, with endpoints on the nodes one after the other.
func (c *largeCluster) slice(i int) discoveryv1.EndpointSlice {
	s := discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprint("slice", i),
		Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc", i%c.services)},
	}}
	for j := range c.endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i/256%256, i%256, j)},
			NodeName:  ptr.To(fmt.Sprint("n", (i+j)%c.nodes)),
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("pod-%d-%d", i, j),
				UID: "4b9f1b8e-0000-4000-8000-000000000000",
			},
		})
	}
	return s
}

// read previews what an API server has, without a diagnosis.
func read(t *testing.T, api client.Reader, key, namespace string) (*gridview.Previewer, error) {
	t.Helper()
	nodes, err := cluster.Nodes(t.Context(), api)
	if err != nil {
		t.Fatal(err)
	}
	return Read(t.Context(), api, &gridview.Groupings{Nodes: nodes}, key, namespace)
}

// TestReadInPages: the answer is that of one list, also if the list expires on the way.
func TestReadInPages(t *testing.T) {
	c := &largeCluster{T: t, nodes: 9, services: 2, slices: 1100, endpoints: 3, expire: 2}
	previewer, err := read(t, c.start().API, "site", "")
	if err != nil {
		t.Fatal(err)
	}
	preview := previewer.Preview()
	if len(preview.Services) != 2 || preview.Services[0].Ready != 550*3 || preview.Services[0].ReadyIn["s1"] != 550 ||
		!preview.Healthy() {
		t.Errorf("got %+v", preview.Services)
	}
}

// TestReadIsBounded: what is held follows the sites and the Services, not the endpoints: 3,000 slices of 100
// endpoints, of which 84 bytes each would be too many.
func TestReadIsBounded(t *testing.T) {
	c := &largeCluster{T: t, nodes: 1000, services: 500, slices: 3000, endpoints: 100}
	api := c.start().API
	before := liveheap.Size()
	previewer, err := read(t, api, "site", "")
	if err != nil {
		t.Fatal(err)
	}
	preview := previewer.Preview()
	held := c.peak - before
	t.Logf("%d KiB are held while 300,000 endpoints are read", held>>10)
	if len(preview.Services) != 500 || preview.Services[0].Ready != 600 || held > 45<<20 {
		t.Errorf("%d Services, the first with %d endpoints; %d bytes held",
			len(preview.Services), preview.Services[0].Ready, held)
	}
}

func TestReadErrors(t *testing.T) {
	for _, test := range []struct {
		cluster *largeCluster
		key     string
		// namespace is empty for all.
		namespace string
		want      string
		usage     bool
	}{
		{
			&largeCluster{}, "", "",
			"give the label key whose values are the sites: --key. Labels that divide these nodes: site (3 sites)",
			true,
		},
		{
			&largeCluster{}, "zone", "",
			"none of 6 nodes has the label zone. Labels that divide these nodes: site (3 sites)", true,
		},
		{
			&largeCluster{forbidden: "/api/v1/services"}, "site", "",
			"you may not read the Services of all namespaces; -n NAMESPACE", false,
		},
		{
			&largeCluster{forbidden: "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"},
			"site", "ns", "reading the EndpointSlices", false,
		},
	} {
		test.cluster.T, test.cluster.nodes, test.cluster.services, test.cluster.slices = t, 6, 1, 1
		_, err := read(t, test.cluster.start().API, test.key, test.namespace)
		if err == nil || !strings.Contains(err.Error(), test.want) || errors.As(err, &flags.UsageError{}) != test.usage {
			t.Errorf("%s: got %v, want %s", test.key, err, test.want)
		}
	}
}

func TestPrint(t *testing.T) {
	preview := &gridview.Preview{
		Key: "site", Sites: []gridview.PreviewSite{{Name: "a", Nodes: 2}, {Name: "b", Nodes: 1}}, NodesWithoutSite: 1,
		Services: []gridview.PreviewService{
			{
				Namespace: "x", Name: "echo", Ready: 3, ReadyIn: map[string]int{"a": 2, "b": 1}, Foreign: ptr.To(0.004),
				Command: "CLOSE echo",
			},
			{
				Namespace: "x", Name: "db", Ready: 1, ReadyIn: map[string]int{"a": 1}, Foreign: ptr.To(1.0 / 3),
				Dark: []string{"b"}, Command: "CLOSE db",
			},
			{
				Namespace: "y", Name: "shut", Ready: 2, ReadyIn: map[string]int{"a": 1, "b": 1},
				TopologyKeys: []string{"site"},
			},
			{Namespace: "y", Name: "none", Message: "no endpoint is ready anywhere", Command: "CLOSE none"},
		},
	}
	var out bytes.Buffer
	if err := Print(&out, preview, output.Wide, Columns{Namespaces: true}); err != nil {
		t.Fatal(err)
	}
	want := `The values of site are 2 sites: a (2 nodes), b (1 node). The label is missing on 1 node.

NAMESPACE   NAME   READY   FOREIGN   SITES WITHOUT   STATE                                 READY IN SITES   COMMAND
x           echo   3       <1%       -               open                                  a=2,b=1          CLOSE echo
x           db     1       33%       1 of 2: b       open                                  a=1              CLOSE db
y           shut   2       -         -               site-local                            a=1,b=1          -
y           none   0       -         -               open; no endpoint is ready anywhere   <none>           CLOSE none

FOREIGN is the share of the endpoints that a node is sent to today which is not in its own site.
1 Service would leave sites without a ready endpoint if site-local: first run a copy in each of them, as a DeploymentGrid does.
This makes one site-local, once application-grid is installed (kubectl grid check --pre):
  CLOSE echo
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	if err := Print(&out, preview, output.Table, Columns{NoHeader: true}); err != nil ||
		strings.Count(out.String(), "\n") != 4 {
		t.Errorf("got %v\n%s", err, out.String())
	}
	out.Reset()
	if err := Print(&out, preview, output.JSON, Columns{}); err != nil ||
		!strings.Contains(out.String(), `"kind": "ServicePreview"`) {
		t.Errorf("got %v\n%s", err, out.String())
	}
}
