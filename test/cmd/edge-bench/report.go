package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// table is what is printed: one row a figure.
type table struct{ rows [][4]string }

func (t *table) add(figure, direct, wrapper, ratio string) {
	t.rows = append(t.rows, [4]string{figure, direct, wrapper, ratio})
	fmt.Fprintf(os.Stderr, "  %s: direct %s, wrapper %s\n", figure, direct, wrapper)
}

func (t *table) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "figure\tdirect\twrapper\tdirect / wrapper")
	for _, row := range t.rows {
		fmt.Fprintln(w, strings.Join(row[:], "\t"))
	}
	_ = w.Flush() // standard output
}

// samples are durations of the same thing.
type samples []time.Duration

func (s samples) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(q*float64(len(sorted)-1))]
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

func megabytes(n int64) string { return fmt.Sprintf("%.2f MB", float64(n)/1e6) }

func ratio(direct, wrapper time.Duration) string {
	if wrapper == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", float64(direct)/float64(wrapper))
}

// memory is a process's resident memory, and in parentheses the most that it ever was.
func memory(pid int) (string, error) {
	resident, peak, err := cluster.ResidentMemory(pid)
	return fmt.Sprintf("%.0f MB (peak %.0f MB)", resident/1e6, peak/1e6), err
}

// firstSync is how long the first write of its rules took kube-proxy, which was just started, by its own
// metrics. They come a moment after the rules.
func firstSync(ctx context.Context, node *cluster.Node) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		took, err := fullSync(ctx, node)
		if err != nil || took > 0 {
			return took, err
		}
		select {
		case <-ctx.Done():
			return 0, errors.New("kube-proxy's metrics tell no time of a full sync")
		case <-tick.C:
		}
	}
}

// fullSync is 0 as long as there was none.
func fullSync(ctx context.Context, node *cluster.Node) (time.Duration, error) {
	seconds, err := scrape(ctx, node, "http://127.0.0.1:10249/metrics",
		`kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"}`)
	return time.Duration(seconds * float64(time.Second)), err
}

// metric is one of the wrapper's.
func metric(ctx context.Context, node *cluster.Node, name string) (float64, error) {
	return scrape(ctx, node, node.WrapperURL()+"/metrics", name)
}

// scrape reads one metric, by its name with its labels; 0 if it is not there.
func scrape(ctx context.Context, node *cluster.Node, url, name string) (float64, error) {
	reply, err := node.Get(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	for line := range strings.SplitSeq(reply.Body, "\n") {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, nil
}
