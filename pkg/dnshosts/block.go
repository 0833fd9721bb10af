package dnshosts

import (
	"regexp"
	"slices"
	"strings"
)

// The lines that begin and end the block that this package writes. Everything else in a hosts file is foreign, and kept
// byte for byte.
const (
	beginMark = "# BEGIN statefulset-grid-daemon (this block is rewritten; lines outside of it are kept)"
	endMark   = "# END statefulset-grid-daemon"
	// beginPrefix is the part of beginMark that is recognised. The remark after it may change between versions.
	beginPrefix = "# BEGIN statefulset-grid-daemon"
)

// Content is the content of a hosts file, split into the block and what is around it.
type Content struct {
	// Before and After are the foreign bytes around the block. Before is empty, or ends with a newline.
	Before, After []byte
	// Block has the lines of the block, without the marks and without newlines; nil if the file has no block.
	Block []string
}

// Parse splits a hosts file. It accepts any bytes.
//
// If a block has lost its end mark, it ends at the first line that this package does not write. If there are several
// blocks (a file was appended to itself), the lines of all belong to the block, which Render writes where the first one
// is. A line may end with CRLF, as some editors save it: a block that was not recognised would be answered forever.
func Parse(data []byte) Content {
	var c Content
	inside := false
	ended := true // false in a block without an end
	lines := slices.Collect(strings.Lines(string(data)))
	for i, whole := range lines {
		line := content(whole)
		switch {
		case isBegin(line):
			ended = hasEnd(lines[i+1:])
			inside, c.Block = true, append([]string{}, c.Block...) // not nil, even without lines
		case inside && ended && line == endMark:
			inside = false
		case inside && (ended || ours.MatchString(line)):
			c.Block = append(c.Block, line)
		case c.Block != nil:
			inside = false
			c.After = append(c.After, whole...)
		default:
			c.Before = append(c.Before, whole...)
		}
	}
	if c.Block == nil { // the block goes before them, because the last line may lack a newline
		c.Before, c.After = nil, c.Before
	}
	return c
}

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

// content returns a line without its end.
func content(line string) string {
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
}

// ours is the form of the lines of View.Records, below any cluster domain. A grid's name may have dots.
var ours = regexp.MustCompile(`^[0-9a-f.:]+ [a-z0-9][a-z0-9.-]*-\d+\.[a-z0-9-]+\.[a-z0-9-]+\.svc\.[a-z0-9.-]+$`)

// Render returns a hosts file with these lines as its block, and with the foreign bytes of the Content.
func (c *Content) Render(lines []string) []byte {
	block := strings.Join(slices.Concat([]string{beginMark}, lines, []string{endMark, ""}), "\n")
	return slices.Concat(c.Before, []byte(block), c.After)
}
