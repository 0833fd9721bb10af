package serve

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// TestMalformedQueryIsRefused: bad input gets a clear error as a Status, never a default.
func TestMalformedQueryIsRefused(t *testing.T) {
	c := newSyncedCluster(t, service("s"))
	tests := []struct {
		query string
		code  int
		// says is a part of the message: it must name what is wrong.
		says string
	}{
		{"watch=maybe", 400, "watch"},
		{"allowWatchBookmarks=perhaps", 400, "allowWatchBookmarks"},
		{"watch=true&sendInitialEvents=si&resourceVersionMatch=NotOlderThan", 400, "sendInitialEvents"},
		{"timeoutSeconds=-1", 400, "timeoutSeconds"},
		{"timeoutSeconds=5m", 400, "timeoutSeconds"},
		{"resourceVersion=abc", 400, "resourceVersion"},
		{"resourceVersion=-1", 400, "resourceVersion"},
		{"resourceVersion=99999999999999999999", 400, "resourceVersion"},
		{"limit=-1", 400, "limit"},
		{"limit=many", 400, "limit"},
		{"labelSelector=" + url.QueryEscape("a in (b"), 400, "labelSelector"},
		{"labelSelector=" + url.QueryEscape("a==b==c"), 400, "labelSelector"},
		{"fieldSelector=" + url.QueryEscape("metadata.name"), 400, "fieldSelector"},
		{"fieldSelector=" + url.QueryEscape("spec.externalName=x"), 400, "field label not supported"},
		{"fieldSelector=" + url.QueryEscape("metadata.name=s,status.phase=x"), 400, "field label not supported"},
		{"watch=true&sendInitialEvents=true", 422, "resourceVersionMatch"},
		{"watch=true&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1", 422, "resourceVersionMatch"},
		{"watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=1", 422, "resourceVersionMatch"},
		{"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1", 422, "sendInitialEvents"},
		{"resourceVersionMatch=Exact", 422, "resourceVersionMatch"},
		{"resourceVersionMatch=Exact&resourceVersion=0", 422, "resourceVersionMatch"},
		{"resourceVersionMatch=Sometimes&resourceVersion=1", 422, "resourceVersionMatch"},
	}
	for _, test := range tests {
		t.Run(test.query, func(t *testing.T) {
			for _, accept := range []string{asJSON, asProtobuf} {
				r := c.get(servicesPath+"?"+test.query, "Accept", accept)
				if r.code != test.code {
					t.Fatalf("%s: got code %d, want %d: %q", accept, r.code, test.code, r.body)
				}
				status := r.status(t)
				if !strings.Contains(status.Message, test.says) {
					t.Errorf("%s: the message %q does not say %q", accept, status.Message, test.says)
				}
				want := metav1.StatusReasonBadRequest
				if test.code == http.StatusUnprocessableEntity {
					want = metav1.StatusReasonInvalid
				}
				if status.Reason != want {
					t.Errorf("%s: got reason %s, want %s", accept, status.Reason, want)
				}
			}
		})
	}
}

func TestParseOptions(t *testing.T) {
	collection := RequestInfo{Verb: "list", Resource: "services"}
	tests := []struct {
		query string
		info  RequestInfo
		check func(Options) bool
	}{
		{"", collection, func(o Options) bool {
			return !o.Watch && o.Revision == 0 && o.Selector == (history.Selector{})
		}},
		{"watch=1", collection, func(o Options) bool { return o.Watch }},
		{"watch", collection, func(o Options) bool { return o.Watch }},
		{"watch=false", collection, func(o Options) bool { return !o.Watch }},
		{"watch=0", collection, func(o Options) bool { return !o.Watch }},
		{"watch=False", collection, func(o Options) bool { return !o.Watch }},
		{"", RequestInfo{Verb: "watch"}, func(o Options) bool { return o.Watch }},
		{"resourceVersion=0", collection, func(o Options) bool { return o.Revision == 0 }},
		{
			"resourceVersion=12&resourceVersionMatch=Exact", collection,
			func(o Options) bool { return o.Exact && o.Revision == 12 },
		},
		{
			"resourceVersion=12&resourceVersionMatch=NotOlderThan", collection,
			func(o Options) bool { return !o.Exact && o.Revision == 12 },
		},
		{"timeoutSeconds=406&timeout=6m46s", collection, func(o Options) bool { return o.Timeout == 406*time.Second }},
		{"timeoutSeconds=9223372036854775807", collection, func(o Options) bool { return o.Timeout == 24*time.Hour }},
		{"limit=9223372036854775807", collection, func(o Options) bool { return !o.Watch }},
		{"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", collection,
			func(o Options) bool {
				return o.SendInitialEvents && !o.SkipInitialEvents && o.Bookmarks
			}},
		{"watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", collection, func(o Options) bool {
			return !o.SendInitialEvents && o.SkipInitialEvents
		}},
		{"", RequestInfo{Verb: "watch", Namespace: "ns", Name: "x"}, func(o Options) bool {
			name, ok := o.Selector.Fields.RequiresExactMatch("metadata.name")
			return ok && name == "x" && o.Selector.Namespace == "ns"
		}},
		{"fieldSelector=spec.clusterIP%21%3DNone&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name",
			collection, func(o Options) bool {
				return !o.Selector.Fields.Empty() && !o.Selector.Labels.Empty()
			}},
	}
	for _, test := range tests {
		t.Run(test.query, func(t *testing.T) {
			query, err := url.ParseQuery(test.query)
			if err != nil {
				t.Fatal(err)
			}
			o, err := ParseOptions(query, served.Services, test.info)
			if err != nil {
				t.Fatal(err)
			}
			if !test.check(o) {
				t.Errorf("got %+v", o)
			}
		})
	}
}

// TestFieldSelectorsOfEachResource: those of kube-apiserver, and no others.
func TestFieldSelectorsOfEachResource(t *testing.T) {
	tests := []struct {
		resource *served.Resource
		field    string
		ok       bool
	}{
		{served.Services, "metadata.name", true},
		{served.Services, "metadata.namespace", true},
		{served.Services, "spec.clusterIP", true},
		{served.Services, "spec.type", true},
		{served.EndpointSlices, "metadata.namespace", true},
		{served.EndpointSlices, "addressType", false},
		{served.Endpoints, "metadata.name", true},
		{served.Endpoints, "spec.clusterIP", false},
		{served.Nodes, "metadata.name", true},
		{served.Nodes, "metadata.namespace", false},
		{served.Nodes, "spec.unschedulable", true},
	}
	for _, test := range tests {
		_, err := ParseOptions(url.Values{"fieldSelector": {test.field + "=x"}}, test.resource, RequestInfo{
			Verb: "list",
		})
		if ok := err == nil; ok != test.ok {
			t.Errorf("%s of %s: supported %v, want %v (%v)", test.field, test.resource.Resource, ok, test.ok, err)
		}
	}
}

func TestParseRequest(t *testing.T) {
	// What is expected is VERB RESOURCE.VERSION.GROUP NAMESPACE/NAME/SUBRESOURCE, of no resource the verb alone.
	for _, test := range []struct{ method, path, want string }{
		{"GET", "/api/v1/services", "list services.v1 //"},
		{"GET", "/api/v1/services/", "list services.v1 //"},
		{"HEAD", "/api/v1/services", "head services.v1 //"},
		{"GET", "/api/v1/namespaces/ns/services/s", "get services.v1 ns/s/"},
		{"GET", "/api/v1/namespaces/ns/services/s/proxy/a/b", "get services.v1 ns/s/proxy/a/b"},
		{
			"GET", "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices",
			"list endpointslices.v1.discovery.k8s.io ns//",
		},
		{"GET", "/api/v1/watch/namespaces/ns/endpoints/e", "watch endpoints.v1 ns/e/"},
		{"GET", "/api/v1/namespaces/ns", "get namespaces.v1 /ns/"},
		{"GET", "/api/v1/namespaces/ns/status", "get namespaces.v1 /ns/status"},
		{"POST", "/apis/events.k8s.io/v1/namespaces/ns/events", "create events.v1.events.k8s.io ns//"},
		{"PATCH", "/api/v1/namespaces/ns/events/e", "patch events.v1 ns/e/"},
		{"PUT", "/api/v1/nodes/n/status", "update nodes.v1 /n/status"},
		{"DELETE", "/api/v1/namespaces/ns/events", "deletecollection events.v1 ns//"},
		{"DELETE", "/api/v1/namespaces/ns/events/e", "delete events.v1 ns/e/"},
		{"GET", "/api", "get"},
		{"GET", "/api/v1", "get"},
		{"GET", "/apis/discovery.k8s.io/v1", "get"},
		{"GET", "/version", "get"},
		{"GET", "/", "get"},
	} {
		info := ParseRequest(&http.Request{Method: test.method, URL: &url.URL{Path: test.path}})
		got := info.Verb
		if info.IsResource {
			kind := strings.TrimSuffix(info.Resource+"."+info.Version+"."+info.Group, ".")
			got = fmt.Sprintf("%s %s %s/%s/%s", info.Verb, kind, info.Namespace, info.Name, info.Subresource)
		}
		if got != test.want {
			t.Errorf("%s %s: got %s, want %s", test.method, test.path, got, test.want)
		}
	}
}

// isAPIError reports whether the error is one that a bad request may get.
func isAPIError(err error) bool {
	return apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) || apierrors.IsNotAcceptable(err) ||
		apierrors.IsResourceExpired(err)
}

func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		"/api/v1/services", "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/x", "/api/v1/watch/nodes/n",
		"/api/v1/watch", "//", "/api//v1//x", "/apis/a/b/namespaces/c/status",
	} {
		f.Add("GET", seed)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		info := ParseRequest(&http.Request{Method: method, URL: &url.URL{Path: path}})
		if info.IsResource && info.Verb == "" && method != "" {
			t.Errorf("%q %q: no verb", method, path)
		}
		if !info.IsResource && (info.Name != "" || info.Resource != "") {
			t.Errorf("%q %q: not a resource, but %+v", method, path, info)
		}
		if info.Subresource != "" && info.Name == "" && !strings.Contains(path, "//") {
			t.Errorf("%q %q: a subresource of nothing: %+v", method, path, info)
		}
	})
}

func FuzzParseOptions(f *testing.F) {
	for _, seed := range []string{
		"watch=maybe", "limit=1&continue=e30", "resourceVersion=1&resourceVersionMatch=Exact",
		"labelSelector=a+in+(b,c),!d&fieldSelector=metadata.name!=x",
		"allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=406" +
			"&watch=true",
		"timeoutSeconds=18446744073709551616",
	} {
		f.Add(seed, "", false)
	}
	f.Fuzz(func(t *testing.T, rawQuery, name string, named bool) {
		query, _ := url.ParseQuery(rawQuery)
		info := RequestInfo{Verb: "list"}
		if named {
			info = RequestInfo{Verb: "watch", Name: name}
		}
		for _, resource := range served.All() {
			o, err := ParseOptions(query, resource, info)
			switch {
			case err != nil && !isAPIError(err):
				t.Fatalf("%q: not an API error: %v", rawQuery, err)
			case err != nil:
				continue
			}
			if o.Timeout < 0 || o.Timeout > 24*time.Hour {
				t.Fatalf("%q: got timeout %s", rawQuery, o.Timeout)
			}
			if o.SendInitialEvents && o.SkipInitialEvents {
				t.Fatalf("%q: got %+v", rawQuery, o)
			}
		}
	})
}
