package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Request is a request in kube-apiserver's audit log.
type Request struct {
	Verb, UserAgent, RequestURI string
	User                        struct{ Username string }
	ObjectRef                   struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus              struct{ Code int }
	SourceIPs                   []string
	RequestReceivedTimestamp    time.Time
}

// String is the request as a line of a report.
func (r Request) String() string {
	return fmt.Sprintf("%s %s %d", r.Verb, r.RequestURI, r.ResponseStatus.Code)
}

// IsWrite tells whether the request changes something, other than Leases and events.
func (r Request) IsWrite() bool {
	switch r.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return r.ObjectRef.Resource != "leases" && r.ObjectRef.Resource != "events"
	}
	return false
}

// AuditMark is the place in the audit log where the next request will stand.
func (c *Cluster) AuditMark() (int64, error) {
	info, err := os.Stat(c.AuditLogFile())
	if err != nil {
		return 0, fmt.Errorf("looking for the audit log: %w", err)
	}
	return info.Size(), nil
}

// Audited returns the requests since the mark that are kept. Options.AuditLog must be set.
func (c *Cluster) Audited(since int64, keep func(Request) bool) ([]Request, error) {
	return AuditedIn(c.AuditLogFile(), since, keep)
}

// AuditedIn is Audited for the log of another API server.
func AuditedIn(file string, since int64, keep func(Request) bool) ([]Request, error) {
	log, err := os.Open(file) //nolint:gosec // a log of the cluster
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer log.Close()
	if _, err := log.Seek(since, io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	var requests []Request
	reader := bufio.NewReader(log)
	for {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return requests, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		var request Request
		if json.Unmarshal(line, &request) == nil && keep(request) { // a line that is being written is no request yet
			requests = append(requests, request)
		}
	}
}
