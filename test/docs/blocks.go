package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Block is a fenced block of commands of a page.
type Block struct {
	Page string
	Line int
	// Script is what is between the fences, without their indentation.
	Script string
	// OnNode has it run in the network of a node.
	OnNode bool
	// Exit is the exit code that it should end with.
	Exit int
	// NoRun is why it is not run.
	NoRun string
}

// Name is the page and the line of the block.
func (b Block) Name() string { return fmt.Sprintf("%s:%d", b.Page, b.Line) }

var (
	opening   = regexp.MustCompile("^([ \t]*)```([^`]*)$")
	attribute = regexp.MustCompile(`^ *([a-z-]+)=("[^"]*"|[^ "]+)`)
)

// BlocksOf finds a page's blocks that begin with ```sh. Errors are about how they are marked.
func BlocksOf(page, text string) ([]Block, error) {
	var blocks []Block
	var current *Block
	indent, fenced := "", false
	for i, line := range strings.Split(text, "\n") {
		match := opening.FindStringSubmatch(line)
		switch {
		case match == nil && current != nil:
			current.Script += strings.TrimPrefix(line, indent) + "\n"
		case match == nil:
		case fenced:
			fenced = false
			if current != nil {
				blocks = append(blocks, *current)
				current = nil
			}
		default:
			fenced, indent = true, match[1]
			language, attributes, _ := strings.Cut(match[2], " ")
			switch language {
			case "sh":
				b, err := parse(Block{Page: page, Line: i + 1}, attributes)
				if err != nil {
					return nil, err
				}
				current = &b
			case "bash", "shell", "zsh":
				return nil, fmt.Errorf("%s:%d: commands stand in blocks of sh, not of %s", page, i+1, language)
			}
		}
	}
	if fenced {
		return nil, fmt.Errorf("%s: a block has no end", page)
	}
	return blocks, nil
}

// parse reads the attributes of a block.
func parse(b Block, attributes string) (Block, error) {
	for strings.TrimSpace(attributes) != "" {
		match := attribute.FindStringSubmatch(attributes)
		if match == nil {
			return b, fmt.Errorf("%s: cannot read %q; it should be name=value", b.Name(), attributes)
		}
		attributes = attributes[len(match[0]):]
		value := strings.Trim(match[2], `"`)
		var err error
		switch match[1] {
		case "on":
			if b.OnNode = value == "node"; !b.OnNode {
				err = fmt.Errorf("%s: on=%s; only on=node is known", b.Name(), value)
			}
		case "exit":
			b.Exit, err = strconv.Atoi(value)
		case "no-run":
			if b.NoRun = value; value == "" {
				err = fmt.Errorf("%s: why is it not run?", b.Name())
			}
		default:
			err = fmt.Errorf("%s: %s is not known; there are on, exit and no-run", b.Name(), match[1])
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}
