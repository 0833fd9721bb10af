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

// ask is what a release asks in a protocol.
type ask struct {
	who      string
	requests []request
}

func (t *table) add(r row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
}

// addAsk notes what somebody asks, beside what was noted of the same before: at another node, in another mode.
func (t *table) addAsk(who string, requests []request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.asks {
		if t.asks[i].who == who {
			t.asks[i].requests = append(t.asks[i].requests, requests...)
			return
		}
	}
	t.asks = append(t.asks, ask{who: who, requests: requests})
}

// markdown is the table, with a line for each release and result.
func (t *table) markdown() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString("| component | version | protocol (modes) | result |\n| --- | --- | --- | --- |\n")
	var lines []row // without protocol and mode
	protocols, modes := map[row][]string{}, map[row][]string{}
	for _, r := range t.rows {
		line, mode := row{component: r.component, version: r.version, result: r.result}, r.mode
		if protocols[line] == nil {
			lines = append(lines, line)
		}
		if !slices.Contains(protocols[line], r.protocol) {
			protocols[line] = append(protocols[line], r.protocol)
		}
		r.mode = ""
		modes[r] = append(modes[r], strings.ReplaceAll(mode, ", TLS", " over TLS"))
	}
	for _, line := range lines {
		var how []string
		for _, protocol := range protocols[line] {
			of := line
			of.protocol = protocol
			how = append(how, fmt.Sprintf("%s (%s)", protocol, strings.Join(modes[of], ", ")))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", line.component, line.version, strings.Join(how, ", "),
			strings.NewReplacer("|", `\|`, "\n", " ").Replace(line.result))
	}
	return b.String()
}

// asked is what was asked: every kind of request to the wrapper, with the codes of its answers. A 410 is of a restarted
// wrapper; 503, which tells a client to wait for one, is left out.
func (t *table) asked() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	var order []string // who asks the same stands together
	who := map[string][]string{}
	for _, a := range t.asks {
		lines := strings.Join(kinds(a.requests), "\n")
		if who[lines] == nil {
			order = append(order, lines)
		}
		who[lines] = append(who[lines], a.who)
	}
	for _, lines := range order {
		fmt.Fprintf(&b, "\n%s:\n\n%s\n", strings.Join(who[lines], "; "), lines)
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
	content := before + tableBegin + "\n" + t.markdown() + "\n" + tableEnd + after
	if err := os.WriteFile(document, []byte(content), 0o644); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	return nil
}
