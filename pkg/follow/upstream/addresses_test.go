package upstream

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

func nodeAt(name string, addresses ...string) *corev1.Node {
	n := node(name, "a")
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{
			Type: corev1.NodeInternalIP, Address: address,
		})
	}
	return n
}

// addressLists are the requests for nodes with their status.
func addressLists(api *upstreamtest.API) []upstreamtest.Request {
	return slices.DeleteFunc(api.Requests(), func(r upstreamtest.Request) bool {
		return r.Path != "/api/v1/nodes" || r.Query["watch"] != nil || r.Query["fieldSelector"] != nil ||
			strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	})
}

func addressesOf(s *storagetest.Node) string {
	known := s.Notes().Addresses
	var all []string
	for _, address := range slices.SortedFunc(maps.Keys(known), netip.Addr.Compare) {
		all = append(all, address.String()+"="+known[address])
	}
	return strings.Join(all, " ")
}

// TestNodeAddressesAreListed: in pages, from protobuf and JSON, of both families, and rarely.
func TestNodeAddressesAreListed(t *testing.T) {
	for name, behaviour := range map[string]upstreamtest.Behaviour{
		"protobuf": {}, "JSON": {JSONOnly: true}, "paged": {PageSize: 2}, "paged JSON": {PageSize: 1, JSONOnly: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { listsNodeAddresses(t, behaviour) })
		})
	}
}

func listsNodeAddresses(t *testing.T, behaviour upstreamtest.Behaviour) {
	t.Helper()
	api := upstreamtest.New()
	api.Put(nodeAt("node0", "10.0.0.1", "fd00::1"))
	api.Put(nodeAt("node1", "10.0.0.2", "10.9.9.9"))
	api.Put(nodeAt("node2", "::ffff:10.0.0.3", "10.9.9.9"))
	api.Put(nodeAt("node3"))
	api.Behave(behaviour)
	f := followAll(t, api)

	if listed, err := f.upstream.ListAddresses(t.Context()); err != nil || !listed {
		t.Fatalf("listed %v, %v", listed, err)
	}
	// It is not known whose 10.9.9.9 is.
	if got, want := addressesOf(f.store), "10.0.0.1=node0 10.0.0.2=node1 10.0.0.3=node2 "+
		"fd00::1=node0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	lists := addressLists(api)
	want := 1
	if behaviour.PageSize > 0 {
		want = (4 + behaviour.PageSize - 1) / behaviour.PageSize
	}
	if len(lists) != want {
		t.Errorf("%d requests, want %d", len(lists), want)
	}
	for _, r := range lists {
		if agent := r.Header.Get("User-Agent"); !strings.Contains(strings.Split(agent, " ")[0],
			"+node-addresses") {
			t.Errorf("a cache takes it for the list that is followed: User-Agent %q", agent)
		}
		if fmt.Sprint(r.Query["limit"]) != "[250]" {
			t.Errorf("asked with %v", r.Query)
		}
	}
	// Not again so soon, but then with what is new.
	api.Put(nodeAt("node3", "10.0.0.4"))
	time.Sleep(addressInterval - time.Second)
	if listed, err := f.upstream.ListAddresses(t.Context()); err != nil || listed ||
		len(addressLists(api)) != want {
		t.Errorf("listed again: %v, %v", listed, err)
	}
	time.Sleep(time.Second)
	if listed, err := f.upstream.ListAddresses(t.Context()); err != nil || !listed ||
		!strings.Contains(addressesOf(f.store), "10.0.0.4=node3") {
		t.Errorf("listed %v, %v: %s", listed, err, addressesOf(f.store))
	}
}

// TestNodeAddressesWaitForTheUpstream: a list that cannot succeed is not tried, and one that failed counts.
func TestNodeAddressesWaitForTheUpstream(t *testing.T) { synctest.Test(t, waitsForTheUpstream) }

func waitsForTheUpstream(t *testing.T) {
	api := upstreamtest.New()
	api.Put(nodeAt("node0", "10.0.0.1"))

	// Before the first sync it waits, and ends with its context.
	api.Behave(upstreamtest.Behaviour{Failing: http.StatusInternalServerError})
	u, err := New(Options{
		Config: inMemory(api), Facts: storagetest.New(storagetest.Options{}).Facts, NodeName: "node0",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if listed, err := u.ListAddresses(ctx); listed || err != nil || len(api.Requests()) > 0 {
		t.Errorf("before the sync: listed %v, %v, %d requests", listed, err, len(api.Requests()))
	}

	api.Behave(upstreamtest.Behaviour{})
	f := followAll(t, api)
	api.Behave(upstreamtest.Behaviour{Failing: http.StatusForbidden})
	if listed, err := f.upstream.ListAddresses(t.Context()); listed || err == nil ||
		!strings.Contains(err.Error(), "addresses") {
		t.Errorf("refused: listed %v, %v", listed, err)
	}
	api.Behave(upstreamtest.Behaviour{})
	if listed, err := f.upstream.ListAddresses(t.Context()); listed || err != nil {
		t.Errorf("at once after that: listed %v, %v", listed, err)
	}
	time.Sleep(addressInterval)
	api.Behave(upstreamtest.Behaviour{Failing: http.StatusServiceUnavailable})
	api.Forget()
	f.expectState("nodes", func(s follow.State) bool { return s.Err != nil })
	if listed, err := f.upstream.ListAddresses(t.Context()); listed || err != nil {
		t.Errorf("while the link is down: listed %v, %v", listed, err)
	}
	api.Behave(upstreamtest.Behaviour{})
	f.expectState("nodes", func(s follow.State) bool { return s.Err == nil })
	if listed, err := f.upstream.ListAddresses(t.Context()); !listed || err != nil ||
		addressesOf(f.store) != "10.0.0.1=node0" {
		t.Errorf("when it is up: listed %v, %v: %s", listed, err, addressesOf(f.store))
	}
}

// TestSiteAddressesAreListed: those of the nodes that share a value of any topology key with this one, when the site
// has changed or an address is unknown, and not all the time.
func TestSiteAddressesAreListed(t *testing.T) { synctest.Test(t, listsSiteAddresses) }

func listsSiteAddresses(t *testing.T) {
	api := upstreamtest.New()
	api.Put(nodeAt("node0", "10.0.0.1", "fd00::1"))
	api.Put(nodeAt("node1", "10.0.0.2"))
	other := nodeAt("node2", "10.0.0.3")
	other.Labels = map[string]string{"zone": "b"}
	api.Put(other)
	governed := service("s")
	governed.Annotations = map[string]string{"topologyKeys": `["zone"]`}
	api.Put(governed)
	f := followAll(t, api)
	ctx, cancel := context.WithCancel(t.Context())
	unknown, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		f.upstream.FollowSite(ctx, unknown)
	}()
	defer func() {
		cancel()
		<-done
	}()
	expect := func(what, want string, lists int) {
		t.Helper()
		soon.UntilQuiet(t, func() string {
			got := fmt.Sprint(f.store.Notes().InternalIPs)
			if count := len(addressLists(api)); got != want || count != lists {
				return fmt.Sprintf("%s: got %s after %d lists, want %s after %d", what, got, count, want, lists)
			}
			return ""
		})
	}
	sites := func(nodes int) {
		t.Helper()
		soon.UntilQuiet(t, func() string {
			if len(f.store.Site()) != nodes {
				return fmt.Sprint(f.store.Site())
			}
			return ""
		})
	}
	expect("at first", "map[node0:[10.0.0.1 fd00::1] node1:[10.0.0.2]]", 1)
	if r := addressLists(api)[0]; fmt.Sprint(r.Query["labelSelector"]) != "[zone=a]" ||
		!strings.Contains(r.Header.Get("User-Agent"), "+site-addresses") {
		t.Errorf("asked with %v, %v", r.Query, r.Header)
	}
	other = other.DeepCopy()
	other.Labels["zone"] = "a"
	api.Put(other)
	sites(3)
	time.Sleep(siteAgain)
	expect("relabelled", "map[node0:[10.0.0.1 fd00::1] node1:[10.0.0.2] node2:[10.0.0.3]]", 2)
	api.Put(nodeAt("node1", "10.0.0.9"))
	unknown <- struct{}{}
	time.Sleep(siteAgain)
	expect("unknown", "map[node0:[10.0.0.1 fd00::1] node1:[10.0.0.9] node2:[10.0.0.3]]", 3)
	time.Sleep(siteInterval)
	expect("hours later", "map[node0:[10.0.0.1 fd00::1] node1:[10.0.0.9] node2:[10.0.0.3]]", 4)

	// A node that has just come has no address yet.
	late := nodeAt("node3")
	api.Put(late)
	sites(4)
	time.Sleep(siteAgain)
	expect("without an address", "map[node0:[10.0.0.1 fd00::1] node1:[10.0.0.9] node2:[10.0.0.3]]", 5)
	api.Put(nodeAt("node3", "10.0.0.4"))
	time.Sleep(siteAgain)
	expect("with one", "map[node0:[10.0.0.1 fd00::1] node1:[10.0.0.9] node2:[10.0.0.3] node3:[10.0.0.4]]", 6)
}

// TestTwoNodesWithOneAddress: the Node object of a machine that was replaced does not take the live one out.
func TestTwoNodesWithOneAddress(t *testing.T) {
	at := func(name string, created int64, ready bool) nodeAddresses {
		return nodeAddresses{
			name: name, ready: ready, created: time.Unix(created, 0),
			internal: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		}
	}
	for _, test := range []struct {
		a, b nodeAddresses
		want string
	}{
		{at("a", 1, true), at("b", 2, false), "map[a:[10.0.0.1] b:[]]"},
		{at("a", 1, false), at("b", 2, true), "map[a:[] b:[10.0.0.1]]"},
		{at("a", 1, true), at("b", 2, true), "map[a:[] b:[10.0.0.1]]"},
		{at("a", 2, false), at("b", 1, false), "map[a:[10.0.0.1] b:[]]"},
	} {
		if got := fmt.Sprint(internalIPs(map[string]nodeAddresses{"a": test.a, "b": test.b})); got != test.want {
			t.Errorf("%v, %v: got %s, want %s", test.a, test.b, got, test.want)
		}
	}
	alone := map[string]nodeAddresses{"a": at("a", 1, false)}
	if got := fmt.Sprint(internalIPs(alone)); got != "map[a:[10.0.0.1]]" {
		t.Errorf("a node that is not ready is left out: %s", got)
	}
}

// TestListsOfAddressesThatAreNone: what the upstream sends in place of a list of nodes is an error.
func TestListsOfAddressesThatAreNone(t *testing.T) {
	for _, body := range []string{
		"", "{}", "<html>", `{"kind":"Status"}`, `{"kind":"ServiceList","apiVersion":"v1","items":[]}`,
		`{"kind":"NodeList","apiVersion":"v1","items":[{"status":{"addresses":[1]}}]}`,
		"k8s\x00", "k8s\x00\xff", "k8s\x00\x12\x03\x12\x01\xff",
	} {
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", runtime.ContentTypeJSON)
			_, _ = io.WriteString(w, body)
		}))
		u, err := New(Options{Config: &rest.Config{Host: server}, Facts: storagetest.New(storagetest.Options{}).Facts})
		if err != nil {
			t.Fatal(err)
		}
		if err := u.eachNode(t.Context(), addressAgent, "", func(nodeAddresses) {}); err == nil {
			t.Errorf("%q is taken for a list of nodes", body)
		}
	}
}

// inMemory leads to an API without a network.
func inMemory(api *upstreamtest.API) *rest.Config {
	return &rest.Config{Host: "http://upstream.example", Transport: upstreamtest.Memory{Handler: api}, QPS: -1}
}

// followAll is start on an API in a bubble, until the view is complete.
func followAll(t *testing.T, api *upstreamtest.API) *follower {
	t.Helper()
	f := start(t, api, inMemory(api))
	soon.UntilQuiet(t, func() string {
		if _, err := f.store.History.Readable(served.EndpointSlices); err != nil {
			return err.Error()
		}
		watches := 0
		for _, r := range api.Requests() {
			if r.Path == "/api/v1/nodes" && r.Query["watch"] != nil {
				watches++
			}
		}
		if watches < 2 {
			return "the nodes are not watched yet"
		}
		return ""
	})
	return f
}
