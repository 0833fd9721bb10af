package dnshosts

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const testDomain = "cluster.local"

func TestParse(t *testing.T) {
	const (
		begin  = beginMark + "\n"
		end    = endMark + "\n"
		ours   = "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local\n"
		ours6  = "fd00::1 demo-0.demo-svc.default.svc.cluster.local\n"
		theirs = "127.0.0.1\tlocalhost  # mine\n"
	)
	for name, test := range map[string]struct {
		file          string
		before, after string
		block         string
		unmarked      bool
	}{
		"empty":                     {unmarked: true},
		"foreign only":              {file: theirs, after: theirs, unmarked: true},
		"foreign without a newline": {file: "::1 localhost", after: "::1 localhost", unmarked: true},
		"foreign around the block": {
			file: theirs + begin + ours + end + theirs, before: theirs, after: theirs, block: ours,
		},
		"empty block":                {file: begin + end},
		"another remark in the mark": {file: beginPrefix + " v0\n" + ours + end, block: ours},
		"a mark that is not one": {
			file: beginPrefix + "s\n" + theirs, after: beginPrefix + "s\n" + theirs, unmarked: true,
		},
		"foreign line in the block is ours": {file: begin + theirs + ours + end, block: theirs + ours},
		"block without an end": {
			file: begin + ours + ours6 + theirs + ours, after: theirs + ours, block: ours + ours6,
		},
		"block cut off": {file: begin + ours + "10.0.0.", after: "10.0.0.", block: ours},
		"begin twice, end once": {
			file: begin + ours + begin + ours6 + end + theirs, after: theirs, block: ours + ours6,
		},
		"a block without an end before another": {
			file: begin + ours + theirs + begin + ours6 + end, after: theirs, block: ours + ours6,
		},
		"two blocks": {
			file: begin + ours + end + theirs + begin + ours6 + end, after: theirs, block: ours + ours6,
		},
		"end alone": {file: end + theirs, after: end + theirs, unmarked: true},
		"an editor's line ends": {
			file:   "::1 localhost\r\n" + strings.ReplaceAll(begin+ours+end, "\n", "\r\n") + theirs,
			before: "::1 localhost\r\n", after: theirs, block: ours,
		},
		"an editor's line ends, without an end": {
			file: strings.ReplaceAll(begin+ours, "\n", "\r\n") + theirs, after: theirs, block: ours,
		},
		"lines without a block are foreign":   {file: theirs + ours, after: theirs + ours, unmarked: true},
		"lines outside the block are foreign": {file: ours + begin + end, before: ours},
	} {
		t.Run(name, func(t *testing.T) {
			c := Parse([]byte(test.file))
			if c.Before != test.before || c.After != test.after || (c.Block == nil) != test.unmarked {
				t.Errorf("before %q, after %q, block %q", c.Before, c.After, c.Block)
			}
			if want := strings.FieldsFunc(test.block,
				func(r rune) bool { return r == '\n' }); !slices.Equal(c.Block, want) {
				t.Errorf("block %q, want %q", c.Block, want)
			}
			checkRoundTrip(t, []byte(test.file), nil)
		})
	}
}

// checkRoundTrip renders a parsed file with a new block and parses that again: the foreign bytes must be there,
// in order and with nothing added, and rendering must have become stable.
func checkRoundTrip(t *testing.T, data []byte, lines []string) {
	t.Helper()
	first := Parse(data)
	rendered := first.Render(lines)
	second := Parse(rendered)
	if first.Before != second.Before || first.After != second.After {
		t.Errorf("foreign bytes changed:\nbefore %q\nafter  %q\nnow    %q\nand    %q",
			first.Before, first.After, second.Before, second.After)
	}
	if !slices.Equal(second.Block, lines) {
		t.Errorf("the block is %q, written were %q", second.Block, lines)
	}
	if again := second.Render(lines); !bytes.Equal(again, rendered) {
		t.Errorf("rendering is not stable:\n%q\n%q", rendered, again)
	}
}

func FuzzParse(f *testing.F) {
	block := beginMark + "\n10.0.0.1 demo-0.demo-svc.default.svc.cluster.local\n" + endMark + "\n"
	for _, seed := range []string{
		"", "127.0.0.1 localhost", "127.0.0.1 localhost\n", block, "a\n" + block + "b", block + block,
		beginMark + "\n::1 a-1.b.c.svc.d\nx", endMark, beginMark, "\x00\xff\r\n" + block + "\r",
		strings.TrimSuffix(block, "\n"),
	} {
		f.Add([]byte(seed), uint8(2))
	}
	f.Fuzz(func(t *testing.T, data []byte, count uint8) {
		var lines []string
		for i := range int(count % 4) {
			lines = append(lines, "10.0.0.1 demo-"+string(rune('0'+i))+".demo-svc.default.svc.cluster.local")
		}
		checkRoundTrip(t, data, lines)
		// Nothing is lost or made up: what is neither a mark nor in the block is foreign, byte by byte.
		c := Parse(data)
		var foreign strings.Builder
		block := c.Block
		at := 0
		for whole := range strings.Lines(string(data)) {
			line := content(whole)
			switch {
			case isBegin(line):
			case len(block) > 0 && line == block[0] && (c.Block == nil || insideBlock(data, at)):
				block = block[1:]
			case line == endMark && endsBlock(data, at):
			default:
				foreign.WriteString(whole)
			}
			at += len(whole)
		}
		if got := c.Before + c.After; got != foreign.String() {
			t.Errorf("of %q\nforeign is %q\nbut kept   %q", data, foreign.String(), got)
		}
	})
}

// isBegin, hasEnd and ourLine recognise lines by another way than Parse.
func isBegin(line string) bool {
	rest, found := strings.CutPrefix(line, beginPrefix)
	return found && (rest == "" || rest[0] == ' ')
}

// hasEnd reports whether the block that begins before these lines has an end mark before another block begins.
func hasEnd(lines []string) bool {
	for _, whole := range lines {
		switch line := content(whole); {
		case line == endMark:
			return true
		case isBegin(line):
			return false
		}
	}
	return false
}

var ourLine = regexp.MustCompile(`^[0-9a-f.:]+ [a-z0-9][a-z0-9.-]*-\d+\.[a-z0-9-]+\.[a-z0-9-]+\.svc\.[a-z0-9.-]+$`)

// insideBlock tells by another way than Parse whether the line at the offset is in a block.
func insideBlock(data []byte, offset int) bool {
	lines := strings.SplitAfter(string(data[:offset]), "\n")
	begin := -1
	for i, line := range lines {
		if isBegin(content(line)) {
			begin = i
		}
	}
	if begin < 0 {
		return false
	}
	for _, line := range lines[begin+1:] {
		if content(line) == endMark {
			return false
		}
	}
	if hasEnd(slices.Collect(strings.Lines(string(data[offset:])))) {
		return true
	}
	for _, line := range lines[begin+1:] {
		if line != "" && !ourLine.MatchString(content(line)) {
			return false
		}
	}
	return true
}

// endsBlock reports whether the endMark at the offset ends a block.
func endsBlock(data []byte, offset int) bool {
	before := string(data[:offset])
	begin := -1
	at := 0
	for line := range strings.SplitAfterSeq(before, "\n") {
		trimmed := content(line)
		switch {
		case isBegin(trimmed):
			begin = at
		case trimmed == endMark:
			begin = -1
		}
		at += len(line)
	}
	return begin >= 0
}
