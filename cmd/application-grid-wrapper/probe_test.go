package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/flags"
	"github.com/application-grid/application-grid/pkg/probe"
)

// TestProbe: a result goes to stdout or to a file, and a wrong command line has a code of its own. What the kernel is asked
// for takes a capability: test/e2e/install asks it.
func TestProbe(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "echo-n0") }))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "result")
	for _, args := range [][]string{{"--answers", server.URL, "--requests=3"}, {"--answers", server.URL, "--requests=3", "--output=" + file}} {
		var stdout, stderr bytes.Buffer
		if code := runProbe(args, &stdout, &stderr); code != 0 {
			t.Errorf("%q: %d, %s", args, code, stderr.String())
		}
		data := stdout.Bytes()
		if len(args) == 4 {
			var err error
			if data, err = os.ReadFile(file); err != nil || stdout.Len() != 0 {
				t.Errorf("%v, %s", err, stdout.String())
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
		var stdout, stderr bytes.Buffer
		if code := runProbe(strings.Fields(line), &stdout, &stderr); code != flags.ExitUsage || !strings.Contains(stderr.String(), says) {
			t.Errorf("%s: %d, %s", line, code, stderr.String())
		}
	}
	var stdout bytes.Buffer
	if code := runProbe([]string{"--help"}, &stdout, &stdout); code != 0 || !strings.Contains(stdout.String(), "--requests") {
		t.Errorf("%d, %s", code, stdout.String())
	}
}
