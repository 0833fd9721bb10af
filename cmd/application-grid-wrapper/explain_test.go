package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/flags"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

func TestExplainPrints(t *testing.T) {
	var asked string
	answer := view.Explanation{
		Namespace: "shop", Service: "db", Node: "node0", TopologyKeys: []string{"zone", "*"}, Unit: map[string]string{"zone": "a"}, DecidingKey: "zone",
		Kept: 1, Hidden: 1, Notes: []string{"mind the gap"},
		Endpoints: []view.ExplainedEndpoint{
			{Addresses: []string{"10.0.0.2"}, Reason: "too far"},
			{Addresses: []string{"10.0.0.1"}, Target: "Pod/db-0", Node: "node1", Ready: true, Kept: true, Reason: "near"},
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.String()
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	var stdout, stderr bytes.Buffer
	if code := runExplain([]string{"shop/db", "--server=" + server.URL + "/", "--as-node=node 1"}, &stdout, &stderr); code != 0 {
		t.Fatalf("%d: %s", code, stderr.String())
	}
	if asked != "/debug/explain/shop/db?node=node+1" {
		t.Errorf("asked %s", asked)
	}
	want := `Service:         shop/db
Seen from node:  node0
topologyKeys:    zone, *
Its unit:        zone=a
Deciding key:    zone
Endpoints:       1 kept, 1 hidden
Note:            mind the gap

ADDRESS   TARGET    NODE    READY  VIEW    REASON
10.0.0.1  Pod/db-0  node1   true   kept    near
10.0.0.2  <none>    <none>  false  hidden  too far
`
	if stdout.String() != want {
		t.Errorf("got\n%s", stdout.String())
	}
	answer.Annotation = "openyurt.io/topologyKeys"
	stdout.Reset()
	if code := runExplain([]string{"shop/db", "--server=" + server.URL}, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "zone, * (annotation openyurt.io/topologyKeys)\n") {
		t.Errorf("%d: %s", code, stdout.String())
	}
	stdout.Reset()
	var parsed view.Explanation
	if code := runExplain([]string{"shop/db", "--server=" + server.URL, "-o", "json"}, &stdout, &stderr); code != 0 || json.Unmarshal(stdout.Bytes(), &parsed) != nil || parsed.Kept != 1 {
		t.Errorf("%d: %s", code, stdout.String())
	}
}

func TestExplainFails(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "html") {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","message":"services \"shop/db\" not found"}`))
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
		var stdout, stderr bytes.Buffer
		if code := runExplain(test.args, &stdout, &stderr); code != test.code || !strings.Contains(stderr.String(), test.says) || stdout.Len() > 0 {
			t.Errorf("%v: %d, %q, %q", test.args, code, stdout.String(), stderr.String())
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"explain", "--help"}); code != 0 {
		t.Errorf("--help: %d", code)
	}
	if code := runExplain([]string{"-h"}, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "--as-node") {
		t.Errorf("-h: %d %s", code, stdout.String())
	}
}
