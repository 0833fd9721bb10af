package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/docs/docstest"
)

// workflow is what is read of a workflow of GitHub's.
type workflow struct {
	// On is what it runs on; "on" is a boolean in YAML 1.1, which JSON calls true.
	On          map[string]any    `json:"true"`
	Permissions map[string]string `json:"permissions"`
	Jobs        map[string]struct {
		RunsOn  string `json:"runs-on"`
		Timeout int    `json:"timeout-minutes"`
		Steps   []struct {
			Uses string `json:"uses"`
			Run  string `json:"run"`
		} `json:"steps"`
	} `json:"jobs"`
}

var (
	pinned = regexp.MustCompile(`(?m)^ *- uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	makes  = regexp.MustCompile(`(?:^|\s)make((?: +(?:--?[a-z-]+|[A-Z]+="?\$?\w*"?))*)((?: +[a-z][a-z0-9-]*)+)`)
	target = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):(?:[^=]|$)`)
)

// TestWorkflows: they are YAML, use only targets and scripts that exist, only actions that are pinned to a commit, and
// run no text that a stranger can write.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	root := docstest.Root(t)
	targets := map[string]bool{}
	for _, match := range target.FindAllStringSubmatch(docstest.Page(t, "Makefile"), -1) {
		targets[match[1]] = true
	}
	if !targets["verify"] || !targets["release-twice"] {
		t.Fatalf("the Makefile was not understood: %v", targets)
	}
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.yaml"))
	if err != nil || len(files) != 3 {
		t.Fatalf("%q, %v", files, err)
	}
	ran := map[string]bool{}
	for _, file := range files {
		name := filepath.Base(file)
		text := docstest.Page(t, ".github/workflows/"+name)
		var w workflow
		if err := yaml.Unmarshal([]byte(text), &w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(w.On) == 0 || len(w.Jobs) == 0 || !slices.Equal([]string{w.Permissions["contents"]}, []string{"read"}) ||
			len(w.Permissions) != 1 {
			t.Errorf("%s: on %v, %d jobs, by default permissions %v", name, w.On, len(w.Jobs), w.Permissions)
		}
		if w.On["pull_request_target"] != nil {
			t.Errorf("%s runs what a stranger sends with the rights of this repository", name)
		}
		uses := 0
		for id, job := range w.Jobs {
			if job.Timeout == 0 || job.RunsOn == "" || strings.HasSuffix(job.RunsOn, "-latest") {
				t.Errorf("%s: job %s has no timeout, or runs on %q", name, id, job.RunsOn)
			}
			for _, step := range job.Steps {
				if step.Uses != "" {
					uses++
				}
				if strings.Contains(step.Run, "${{") {
					t.Errorf("%s: an expression in a script, which may be of anybody's making: %s", name, step.Run)
				}
				for _, script := range scriptTargets(step.Run) {
					ran[script] = true
					if !targets[script] {
						t.Errorf("%s runs `make %s`, which there is not", name, script)
					}
				}
				if strings.Contains(step.Run, ".ci/run") {
					ran[".ci/run"] = true
				}
			}
		}
		if n := len(pinned.FindAllString(text, -1)); n != uses {
			t.Errorf("%s: %d of %d actions are pinned by their commit, with their version as a comment", name, n, uses)
		}
	}
	script := docstest.Page(t, ".ci/run")
	for _, name := range scriptTargets(script) {
		if !targets[name] {
			t.Errorf(".ci/run runs `make %s`, which there is not", name)
		}
	}
	if info, err := os.Stat(filepath.Join(root, ".ci/run")); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf(".ci/run: %v", err)
	}
	for _, name := range []string{".ci/run", "test-release", "test-images", "release-twice", "push"} {
		if !ran[name] {
			t.Errorf("no workflow runs %s", name)
		}
	}
}

// scriptTargets are the targets that a script makes.
func scriptTargets(script string) []string {
	var names []string
	for _, match := range makes.FindAllStringSubmatch(script, -1) {
		names = append(names, strings.Fields(match[2])...)
	}
	return names
}
