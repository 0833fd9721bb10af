// Package page follows a page of docs/ as an operator would: it runs the commands that the page shows, in a directory
// with the repository's manifests. Only tests import it.
package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/application-grid/application-grid/test/docs"
	"github.com/application-grid/application-grid/test/suite"
)

// Reader is who follows a page.
type Reader struct {
	suite.Test
	// Directory is where commands run. It has the repository's manifests.
	Directory   string
	environment []string
	name, text  string // of the page that is open
}

// Open opens a page of docs/. Its commands have this environment besides that of the test.
func Open(test suite.Test, name string, environment ...string) *Reader {
	test.Helper()
	r := (&Reader{Test: test, Directory: test.TempDir(), environment: environment}).Reading(name)
	r.Must(os.CopyFS(filepath.Join(r.Directory, "manifests"), os.DirFS(filepath.Join(suite.Repository(r), "manifests"))))
	return r
}

// Reading is the same reader with another page open.
func (r *Reader) Reading(name string) *Reader {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(suite.Repository(r), "docs", name)) //nolint:gosec // the test names it
	r.Must(err)
	other := *r
	other.name, other.text = name, string(text)
	return &other
}

// section is the text of the page from this heading to the next of its level.
func (r *Reader) section(heading string) string {
	r.Helper()
	_, text, found := strings.Cut("\n"+r.text, "\n"+heading+"\n")
	if !found {
		r.Fatalf("%s has no %q", r.name, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

var fencedYAML = regexp.MustCompile("(?s)\n( *)```yaml\n(.*?\n) *```")

// yaml are the blocks of YAML below the heading, without their indentation.
func (r *Reader) yaml(heading string) []string {
	r.Helper()
	matches := fencedYAML.FindAllStringSubmatch(r.section(heading), -1)
	blocks := make([]string, len(matches))
	for i, match := range matches {
		blocks[i] = strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:]
	}
	return blocks
}

// YAML is the block of YAML below the heading that has this text in it.
func (r *Reader) YAML(heading, text string) string {
	r.Helper()
	for _, block := range r.yaml(heading) {
		if strings.Contains(block, text) {
			return block
		}
	}
	r.Fatalf("%s: %s has no YAML with %q", r.name, heading, text)
	return ""
}

// WriteFiles writes the files that the page shows below the heading: blocks of YAML whose first line is a comment with
// the file's name.
func (r *Reader) WriteFiles(heading string) {
	r.Helper()
	for _, block := range r.yaml(heading) {
		comment, content, _ := strings.Cut(block, "\n")
		name, found := strings.CutPrefix(comment, "# ")
		if file := filepath.Join(r.Directory, name); found && !strings.Contains(name, " ") {
			r.Must(os.MkdirAll(filepath.Dir(file), 0o755)) //nolint:gosec // the test's directory
			r.Must(os.WriteFile(file, []byte(content), 0o600))
		}
	}
}

// Blocks are the blocks of commands below the heading.
func (r *Reader) Blocks(heading string) []docs.Block {
	r.Helper()
	blocks, err := docs.BlocksOf(r.name, r.section(heading))
	r.Must(err)
	if len(blocks) == 0 {
		r.Fatalf("%s has no commands below %q", r.name, heading)
	}
	return blocks
}

// Commands is the block of commands below the heading that has this text in it.
func (r *Reader) Commands(heading, text string) string {
	r.Helper()
	for _, block := range r.Blocks(heading) {
		if strings.Contains(block.Script, text) {
			return block.Script
		}
	}
	r.Fatalf("%s: %s has no commands with %q", r.name, heading, text)
	return ""
}

// Follow runs the block of commands below the heading that has this text in it, as it is on the page.
func (r *Reader) Follow(heading, text string) string {
	r.Helper()
	return r.Shell(r.Commands(heading, text))
}

// Shell runs commands, and ends the test if one fails.
func (r *Reader) Shell(script string) string {
	r.Helper()
	command := exec.CommandContext(r.Context(), "bash", "-euo", "pipefail", "-c", script) //nolint:gosec // the page's
	command.Dir = r.Directory
	command.Env = append(append(os.Environ(), "HOME="+r.Directory), r.environment...)
	begin := time.Now()
	output, err := command.CombinedOutput()
	if err != nil {
		r.Fatalf("%v:\n%s\n%s", err, script, output)
	}
	r.Logf("%.1f s\n%s\n%s", time.Since(begin).Seconds(), strings.TrimSpace(script), output)
	return string(output)
}
