package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// TestProbe: a result goes to stdout or to a file, and a wrong command line has a code of its own. What the kernel is
// asked for takes a capability: test/e2e/install asks it.
func TestProbe(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, "echo-n0")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "result")
	for _, args := range [][]string{{"--answers", server.URL, "--requests=3"},
		{"--answers", server.URL, "--requests=3", "--output=" + file}} {
		o := call(t, append([]string{"probe"}, args...)...)
		if o.code != 0 {
			t.Errorf("%q: got %+v", args, o)
		}
		data := []byte(o.stdout)
		if len(args) == 4 {
			var err error
			if data, err = os.ReadFile(file); err != nil || o.stdout != "" {
				t.Errorf("%v, %s", err, o.stdout)
			}
		}
		var result probe.Result
		if err := json.Unmarshal(data, &result); err != nil || result.Answers["echo-n0"] != 3 {
			t.Errorf("%q: got %s, %v", args, data, err)
		}
	}
	for line, says := range map[string]string{
		"":                            "give one ADDRESS:PORT",
		"10.96.0.1:80 10.96.0.2:80":   "got 2 arguments",
		"echo:80":                     "is no address and port",
		"10.96.0.1:80 --requests=0":   "ask once at least",
		"10.96.0.1:80 --timeout=-1s":  "more than 0",
		"--answers 10.96.0.1:80":      "is no URL",
		"--answers https://10.96.0.1": "is no URL",
		"10.96.0.1:80 --no-such-flag": "--no-such-flag",
	} {
		o := call(t, append([]string{"probe"}, strings.Fields(line)...)...)
		if o.code != flags.ExitUsage || !strings.HasPrefix(o.stderr, "application-grid-wrapper probe: ") ||
			!strings.Contains(o.stderr, says) {
			t.Errorf("%s: got %+v", line, o)
		}
	}
	if o := call(t, "probe", "--help"); o.code != 0 || !strings.Contains(o.stdout, "--requests") {
		t.Errorf("got %+v", o)
	}
}
