package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

func TestExplainPrints(t *testing.T) {
	var asked string
	answer := view.Explanation{
		Namespace: "shop", Service: "db", Node: "node0", TopologyKeys: []string{"zone", "*"},
		Site: map[string]string{"zone": "a"}, DecidingKey: "zone",
		Kept: 1, Hidden: 1, Notes: []string{"mind the gap"},
		Endpoints: []view.ExplainedEndpoint{
			{Addresses: []string{"10.0.0.2"}, Reason: "too far"},
			{
				Addresses: []string{"10.0.0.1"}, Target: "Pod/db-0", Node: "node1", Ready: true, Kept: true,
				Reason: "near",
			},
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	o := call(t, "explain", "shop/db", "--server="+server.URL+"/", "--as-node=node 1")
	if o.code != 0 {
		t.Fatalf("%d: %s", o.code, o.stderr)
	}
	if asked != "/debug/explain/shop/db?node=node+1" {
		t.Errorf("asked %s", asked)
	}
	want := `Service:         shop/db
Seen from node:  node0
topologyKeys:    zone, *
Its site:        zone=a
Deciding key:    zone
Endpoints:       1 kept, 1 hidden
Note:            mind the gap

ADDRESS   TARGET    NODE    READY  VIEW    REASON
10.0.0.1  Pod/db-0  node1   true   kept    near
10.0.0.2  <none>    <none>  false  hidden  too far
`
	if o.stdout != want {
		t.Errorf("got\n%s", o.stdout)
	}
	answer.Annotation = "openyurt.io/topologyKeys"
	o = call(t, "explain", "shop/db", "--server="+server.URL)
	if o.code != 0 || !strings.Contains(o.stdout, "zone, * (annotation openyurt.io/topologyKeys)\n") {
		t.Errorf("got %+v", o)
	}
	var parsed view.Explanation
	o = call(t, "explain", "shop/db", "--server="+server.URL, "-o", "json")
	if o.code != 0 || json.Unmarshal([]byte(o.stdout), &parsed) != nil || parsed.Kept != 1 {
		t.Errorf("got %+v", o)
	}
}

func TestExplainFails(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "html") {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure",` +
			`"message":"services \"shop/db\" not found"}`))
	}))
	defer server.Close()
	at := "--server=" + server.URL
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{nil, flags.ExitUsage, "NAMESPACE/SERVICE"},
		{[]string{"db"}, flags.ExitUsage, `"db" is not NAMESPACE/SERVICE`},
		{[]string{"a/b", "c/d"}, flags.ExitUsage, "one argument"},
		{[]string{"a/b/c"}, flags.ExitUsage, "a/b/c"},
		{[]string{"a/b", "-o", "yaml"}, flags.ExitUsage, "yaml"},
		{[]string{"a/b", "--server=localhost:51006"}, flags.ExitUsage, "--server"},
		{[]string{"a/b", "--cert-file=x"}, flags.ExitUsage, "--key-file"},
		{[]string{"a/b", "--no-such"}, flags.ExitUsage, "--no-such"},
		{[]string{"shop/db", at}, flags.ExitFailure, `services "shop/db" not found`},
		{[]string{"shop/html", at}, flags.ExitFailure, "like a wrapper"},
		{[]string{"shop/db", "--server=http://127.0.0.1:1"}, flags.ExitFailure, "does it run"},
		{[]string{"shop/db", at, "--ca-file=/absent"}, flags.ExitFailure, "--ca-file"},
		{[]string{"shop/db", at, "--cert-file=/absent", "--key-file=/absent"}, flags.ExitFailure, "--cert-file"},
	} {
		o := call(t, append([]string{"explain"}, test.args...)...)
		if o.code != test.code || !strings.HasPrefix(o.stderr, "application-grid-wrapper explain: ") ||
			!strings.Contains(o.stderr, test.says) || o.stdout != "" {
			t.Errorf("%v: got %+v", test.args, o)
		}
		if hint := "Run application-grid-wrapper explain --help for all flags.\n"; strings.HasSuffix(o.stderr,
			hint) != (test.code == flags.ExitUsage) {
			t.Errorf("%v: got %s", test.args, o.stderr)
		}
	}
	for _, help := range []string{"--help", "-h"} {
		o := call(t, "explain", help)
		if o.code != 0 || !strings.Contains(o.stdout, "--as-node") || !strings.Contains(o.stdout,
			"explain NAMESPACE/SERVICE [flags]\n") || o.stderr != "" {
			t.Errorf("%s: got %+v", help, o)
		}
	}
}
