package faults

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// result is one row of the table.
type result struct {
	// test is the name of the test, by which the rows are grouped.
	test, fault   string
	tried, failed int
	// traffic is false where there is no data plane, and so neither connections nor converging.
	traffic bool
	// converged is the time to converge, negative if it did not.
	converged time.Duration
	lost      []string
	passed    bool
}

// table collects the rows.
type table struct {
	mu   sync.Mutex
	rows []result // guarded by mu
}

var results table

func (t *table) add(r result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

func (t *table) print(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.rows) == 0 {
		return
	}
	slices.SortStableFunc(t.rows, func(a, b result) int { return strings.Compare(a.test, b.test) })
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "\nfault\tconnections tried\tfailed\ttime to converge\twhat was lost")
	for _, r := range t.rows {
		tried, failed, converged, lost := "-", "-", "-", "nothing"
		if r.traffic {
			tried, failed, converged = strconv.Itoa(r.tried), strconv.Itoa(r.failed), "never"
			if r.converged >= 0 {
				converged = fmt.Sprintf("%.1f s", r.converged.Seconds())
			}
		}
		if len(r.lost) > 0 {
			lost = strings.Join(r.lost, "; ")
		}
		if !r.passed {
			lost += "   FAILED"
		}
		fmt.Fprintf(columns, "%s\t%s\t%s\t%s\t%s\n", r.fault, tried, failed, converged, lost)
	}
	columns.Flush()
}
