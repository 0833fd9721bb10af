package follow

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

const (
	fleetWrappers = 10_000
	// fleetSources is nodes, node, services, endpointslices and kubernetes-endpoints.
	fleetSources = 5
)

// firstAnswer is how long after the end of an outage a wrapper asks again. Its connection broke when the outage began;
// an attempt meanwhile fails after failing. The backoff is the real one, the time is not.
func firstAnswer(outage, failing time.Duration) time.Duration {
	b := backoff{random: rand.Float64}
	at := time.Duration(0)
	for at < outage {
		at += failing + b.next()
	}
	return at - outage
}

// bySecond counts what happens in every second.
type bySecond []int

func (s *bySecond) add(at time.Duration) {
	for len(*s) <= int(at/time.Second) {
		*s = append(*s, 0)
	}
	(*s)[at/time.Second]++
}

// TestFleetReturnsSpreadOut simulates how 10,000 wrappers return to an API server that was away; docs/operate.md
// quotes what it prints (go test -v -run Fleet ./pkg/follow).
func TestFleetReturnsSpreadOut(t *testing.T) {
	t.Parallel()
	const all = fleetWrappers * fleetSources
	for _, way := range []struct {
		name    string
		failing time.Duration
	}{{"refused", 0}, {"packets dropped", apiclient.DialTimeout}} {
		for _, outage := range []struct {
			time.Duration
			// most is the largest share of the wrappers that may come back in one second, in percent.
			most int
		}{{10 * time.Second, 100}, {time.Minute, 10}, {130 * time.Second, 10}, {5 * time.Minute, 10}} {
			var requests, connections bySecond
			for range fleetWrappers {
				at := firstAnswer(outage.Duration, way.failing)
				connections.add(at)
				for range fleetSources { // their attempts are made together
					requests.add(at)
				}
			}
			peak := slices.Max(requests)
			t.Logf("%-15s for %-5s  all back within %2d s; in the busiest second %5d requests, %5d connections",
				way.name, outage, len(requests), peak, slices.Max(connections))
			if outage.Duration == time.Minute {
				t.Logf("  requests, second by second: %d", requests)
			}
			if peak > all*outage.most/100 {
				t.Errorf("%s for %s: %d of %d requests in one second, more than %d %%",
					way.name, outage, peak, all, outage.most)
			}
			// 15 s, half as much again for the jitter, and an attempt that failed just before.
			if limit := 29; len(requests) > limit {
				t.Errorf("%s for %s: the last wrapper came back after %d s, not within %d",
					way.name, outage, len(requests), limit)
			}
		}
	}
}
