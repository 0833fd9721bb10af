package dnshosts

import (
	"bytes"
	"net/netip"
	"strings"
)

// The lines that begin and end the part of a hosts file that is this package's. Everything else in the file is
// foreign, and kept byte by byte.
const (
	beginMark = "# BEGIN statefulset-grid-daemon (this block is rewritten; lines outside of it are kept)"
	endMark   = "# END statefulset-grid-daemon"
	// beginPrefix is what makes a line a beginMark: the remark in it may change between versions.
	beginPrefix = "# BEGIN statefulset-grid-daemon"
)

// Content is a hosts file taken apart.
type Content struct {
	// Before and After are the foreign bytes around the block. Before is empty, or ends with a newline.
	Before, After []byte
	// Block has the lines of the block, without the marks and without newlines.
	Block []string
	// Marked is set if the file has a block at all.
	Marked bool
}

// Parse takes a hosts file apart. It takes any bytes.
//
// Of a block that lost its end, the lines that could have been written here are the block; where they stop,
// foreign bytes begin. Of several blocks (a file appended to itself) all lines are ours, and Render makes one
// of them, where the first one is.
//
// A file without any block may be the one that SuperEdge's daemon wrote, which knows no marks. Lines that look
// exactly like its own, for names below domain, are taken over as the block: were they kept as foreign, their
// addresses would be answered for ever.
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

// takeOver moves the lines that SuperEdge's daemon wrote from the foreign bytes of an unmarked file to its
// block.
func (c *Content) takeOver(data []byte, domain string) {
	c.Before, c.After = nil, nil
	for rest := data; len(rest) > 0; {
		line, width := cutLine(rest)
		if isOurs(line, domain) {
			c.Block = append(c.Block, line)
		} else {
			// All of it comes after the block: its end need not be a newline.
			c.After = append(c.After, rest[:width]...)
		}
		rest = rest[width:]
	}
}

// cutLine returns the first line without its newline, and its width with it.
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

// hasEnd reports whether the block that begins before rest is ended before another one begins.
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
	_, ok := parseName(name, domain)
	return ok
}

// Render puts a hosts file together, with these lines as its block. The foreign bytes are those that were
// parsed.
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
