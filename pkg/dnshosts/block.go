package dnshosts

import (
	"regexp"
	"slices"
	"strings"
)

// The lines that begin and end the block that this package writes. Everything else in a hosts file is foreign, and kept
// byte for byte.
const (
	beginPrefix = "# BEGIN statefulset-grid-daemon"
	beginMark   = beginPrefix + " (this block is rewritten; lines outside of it are kept)"
	endMark     = "# END statefulset-grid-daemon"
)

// The patterns of what is recognised. The remark after beginPrefix may change between versions. A line may end with
// CRLF, as some editors save it: a block that was not recognised would be answered forever.
var (
	beginLine = regexp.MustCompile(`(?m)^` + beginPrefix + `(?: .*)?\r?$\n?`)
	endLine   = regexp.MustCompile(`(?m)^` + endMark + `\r?$\n?`)
	// ourLines are those of records, below any cluster domain, at the beginning of a text. A grid's name may have dots.
	ourLines = regexp.MustCompile(
		`^(?:[0-9a-f.:]+ [a-z0-9][a-z0-9.-]*-\d+\.[a-z0-9-]+\.[a-z0-9-]+\.svc\.[a-z0-9.-]+\r?(?:\n|$))*`)
)

// Content is the content of a hosts file, split into the block and what is around it.
type Content struct {
	// Before and After are the foreign bytes around the block. Before is empty, or ends with a newline.
	Before, After string
	// Block has the lines of the block, without the marks and without newlines; nil if the file has no block.
	Block []string
}

// Parse splits a hosts file. It accepts any bytes.
//
// If a block has lost its end mark, it ends at the first line that this package does not write. If there are several
// blocks (a file was appended to itself), the lines of all belong to the block, which Render writes where the first one
// is.
func Parse(data []byte) Content {
	parts := beginLine.Split(string(data), -1)
	if len(parts) == 1 { // the block goes before them, because the last line may lack a newline
		return Content{After: parts[0]}
	}
	c := Content{Before: parts[0], Block: []string{}}
	for _, part := range parts[1:] {
		end := endLine.FindStringIndex(part)
		if end == nil {
			length := len(ourLines.FindString(part))
			end = []int{length, length}
		}
		for line := range strings.Lines(part[:end[0]]) {
			c.Block = append(c.Block, content(line))
		}
		c.After += part[end[1]:]
	}
	return c
}

// content returns a line without its end.
func content(line string) string {
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
}

// Render returns a hosts file with these lines as its block, and with the foreign bytes of the Content.
func (c *Content) Render(lines []string) []byte {
	block := strings.Join(slices.Concat([]string{beginMark}, lines, []string{endMark, ""}), "\n")
	return []byte(c.Before + block + c.After)
}
