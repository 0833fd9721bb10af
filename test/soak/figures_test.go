package soak

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// figures are what a program holds, and what it has done since it started.
type figures struct {
	pid                        int
	resident, written          float64 // bytes
	goroutines, files, changes float64
}

// sample are the figures of all programs at a time.
type sample struct {
	at       time.Duration
	programs map[string]figures
	// tried, excused and failed are connections since the beginning.
	tried, excused, failed int
	// lists are what kubelets asked, listsFailed those that were not answered while the node had power, and unanswered
	// is the longest time that one of them was without an answer.
	lists, listsFailed int
	unanswered         time.Duration
}

// What a program that was not restarted may have at the end beyond the second sample: Go keeps some memory, a
// history holds up to 8 MiB, connections come and go.
const (
	moreResident   = 16 << 20
	moreGoroutines = 40
	moreFiles      = 40
)

// sample measures, and prints what it has found.
func (w *world) sample() {
	w.Helper()
	s := sample{at: time.Since(w.begin), programs: map[string]figures{}}
	for _, node := range w.Cluster.Nodes() {
		page := func(url string) func(context.Context) (string, error) {
			return func(ctx context.Context) (string, error) {
				reply, err := node.Get(ctx, url+"/metrics")
				if err != nil {
					return "", err
				}
				return reply.Body, nil
			}
		}
		s.programs["wrapper@"+node.Name()] = w.measure(node.Wrapper, page(node.WrapperURL()),
			"application_grid_wrapper_event_delay_seconds_count")
		if node.LiteAPIServer != nil {
			s.programs["lite@"+node.Name()] = w.measure(node.LiteAPIServer, page(node.LiteURL()),
				"lite_apiserver_upstream_lists_total")
		}
	}
	for i, hub := range w.Cluster.Hubs {
		var goroutines, events float64
		w.Eventually(fmt.Sprintf("hub-%d answers", i), func() (err error) { // it may have been restarted just now
			if goroutines, err = hub.Metric(w.Context(), "go_goroutines"); err == nil {
				events, err = hub.Metric(w.Context(), "application_grid_hub_event_delay_seconds_count")
			}
			return err
		})
		f := w.measure(hub.Component, nil, "")
		f.goroutines, f.changes = goroutines, events
		s.programs[fmt.Sprintf("hub-%d", i)] = f
	}
	for _, a := range w.askers {
		a.mu.Lock()
		s.tried, s.excused, s.failed = s.tried+a.tried, s.excused+a.excusedFailures, s.failed+a.failures
		a.mu.Unlock()
	}
	for _, k := range w.kubelets {
		k.mu.Lock()
		s.lists, s.listsFailed = s.lists+k.tried, s.listsFailed+k.failures
		s.unanswered = max(s.unanswered, k.longest)
		k.mu.Unlock()
	}
	w.samples = append(w.samples, s)
	w.Log(s.String())
}

func (w *world) measure(
	program *cluster.Component, metrics func(context.Context) (string, error), changes string,
) figures {
	w.Helper()
	f := figures{pid: program.PID()}
	var err error
	f.resident, _, err = cluster.ResidentMemory(f.pid)
	w.Must(err)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", f.pid))
	w.Must(err)
	f.files = float64(len(files))
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", f.pid))
	w.Must(err)
	f.written, _ = cluster.Metric(strings.ReplaceAll(string(io), ":", ""), "write_bytes")
	if metrics != nil {
		page, err := metrics(w.Context())
		w.Must(err)
		f.goroutines, _ = cluster.Metric(page, "go_goroutines")
		f.changes, _ = cluster.Metric(page, changes)
	}
	return f
}

func (s sample) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "after %s: %d connections, %d failed where the power was cut, %d otherwise; "+
		"%d of %d lists of kubelets failed, the longest time without an answer was %s\n", s.at.Round(time.Second),
		s.tried, s.excused, s.failed, s.listsFailed, s.lists, s.unanswered.Round(time.Millisecond))
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "program\tpid\tmemory MiB\tgoroutines\tfiles\twritten KiB\tevents (lite: lists)")
	for _, name := range slices.Sorted(maps.Keys(s.programs)) {
		f := s.programs[name]
		fmt.Fprintf(table, "%s\t%d\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\n", name, f.pid, f.resident/(1<<20), f.goroutines, f.files,
			f.written/(1<<10), f.changes)
	}
	table.Flush()
	return out.String()
}

// conclude gives the verdict.
func (w *world) conclude() {
	w.Helper()
	first, last := w.samples[min(1, len(w.samples)-1)], w.samples[len(w.samples)-1]
	var compared []string
	for name, now := range last.programs {
		before := first.programs[name]
		if before.pid != now.pid {
			continue
		}
		compared = append(compared, name)
		if now.resident > before.resident+moreResident || now.goroutines > before.goroutines+moreGoroutines ||
			now.files > before.files+moreFiles {
			w.Errorf("%s grows: from %+v after %s to %+v", name, before, first.at, now)
		}
	}
	slices.Sort(compared)
	for _, name := range []string{"wrapper@" + steady, "lite@" + steady} {
		if !slices.Contains(compared, name) {
			w.Errorf("%s was restarted by somebody else", name)
		}
	}
	for _, k := range w.kubelets {
		if k.tried == 0 || k.longest > unanswered {
			w.Errorf("the kubelet of %s made %d lists, and had no answer for %s", k.node.Name(), k.tried, k.longest)
		}
	}
	for _, a := range w.askers {
		if a.tried == 0 {
			w.Errorf("%s has made no connection", a.node.Name())
		}
		if a.failures > 0 {
			w.Errorf("%s: %d of %d connections failed that no fault explains:\n%s", a.node.Name(), a.failures, a.tried,
				strings.Join(a.words, "\n"))
		}
	}
	w.Must(w.nodesReady())
	verdict := "PASSED"
	if w.Failed() {
		verdict = "FAILED"
	}
	w.Logf("%s after %s, %v: %d of %d connections failed that no fault explains; compared from %s on: %s", verdict,
		last.at.Round(time.Second), w.done, last.failed, last.tried, first.at.Round(time.Second), strings.Join(compared, ", "))
}

// compactEtcd compacts etcd to its present revision.
func compactEtcd(ctx context.Context, c *cluster.Cluster) error {
	var now struct{ Header struct{ Revision string } }
	if err := c.AskEtcd(ctx, "kv/range", map[string]any{"key": []byte{0}, "limit": 1}, &now); err != nil {
		return err
	}
	err := c.AskEtcd(ctx, "kv/compaction", map[string]string{"revision": now.Header.Revision}, nil)
	if err != nil && strings.Contains(err.Error(), "required revision has been compacted") { // nothing was written since
		return nil
	}
	return err
}
