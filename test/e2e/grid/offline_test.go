package grid

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// misled takes the place of the controller of all tests for the time of one: its way to kube-apiserver leads through
// the Interposer. Of two replicas it would not be known which one works, so that one ends.
func (f *fixture) misled(args ...string) (*cluster.Controller, *cluster.Interposer) {
	f.Helper()
	interposer, err := f.Cluster.Interpose(f.ctx)
	f.Must(err)
	misled, err := f.Cluster.NewController(f.ctx, "misled", program,
		slices.Concat(arguments(), shortLease, []string{"--master=" + interposer.URL()}, args)...)
	f.Must(err)
	f.Must(f.controller.Stop())
	f.Cleanup(func() {
		misled.Kill()
		if err := interposer.Close(); err != nil {
			f.Error(err)
		}
		if f.controller.PID() == 0 {
			if err := f.controller.Start(context.Background()); err != nil { // the test's context is done
				f.Error(err)
			}
		}
	})
	return misled, interposer
}

// noWrites returns an error if since the mark any controller has written to what is in the test's namespace, but for
// the grids that led makes. A controller that starts applies one child of each template, which changes nothing.
func (f *fixture) noWrites(mark int64) error {
	f.Helper()
	writes := f.requests(mark, func(a cluster.Request) bool {
		return a.IsWrite() && a.ObjectRef.Namespace == f.namespace && !strings.HasPrefix(a.ObjectRef.Name, probe) &&
			!f.changedNothing(a)
	})
	if len(writes) > 0 {
		return fmt.Errorf("%d writes: %v", len(writes), writes)
	}
	return nil
}

// changedNothing reports whether a request was an apply that changed nothing: then the API server has kept the time in
// managedFields.
func (f *fixture) changedNothing(a cluster.Request) bool {
	kinds := map[string]string{
		"deployments": "Deployment", "daemonsets": "DaemonSet", "statefulsets": "StatefulSet", "services": "Service",
	}
	kind, known := kinds[a.ObjectRef.Resource]
	if a.Verb != "patch" || !known || !strings.Contains(a.RequestURI, "force=true") {
		return false
	}
	for _, entry := range f.get(kind, a.ObjectRef.Name).GetManagedFields() {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" &&
			!entry.Time.Time.Before(a.RequestReceivedTimestamp.Truncate(time.Second)) {
			return false
		}
	}
	return true
}

// gridsOfEveryKind makes three grids in two sites.
func (f *fixture) gridsOfEveryKind() {
	f.Helper()
	f.nodesIn("east", "west")
	f.apply(deploymentGrid("demo"))
	f.apply(`{apiVersion: superedge.io/v1, kind: DaemonSetGrid, metadata: {name: agent}, spec: {gridUniqKey: KEY, template: {` + selector + `, template: ` + podTemplate + `}}}`)
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 80}]}}}`)
	f.expectReady("DeploymentGrid", "demo", 2)
	f.expectReady("DaemonSetGrid", "agent", 2)
	f.awaitRest(time.Second)
}

// awaitRest waits until no controller has written to what is in the test's namespace for so long.
func (f *fixture) awaitRest(d time.Duration) {
	f.Helper()
	f.Eventually(fmt.Sprintf("nothing more is written for %s", d), func() error {
		mark := f.auditMark()
		time.Sleep(d)
		return f.noWrites(mark)
	})
}

// TestUpstreamMisbehaves: for a while the API server, or what is before it, answers with errors, nonsense, halves or
// nothing. No site vanishes by that, nothing is deleted, and when it behaves nothing is written, because nothing has
// changed.
func TestUpstreamMisbehaves(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.gridsOfEveryKind()
	misled, interposer := f.misled("--leader-elect=false")
	mark := f.auditMark()
	f.Must(misled.Start(f.ctx))
	f.led()
	// A request of its first pass that is refused would be told in a status.
	f.Eventually("the controller asks nothing for a second", func() error {
		before := interposer.Served()
		time.Sleep(time.Second)
		if n := interposer.Served() - before; n > 0 {
			return fmt.Errorf("%d requests", n)
		}
		return nil
	})
	pid, served := misled.PID(), interposer.Served()
	for _, behaviour := range []cluster.Behaviour{
		cluster.AnswerStatus(http.StatusInternalServerError, "InternalError", 0),
		cluster.AnswerStatus(http.StatusForbidden, "Forbidden", 0),
		cluster.AnswerStatus(http.StatusNotFound, "NotFound", 0),
		cluster.AnswerStatus(http.StatusGone, "Expired", 0),
		cluster.AnswerStatus(http.StatusTooManyRequests, "TooManyRequests", time.Second),
		{Answer: func(http.ResponseWriter, *http.Request) {}}, // an empty body
		cluster.AnswerGarbage(),
		cluster.Truncate(),
		cluster.Hang(),
		cluster.Silence(),
	} {
		before := interposer.Served()
		interposer.Behave(behaviour)
		if behaviour.Freezes { // what is under way; little that is new may come
			time.Sleep(time.Second)
			continue
		}
		f.Eventually("it is met", func() error {
			if n := interposer.Served() - before; n < 3 {
				return fmt.Errorf("%d requests", n)
			}
			return nil
		})
	}
	asked := interposer.Served() - served
	interposer.Behave(cluster.Behaviour{})
	begin := time.Now()
	f.led()
	f.Logf("%d requests were answered wrongly; back to work %s after the end", asked, time.Since(begin))
	time.Sleep(time.Second)
	f.Must(f.noWrites(mark))
	if misled.PID() != pid {
		f.Error("the controller has ended")
	}
	// And it goes on as before.
	f.patch("DeploymentGrid", "demo", `spec: {template: {minReadySeconds: 1}}`)
	f.Eventually("a change reaches the children", suite.Is(1, func() int64 {
		seconds, _, _ := unstructured.NestedInt64(f.get("Deployment", "demo-east").Object, "spec", "minReadySeconds")
		return seconds
	}))
}

// TestLeaseLost: a leader that cannot reach the API server ends, and says why with an exit code that makes its
// supervisor start it again; another one goes on, and finds nothing to do. Started again, it waits.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.gridsOfEveryKind()
	misled, interposer := f.misled()
	var output bytes.Buffer
	leader := exec.Command(program, misled.Args()...)
	leader.Stderr = &output
	f.Must(leader.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = leader.Wait() // its state tells
	}()
	f.Cleanup(func() {
		_ = leader.Process.Kill()
		<-ended
	})
	mark := f.auditMark()
	f.led()
	f.Must(f.controller.Start(f.ctx)) // the one in reserve
	interposer.Behave(cluster.Hang())
	begin := time.Now()
	select {
	case <-ended:
	case <-time.After(deadline):
		f.Fatal("the leader goes on without a Lease")
	}
	f.Logf("the leader has ended %s after it lost the API server", time.Since(begin))
	if code := leader.ProcessState.ExitCode(); code != 1 ||
		!strings.Contains(output.String(), "application-grid-controller: leader election lost") {
		f.Errorf("exit code %d, and it says\n%s", code, output.String())
	}
	f.led()
	f.Logf("the other one works after %s", time.Since(begin))
	f.Must(misled.Launch())
	time.Sleep(time.Second)
	interposer.Behave(cluster.Behaviour{})
	f.Must(misled.WaitReady(f.ctx))
	f.Must(f.noWrites(mark))
}

// withoutNodes lets a controller believe that there are no nodes: a server with an empty cache.
func withoutNodes() cluster.Behaviour {
	const (
		metadata = `"kind":"PartialObjectMetadata%s","apiVersion":"meta.k8s.io/v1"`
		node     = `"kind":"Node%s","apiVersion":"v1"`
		expired  = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}`
	)
	return cluster.Behaviour{Alter: func(response *http.Response) {
		if response.Request.URL.Path != "/api/v1/nodes" {
			return
		}
		kind := node // the watch; what is asked before a removal is metadata only
		if strings.Contains(response.Request.Header.Get("Accept"), "as=PartialObjectMetadata") {
			kind = metadata
		}
		list := `{` + fmt.Sprintf(kind, "List") + `,"metadata":{"resourceVersion":"1"},"items":[]}`
		bookmark := `{"type":"BOOKMARK","object":{` + fmt.Sprintf(kind, "") +
			`,"metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
		body, code := io.Reader(strings.NewReader(list)), http.StatusOK
		query := response.Request.URL.Query()
		switch {
		case query.Get("watch") != "true":
		case query.Get("sendInitialEvents") == "true":
			body = io.MultiReader(strings.NewReader(bookmark), &swallowed{response.Body})
		default:
			body, code = strings.NewReader(expired), http.StatusGone
		}
		response.StatusCode, response.ContentLength = code, -1
		response.Header.Del("Content-Length")
		response.Header.Del("Content-Encoding")
		response.Header.Set("Content-Type", "application/json")
		response.Body = struct {
			io.Reader
			io.Closer
		}{body, response.Body}
	}}
}

// swallowed is a stream of which nothing but the end comes through.
type swallowed struct{ from io.Reader }

// Read implements io.Reader.
func (s *swallowed) Read([]byte) (int, error) {
	if _, err := io.Copy(io.Discard, s.from); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// TestServerThatLostTheNodes: a server with an empty cache says that there are no nodes, for longer than the grace
// time. Nothing is deleted, and when the nodes are back all of it is forgotten.
func TestServerThatLostTheNodes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.gridsOfEveryKind()
	// One grid lets all of its sites go at once, the other one waits for an approval.
	f.patch("DeploymentGrid", "demo", `spec: {removal: {maxSites: 100%}}`)
	misled, interposer := f.misled("--leader-elect=false")
	f.Must(misled.Start(f.ctx))
	f.led()
	children := f.names("Deployment") + " " + f.names("DaemonSet")
	mark := f.auditMark()
	interposer.Behave(withoutNodes())
	f.expectCondition("DeploymentGrid", "demo", "Progressing=True", "SitesProgressing",
		"no node is in east, west")
	f.stays("nothing is deleted, not even after the grace time", grace+time.Second,
		suite.Is(children, func() string { return f.names("Deployment") + " " + f.names("DaemonSet") }))
	f.Eventually("the state of site east says why", says("has no nodes at all", func() string {
		state, _, _ := unstructured.NestedString(f.get("DeploymentGrid", "demo").Object, "status", "states", "east", "message")
		return state
	}))
	interposer.Behave(cluster.Behaviour{})
	f.expectReady("DeploymentGrid", "demo", 2)
	f.expectReady("DaemonSetGrid", "agent", 2)
	f.expectEvent("DeploymentGrid", "demo", "SiteReturned", "east, west")
	writes := f.requests(mark, func(a cluster.Request) bool {
		return a.IsWrite() && a.ObjectRef.Namespace == f.namespace && a.ObjectRef.Subresource != "status" &&
			!strings.HasPrefix(a.ObjectRef.Name, probe) && !f.changedNothing(a)
	})
	if len(writes) > 0 {
		f.Errorf("something was written besides statuses: %v", writes)
	}
}
