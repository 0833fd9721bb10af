package compat

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// results is what worked and what did not, in the order it was noted.
var results table

type table struct {
	mu   sync.Mutex
	rows []row // guarded by mu
	asks []ask // guarded by mu
}

// row is a line of the table: what was run, and how.
type row struct{ component, version, protocol, mode, result string }

// ask is what is asked, a line per kind of request, and by whom: a release in a protocol.
type ask struct{ who, lines []string }

func (t *table) add(r row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

// addAsk notes what somebody asks. Who asks the same share one entry.
func (t *table) addAsk(who string, lines []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.asks {
		if !slices.Equal(t.asks[i].lines, lines) {
			continue
		}
		if !slices.Contains(t.asks[i].who, who) {
			t.asks[i].who = append(t.asks[i].who, who)
		}
		return
	}
	t.asks = append(t.asks, ask{who: []string{who}, lines: lines})
}

// String is the table, and what was asked, as Markdown.
func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString("| component | version | protocol | mode | result |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.component, r.version, r.protocol, r.mode, strings.NewReplacer("|", `\|`, "\n", " ").Replace(r.result))
	}
	b.WriteString("\n## What they ask\n\nEvery kind of request to the wrapper, with the codes of its answers. A 410 is of a restarted wrapper; 503, which tells a\nclient to wait for one, is left out.\n")
	for _, a := range t.asks {
		fmt.Fprintf(&b, "\n%s:\n\n```\n%s\n```\n", strings.Join(a.who, "; "), strings.Join(a.lines, "\n"))
	}
	return b.String()
}

const (
	tableBegin = "<!-- From here on `make compat` writes. -->\n"
	tableEnd   = "<!-- Up to here. -->\n"
)

// writeInto puts the table into a document, between the two marks.
func (t *table) writeInto(document string) error {
	data, err := os.ReadFile(document)
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	before, rest, begun := strings.Cut(string(data), tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !begun || !ended {
		return fmt.Errorf("writing the table: %s does not have the lines %q and %q", document, tableBegin, tableEnd)
	}
	content := before + tableBegin + "\n" + t.String() + "\n" + tableEnd + after
	if err := os.WriteFile(document, []byte(content), 0o644); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}
