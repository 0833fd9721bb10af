package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// table is what is printed: one row a figure.
type table struct{ rows [][]string }

// add adds a figure. Of two values the first is of the direct way.
func (t *table) add(figure string, values ...string) {
	t.rows = append(t.rows, append([]string{figure}, values...))
	fmt.Fprintf(os.Stderr, "  %s: %s\n", figure, strings.Join(values, ", "))
}

// addMemory adds a process's resident memory, and in parentheses the most that it ever was.
func (t *table) addMemory(figure string, pid int, before ...string) error {
	resident, peak, err := cluster.ResidentMemory(pid)
	t.add(figure, append(before, fmt.Sprintf("%.0f MB (peak %.0f MB)", resident/1e6, peak/1e6))...)
	return err
}

func (t *table) print(title string, columns ...string) error {
	fmt.Printf("\n%s\n\n", title)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range slices.Concat([][]string{append([]string{"figure"}, columns...)}, t.rows) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

// samples are durations of the same thing.
type samples []time.Duration

func (s samples) quantile(q float64) string {
	if len(s) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(s))
	return milliseconds(sorted[int(q*float64(len(sorted)-1))])
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

func megabytes(n float64) string { return fmt.Sprintf("%.2f MB", n/1e6) }

func kilobytes(n float64) string { return fmt.Sprintf("%.3f kB", n/1e3) }

// restart ends a component, and times its start until it is ready.
func restart(ctx context.Context, component *cluster.Component) (time.Duration, error) {
	if err := component.Stop(); err != nil {
		return 0, err
	}
	begin := time.Now()
	err := component.Start(ctx)
	return time.Since(begin), err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
