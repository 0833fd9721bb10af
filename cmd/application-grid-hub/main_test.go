package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	var usage bytes.Buffer
	if code := newOptions().program().Main([]string{"--help"}, &usage, io.Discard); code != 0 {
		t.Errorf("--help ends with code %d", code)
	}
	for _, want := range []string{
		"Usage:\n  application-grid-hub [flags]", "--kubeconfig", "--secure-port int", "--authentication-kubeconfig",
		"--authorization-kubeconfig", "--audit-policy-file", "--vmodule",
	} {
		if !strings.Contains(usage.String(), want) {
			t.Errorf("--help does not say %q: %s", want, usage.String())
		}
	}
}

// TestBadCommandLine: a sentence that names the flag, and nothing is started.
func TestBadCommandLine(t *testing.T) {
	good := filepath.Join(t.TempDir(), "kubeconfig")
	const content = "{apiVersion: v1, kind: Config, current-context: x, " +
		"contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: http://127.0.0.1:1}}]}"
	if err := os.WriteFile(good, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for args, says := range map[string]string{
		"":                                       "--kubeconfig",
		"--kubeconfig=/absent":                   "/absent",
		"--kubeconfig=GOOD --kube-qps=0":         "--kube-qps",
		"--kubeconfig=GOOD --secure-port=700000": "--secure-port",
		"--kubeconfig=GOOD --metrics-bind-address=x":                                    "--metrics-bind-address",
		"--kubeconfig=GOOD --service=hub":                                               "--service",
		"--kubeconfig=GOOD --tls-secret=a/b/c":                                          "--tls-secret",
		"--kubeconfig=GOOD --tls-secret=a/b --tls-cert-file=c --tls-private-key-file=d": "--tls-cert-file",
	} {
		o := newOptions()
		if err := o.program().Command().ParseFlags(strings.Fields(strings.ReplaceAll(args, "GOOD", good))); err != nil {
			t.Fatal(err)
		}
		if _, err := o.config(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", args, err)
		}
	}
	if code := newOptions().program().Main([]string{"--no-such-flag"}, io.Discard,
		io.Discard); code != flags.ExitUsage {
		t.Errorf("got code %d", code)
	}
}
