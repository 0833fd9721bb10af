package main

import (
	"bytes"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/internal/testkit/tlstest"
)

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) { docstest.CompareFlags(t, program, newOptions().flags) }

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) { docstest.CompareManual(t, program, newOptions().program().Command()) }

// TestMistakes are named, with what to change.
func TestMistakes(t *testing.T) {
	short := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(short, []byte("c2hvcnQ="), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"":                                   "--seal-key-file, or --unsealed",
		"--unsealed --seal-key-file=x":       "exclude each other",
		"--seal-key-file=/nowhere/x":         "--seal-key-file: open /nowhere/x",
		"--seal-key-file=" + short:           "32 bytes in base64",
		"--unsealed --port=0":                "--port 0",
		"--unsealed --file-cache-path=x":     "not an absolute path",
		"--unsealed --health-bind-address=x": "--health-bind-address",
		"--unsealed --kubeconfig=/nowhere/x": "--kubeconfig /nowhere/x",
		"--unsealed --max-offline-age=30s":   "at least 2m0s",
		"explain x":                          "unexpected argument",
		"explain -o yaml":                    "neither table nor json",
		"explain --kubeconfig=/nowhere/x":    "--kubeconfig /nowhere/x",
		"--unsealed --no-such-flag":          "unknown flag",
		"--unsealed --bind-address=10.0.0.1": "give all three",
		"--unsealed --tls-cert-file=x":       "give all three",
		"--unsealed --bind-address=0.0.0.0 --tls-cert-file=x --tls-private-key-file=x":   "--bind-address \"0.0.0.0\"",
		"--unsealed --bind-address=127.0.0.1 --tls-cert-file=x --tls-private-key-file=x": "\"127.0.0.1\" is not",
		"--unsealed --bind-address=node0 --tls-cert-file=x --tls-private-key-file=x":     "--bind-address \"node0\"",
		"--unsealed --allow-service-accounts=flannel":                                    "\"flannel\" is not",
		"--unsealed --allow-service-accounts=a/b,a/b/c":                                  "\"a/b/c\" is not",
		"--unsealed --allow-service-accounts=/b":                                         "\"/b\" is not",
		"--unsealed --file-cache-path=/tmp x":                                            "unexpected argument",
		"--unsealed --port=51003 --port=70000":                                           "--port 70000",
	} {
		var stderr bytes.Buffer
		code := newOptions().program().Main(strings.Fields(line), &stderr, &stderr)
		if code == 0 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%q: exit code %d, and %s", line, code, stderr.String())
		}
	}
}

// TestExplainExpired: with a certificate that has expired there is no answer, and explain says why.
func TestExplainExpired(t *testing.T) {
	certificate := filepath.Join(t.TempDir(), "client.pem")
	node0 := pkix.Name{CommonName: "system:node:node0", Organization: []string{"system:nodes"}}
	kubeconfig := filepath.Join(t.TempDir(), "kubelet.conf")
	for path, content := range map[string][]byte{
		certificate: tlstest.NewAuthority(t).IssueClient(t, node0, time.Now().Add(-time.Minute)),
		kubeconfig: fmt.Appendf(nil, "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "+
			"clusters: [{name: c, cluster: {server: https://127.0.0.1:1}}], "+
			"users: [{name: u, user: {client-certificate: %[1]s, client-key: %[1]s}}]}", certificate),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	code := newOptions().program().Main([]string{"explain", "--kubeconfig=" + kubeconfig}, &stderr, &stderr)
	if code != 1 || !strings.Contains(stderr.String(), "the kubelet's certificate has expired at") {
		t.Errorf("exit code %d, and %s", code, stderr.String())
	}
}
