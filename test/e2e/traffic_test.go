package e2e

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/workload"
)

// startTraffic begins a stream of requests to a Service from every node of allowed, which has the nodes that may
// answer it.
func (f *fixture) startTraffic(service *corev1.Service, allowed reach) *workload.Traffic {
	traffic := workload.StartTraffic(f.ctx, workload.URL(service), 2*time.Millisecond)
	for name, nodes := range allowed {
		node := f.Node(name)
		traffic.From(node, strings.Fields(nodes))
	}
	f.Cleanup(func() { traffic.End() })
	return traffic
}

// atLeast waits until every node has made that many more requests.
func (f *fixture) atLeast(traffic *workload.Traffic, more int) {
	f.Helper()
	before := map[string]int{}
	for name := range siteLocal {
		before[name] = traffic.Tried(name)
	}
	f.Eventually(fmt.Sprintf("%d more requests from every node", more), func() error {
		for name := range siteLocal {
			if made := traffic.Tried(name) - before[name]; made < more {
				return fmt.Errorf("%s has made %d", name, made)
			}
		}
		return nil
	})
}

// expectFlawless ends the traffic; every request must have succeeded.
func (f *fixture) expectFlawless(traffic *workload.Traffic) {
	f.Helper()
	tried, failed := traffic.End()
	if len(failed) > 0 {
		f.Fatalf("%d of %d requests went wrong: first %s, last %s", len(failed), tried, failed[0], failed[len(failed)-1])
	}
	f.Logf("%d requests, none failed", tried)
}
