package dnshosts

import (
	"bytes"
	"net/netip"
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
	// Block has the lines of the block, without the marks and without newlines.
	Block []string
	// Marked is set if the file has a block.
	Marked bool
}

// Parse splits a hosts file. It accepts any bytes.
//
// If a block has lost its end mark, it ends at the first line that this package does not write. If there are several
// blocks (a file was appended to itself), the lines of all belong to the block, which Render writes where the first one
// is.
//
// A file without a block may be one that SuperEdge's daemon wrote, which uses no marks. Lines that look exactly like
// its lines, for names below domain, are taken over as the block. If they were kept as foreign, CoreDNS would go on
// answering with their addresses forever.
func Parse(data []byte, domain string) Content {
	var c Content
	inside := false
	ended := true // false in a block without an end
	rest := data
	for len(rest) > 0 {
		line, width := cutLine(rest)
		switch {
		case isBegin(line):
			ended = hasEnd(rest[width:])
			inside, c.Marked = true, true
		case inside && ended && line == endMark:
			inside = false
		case inside && (ended || isOurs(line, "")):
			c.Block = append(c.Block, line)
		default:
			inside = false
			c.foreign(rest[:width])
		}
		rest = rest[width:]
	}
	if !c.Marked {
		c.takeOver(data, domain)
	}
	return c
}

// foreign appends to Before or After.
func (c *Content) foreign(data []byte) {
	if c.Marked {
		c.After = append(c.After, data...)
	} else {
		c.Before = append(c.Before, data...)
	}
}

// takeOver moves the lines that SuperEdge's daemon wrote from the foreign bytes of a file without a block to a block.
func (c *Content) takeOver(data []byte, domain string) {
	c.Before, c.After = nil, nil
	for rest := data; len(rest) > 0; {
		line, width := cutLine(rest)
		if isOurs(line, domain) {
			c.Block = append(c.Block, line)
		} else {
			// Foreign lines go after the block, because the last of them may lack a newline.
			c.After = append(c.After, rest[:width]...)
		}
		rest = rest[width:]
	}
}

// cutLine returns the first line without its newline, and its length with it.
func cutLine(data []byte) (string, int) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return string(data[:i]), i + 1
	}
	return string(data), len(data)
}

func isBegin(line string) bool {
	rest, found := strings.CutPrefix(line, beginPrefix)
	return found && (rest == "" || rest[0] == ' ')
}

// hasEnd reports whether the block that begins before rest has an end mark before another block begins.
func hasEnd(rest []byte) bool {
	for len(rest) > 0 {
		line, width := cutLine(rest)
		switch {
		case line == endMark:
			return true
		case isBegin(line):
			return false
		}
		rest = rest[width:]
	}
	return false
}

// isOurs reports whether a line has the form of Record.Line, below the cluster's domain if that is not "".
func isOurs(line, domain string) bool {
	address, name, found := strings.Cut(line, " ")
	if !found {
		return false
	}
	if _, err := netip.ParseAddr(address); err != nil {
		return false
	}
	ok := isRecordName(name, domain)
	return ok
}

// Render returns a hosts file with these lines as its block, and with the foreign bytes of the Content.
func (c *Content) Render(lines []string) []byte {
	var b bytes.Buffer
	size := len(c.Before) + len(c.After) + len(beginMark) + len(endMark) + 2
	for _, line := range lines {
		size += len(line) + 1
	}
	b.Grow(size)
	b.Write(c.Before)
	b.WriteString(beginMark + "\n")
	for _, line := range lines {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	b.WriteString(endMark + "\n")
	b.Write(c.After)
	return b.Bytes()
}
