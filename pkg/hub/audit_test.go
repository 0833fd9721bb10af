package hub

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

// TestAFloodOfRefusedRequestsIsBounded: credentials of one node that ask for the shares of others again and again get
// one answer and are in the audit log, which takes no more of the disk than its flags say.
func TestAFloodOfRefusedRequestsIsBounded(t *testing.T) {
	t.Parallel()
	const (
		requests  = 2500
		megabytes = 1 // the least that the flag can say
		// A request that is refused is an event of about this size.
		long = 1 << 10
	)
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	audit := genericoptions.NewAuditOptions()
	audit.PolicyFile = policy
	audit.LogOptions.Path = filepath.Join(dir, "log", "audit.log")
	audit.LogOptions.MaxSize, audit.LogOptions.MaxBackups = megabytes, 1
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := startHubWith(t, true, func(config *genericapiserver.Config) error { return audit.ApplyTo(config) })
	path := hubv1alpha1.SharePath("b1") + "/api/v1/services?x=" + strings.Repeat("x", long)
	for range requests {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Test-User", "system:serviceaccount:edge:wrapper")
		r.Header.Set("Test-Node", "a1")
		w := httptest.NewRecorder()
		if h.hub.api.Handler.ServeHTTP(w, r); w.Code != http.StatusForbidden {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
	var total, files, events int
	err := filepath.WalkDir(filepath.Join(dir, "log"), func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files++
		total += len(content)
		events += bytes.Count(content, []byte(`"code":403`))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d refused requests: %d kB in %d files, with %d events", requests, total/1000, files, events)
	// One backup, beside the file that is written.
	if most := 2 * megabytes << 20; total > most {
		t.Errorf("%d bytes of audit log, more than %d", total, most)
	}
	if events == 0 || total < megabytes<<20 {
		t.Error("the flood is not in the audit log")
	}
}
