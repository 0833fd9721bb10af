package main

import (
	"encoding/json"
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
	file := filepath.Join(t.TempDir(), "result")
	for _, args := range [][]string{
		{"127.0.0.1:1", "--requests=3"}, {"127.0.0.1:1", "--requests=3", "--output=" + file},
	} {
		o := call(t, append([]string{"probe"}, args...)...)
		data := []byte(o.stdout)
		if len(args) == 3 {
			var err error
			if data, err = os.ReadFile(file); err != nil || o.stdout != "" {
				t.Errorf("%v, %s", err, o.stdout)
			}
		}
		var result probe.Result // without the capability it has an error, and so has the command
		if err := json.Unmarshal(data, &result); err != nil || (result.Error == "") != (o.code == 0) ||
			(result.Nobody == 3) != (o.code == 0) {
			t.Errorf("%q: got %s, %+v, %v", args, data, o, err)
		}
	}
	for line, says := range map[string]string{
		"":                            "give one ADDRESS:PORT",
		"10.96.0.1:80 10.96.0.2:80":   "got 2 arguments",
		"echo:80":                     "is not an address and port",
		"10.96.0.1:80 --requests=0":   "ask once at least",
		"10.96.0.1:80 --timeout=-1s":  "more than 0",
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
