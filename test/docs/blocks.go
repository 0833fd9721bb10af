package docs

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// block is a fenced block of commands of a page.
type block struct {
	page string
	line int
	// script is what is between the fences, without their indentation.
	script string
	// onNode has it run in the network of a node.
	onNode bool
	// exit is the exit code that it should end with.
	exit int
	// noRun is why it is not run.
	noRun string
}

// name is where the block stands.
func (b block) name() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

var (
	opening   = regexp.MustCompile("^([ \t]*)```([^`]*)$")
	attribute = regexp.MustCompile(`^ *([a-z-]+)=("[^"]*"|[^ "]+)`)
)

// blocksOf finds a page's blocks that begin with ```sh. Errors are about how they are marked.
func blocksOf(page, text string) ([]block, error) {
	var blocks []block
	var current *block
	indent, fenced := "", false
	for i, line := range strings.Split(text, "\n") {
		match := opening.FindStringSubmatch(line)
		switch {
		case match == nil && current != nil:
			current.script += strings.TrimPrefix(line, indent) + "\n"
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
				b, err := parse(block{page: page, line: i + 1}, attributes)
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
func parse(b block, attributes string) (block, error) {
	for strings.TrimSpace(attributes) != "" {
		match := attribute.FindStringSubmatch(attributes)
		if match == nil {
			return b, fmt.Errorf("%s: cannot read %q; it should be name=value", b.name(), attributes)
		}
		attributes = attributes[len(match[0]):]
		value := strings.Trim(match[2], `"`)
		var err error
		switch match[1] {
		case "on":
			if b.onNode = value == "node"; !b.onNode {
				err = fmt.Errorf("%s: on=%s; only on=node is known", b.name(), value)
			}
		case "exit":
			b.exit, err = strconv.Atoi(value)
		case "no-run":
			if b.noRun = value; value == "" {
				err = fmt.Errorf("%s: why is it not run?", b.name())
			}
		default:
			err = fmt.Errorf("%s: %s is not known; there are on, exit and no-run", b.name(), match[1])
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}
