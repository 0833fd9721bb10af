package hub

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/application-grid/application-grid/internal/testkit/await"
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
	audit := auditEverything(t)
	audit.LogOptions.MaxSize, audit.LogOptions.MaxBackups = megabytes, 1
	h := startHubWith(t, true, func(config *genericapiserver.Config) error { return audit.ApplyTo(config) })
	path := hubv1alpha1.SharesPath + "/b1?x=" + strings.Repeat("x", long)
	for range requests {
		w := h.record(path, "Test-User=system:serviceaccount:edge:wrapper", "Test-Node=a1")
		if w.Code != http.StatusForbidden {
			t.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
	// One backup, next to the file that is written. Older ones are removed in the background.
	const most = 2 * megabytes << 20
	await.Patience{Within: time.Minute, Between: 10 * time.Millisecond}.Until(t, "old files are removed", func() error {
		total, files, events, err := auditLog(filepath.Dir(audit.LogOptions.Path))
		switch {
		case err != nil:
			return err
		case total > most:
			return fmt.Errorf("%d bytes in %d files, more than %d", total, files, most)
		case events == 0 || total < megabytes<<20:
			t.Errorf("the flood is not in the audit log: %d bytes, %d events", total, events)
		}
		t.Logf("%d refused requests: %d kB in %d files, with %d events", requests, total/1000, files, events)
		return nil
	})
}

// auditEverything has every request audited, to a file in a directory of its own.
func auditEverything(t *testing.T) *genericoptions.AuditOptions {
	t.Helper()
	audit := genericoptions.NewAuditOptions()
	audit.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	audit.LogOptions.Path = filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(audit.PolicyFile,
		[]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return audit
}

// auditLog returns how many bytes and files the audit log has, and how many refused requests are in it.
func auditLog(directory string) (total, files, events int, err error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return 0, 0, 0, err
	}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(directory, entry.Name()))
		if err != nil {
			return 0, 0, 0, err // such as one that is removed at this moment
		}
		files++
		total += len(content)
		events += bytes.Count(content, []byte(`"code":403`))
	}
	return total, files, events, nil
}
