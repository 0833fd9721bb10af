package faults

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// deadline is how long anything may take that nothing stands in the way of, on a busy machine.
	deadline = 60 * time.Second
	// between is the pause between two looks.
	between = 20 * time.Millisecond
	// pause is that of the traffic after every request.
	pause = 5 * time.Millisecond
	// tries is how many requests make out whom a Service reaches. With two endpoints both are seen with a
	// probability of 99.99 %; if not, the poll asks again.
	tries = 14
)

// site is a node that a fault befalls, with a Service of its own in the cloud and a client that watches.
type site struct {
	suite.Test
	fault  fault
	ctx    context.Context
	node   *cluster.Node
	canary *corev1.Service
	result result

	traffic   *workload.Traffic
	endStream func()
	observer  *observer
}

// sites numbers them.
var sites atomic.Int64

func newSite(t *testing.T, f fault) *site {
	t.Helper()
	s := &site{Test: suite.NewTest(t, shared, deadline, between), fault: f, ctx: t.Context(),
		result: result{test: t.Name(), fault: f.name, converged: -1}}
	number := sites.Add(1)
	spec := f.node
	spec.Name = fmt.Sprintf("site%d", number)
	spec.Labels = map[string]string{siteLabel: siteA}
	// All four combinations in turn.
	if spec.ProxyMode = cluster.NFTables; number%2 == 0 {
		spec.ProxyMode = cluster.IPTables
	}
	if spec.Protocol = cluster.WatchList; number/2%2 == 0 {
		spec.Protocol = cluster.ListThenWatch
	}
	var err error
	s.canary, err = createService(s.ctx, "canary-"+spec.Name)
	s.Must(err)
	t.Cleanup(func() { deleteService(s.canary.Name) })
	s.node = s.AddNode(spec)
	t.Logf("%s: %s, %s", spec.Name, spec.ProxyMode, spec.Protocol)
	s.Eventually("the node reaches both Services", func() error {
		for _, service := range []*corev1.Service{echo, s.canary} {
			if got := s.reach(service); got != near1+" "+near2 {
				return fmt.Errorf("of %s it reaches %s", service.Name, got)
			}
		}
		return nil
	})
	s.observer = s.observe()
	return s
}

// within is Eventually with another limit.
func (s *site) within(limit time.Duration, what string, ask func() error) {
	s.Helper()
	await.Patience{Within: limit, Between: between}.Until(s.T, what, ask)
}

func (s *site) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

func (s *site) reach(service *corev1.Service) string {
	return strings.Join(workload.Reach(s.ctx, s.node, service, tries).Nodes(), " ")
}

// startTraffic begins the stream to the Service that nothing happens to.
func (s *site) startTraffic() {
	s.traffic = workload.StartTraffic(s.ctx, workload.URL(echo), pause)
	s.Cleanup(func() { s.traffic.End() })
	s.result.traffic = true
	s.resumeTraffic()
}

func (s *site) resumeTraffic() { s.endStream = s.traffic.From(s.node, []string{near1, near2}) }

// atLeast waits until the node has made that many more requests.
func (s *site) atLeast(more int) {
	s.Helper()
	goal := s.traffic.Tried(s.node.Spec.Name) + more
	s.Eventually("traffic flows", func() error {
		if tried := s.traffic.Tried(s.node.Spec.Name); tried < goal {
			return fmt.Errorf("%d requests were made, not %d", tried, goal)
		}
		return nil
	})
}

func (s *site) endTraffic() {
	s.Helper()
	var failed []string
	s.result.tried, failed = s.traffic.End()
	s.result.failed = len(failed)
	if len(failed) > 0 {
		s.lose("%d connections", len(failed))
		s.Errorf("%d of %d connections failed: first %s, last %s", len(failed), s.result.tried, failed[0],
			failed[len(failed)-1])
	}
}

// change makes a difference in the cloud: the canary has one endpoint less.
func (s *site) change() {
	s.Helper()
	s.Must(workload.In(shared.Client(), namespace).SetPodCondition(s.ctx, podName(s.canary.Name, near1),
		corev1.PodReady, corev1.ConditionFalse))
}

// hasConverged tells whether the data plane shows the change. It looks twice: of the thousands of looks of a fault that
// lasts for minutes, one misses an endpoint that is still there.
func (s *site) hasConverged() bool {
	for range 2 {
		if s.reach(s.canary) != near2 {
			return false
		}
	}
	return true
}

// awaitConverged waits until it does.
func (s *site) awaitConverged() {
	s.Helper()
	s.within(s.fault.bound, "the data plane shows what changed in the cloud", func() error {
		if !s.hasConverged() {
			return fmt.Errorf("it reaches %s", s.reach(s.canary))
		}
		return nil
	})
}

// expectIsolated checks that the change in the cloud has not arrived. On a busy machine a look takes some requests for
// refused that were only slow.
func (s *site) expectIsolated() {
	s.Helper()
	got := workload.Reach(s.ctx, s.node, s.canary, 2*tries) // nothing asks again here
	delete(got, workload.Refused)
	if nodes := strings.Join(got.Nodes(), " "); nodes != near1+" "+near2 {
		s.Errorf("the change in the cloud arrived although the fault lasts: the node reaches %s", nodes)
	}
}

// lose notes something for the last column.
func (s *site) lose(format string, args ...any) {
	s.result.lost = append(s.result.lost, fmt.Sprintf(format, args...))
}

// conclude adds the row.
func (s *site) conclude() {
	if s.traffic != nil && s.result.tried == 0 { // it did not get as far as endTraffic
		tried, failed := s.traffic.End()
		s.result.tried, s.result.failed = tried, len(failed)
	}
	s.result.passed = !s.Failed()
	results.add(s.result)
	if !s.result.passed {
		s.explain()
	}
}

// explain logs the canary's endpoints as the API server and the wrapper have them, and what was logged last.
func (s *site) explain() {
	s.Helper()
	selector := discoveryv1.LabelServiceName + "=" + s.canary.Name
	slices, err := shared.Client().DiscoveryV1().EndpointSlices(namespace).List(s.ctx, metav1.ListOptions{
		LabelSelector: selector,
	})
	if err != nil {
		s.Logf("the API server: %v", err)
	} else {
		for i := range slices.Items {
			slice := &slices.Items[i]
			for _, e := range slice.Endpoints {
				s.Logf("the API server: slice %s at %s has %v on %s, ready %t", slice.Name, slice.ResourceVersion,
					e.Addresses, ptr.Deref(e.NodeName, ""), ptr.Deref(e.Conditions.Ready, true))
			}
		}
	}
	for _, path := range []string{
		"/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices?labelSelector=" + url.QueryEscape(selector),
		"/readyz",
	} {
		if reply, err := s.get(path); err != nil {
			s.Logf("the wrapper: %v", err)
		} else {
			s.Logf("the wrapper: %d %s", reply.Status, reply.Body)
		}
	}
	const most = 8 << 10
	logs := []string{s.node.Wrapper.LogFile()}
	for _, replica := range shared.Hubs {
		logs = append(logs, replica.LogFile())
	}
	for _, path := range logs {
		log, err := os.ReadFile(path)
		s.Logf("the end of %s (%v):\n%s", path, err, log[max(0, len(log)-most):])
	}
}

// get asks the wrapper.
func (s *site) get(path string) (*cluster.Reply, error) {
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	return s.node.Get(ctx, s.node.WrapperURL()+path)
}

// metric is the value of a metric of the wrapper, given with its labels as it is printed.
func (s *site) metric(name string) (value float64, found bool) {
	s.Helper()
	reply, err := s.get("/metrics")
	s.Must(err)
	return cluster.Metric(reply.Body, name)
}

// expectSnapshotServed waits until a wrapper that was started with its upstream away serves from its snapshot, says
// so, and returns how long after its start that was.
func (s *site) expectSnapshotServed(started time.Time) time.Duration {
	s.Helper()
	s.Eventually("it serves from the snapshot", func() error {
		reply, err := s.get("/apis/discovery.k8s.io/v1/endpointslices?limit=500")
		if err != nil {
			return err
		}
		if reply.Status != http.StatusOK {
			return fmt.Errorf("status %d: %s", reply.Status, reply.Body)
		}
		if !strings.Contains(reply.Body, s.canary.Name) {
			s.Fatalf("the list lacks what the snapshot should have: %s", reply.Body)
		}
		return nil
	})
	took := time.Since(started)
	reply, err := s.get("/readyz")
	s.Must(err)
	if reply.Status != http.StatusOK || !strings.Contains(reply.Body, "[+] snapshot: ") {
		s.Errorf("/readyz does not tell that a snapshot is served: status %d: %s", reply.Status, reply.Body)
	}
	if age, found := s.metric("application_grid_wrapper_snapshot_served_age_seconds"); !found || age <= 0 {
		s.Errorf("no metric tells the age of the snapshot that is served (%v, %v)", age, found)
	}
	s.Logf("served from the snapshot %s after the process was started", took.Round(time.Millisecond))
	return took
}

// expectSynced checks that nothing speaks of a snapshot any more.
func (s *site) expectSynced() {
	s.Helper()
	s.Eventually("the snapshot is not spoken of any more", func() error {
		reply, err := s.get("/readyz")
		if err != nil {
			return err
		}
		if reply.Status != http.StatusOK || strings.Contains(reply.Body, "[+] snapshot: ") {
			return fmt.Errorf("status %d: %s", reply.Status, reply.Body)
		}
		return nil
	})
	if age, found := s.metric("application_grid_wrapper_snapshot_served_age_seconds"); found {
		s.Errorf("there is still a metric of the served snapshot's age: %v", age)
	}
}

// level is what the wrapper holds.
type level struct {
	resident   float64 // MiB
	goroutines float64
}

func (s *site) level() level {
	s.Helper()
	resident, _, err := cluster.ResidentMemory(s.node.Wrapper.PID())
	s.Must(err)
	l := level{resident: resident / (1 << 20)}
	l.goroutines, _ = s.metric("go_goroutines")
	if l.resident == 0 || l.goroutines == 0 {
		s.Fatalf("the wrapper's memory or goroutines cannot be read: %+v", l)
	}
	return l
}

const (
	// levelTime is how long the wrapper may take to give back what a fault made it hold.
	levelTime = time.Minute
	// moreResident, in MiB, and moreGoroutines may be there afterwards: Go keeps some memory, a log holds up to 8 MiB,
	// and connections come and go.
	moreResident   = 32
	moreGoroutines = 30
)

// expectLevel waits until the wrapper holds about as much as before.
func (s *site) expectLevel(before level) {
	s.Helper()
	var after level
	s.within(levelTime, "memory and goroutines are back at their level", func() error {
		after = s.level()
		if after.resident > before.resident+moreResident || after.goroutines > before.goroutines+moreGoroutines {
			// Asking is work too, after which the wrapper has to come to rest again.
			time.Sleep(5 * time.Second)
			return fmt.Errorf("before %+v, after %+v", before, after)
		}
		return nil
	})
	s.Logf("memory %.1f MiB before, %.1f after; goroutines %.0f before, %.0f after",
		before.resident, after.resident, before.goroutines, after.goroutines)
}
