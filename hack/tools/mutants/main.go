// Mutants judges what gremlins has found: which changes of the code no test has noticed.
//
//	mutants LIST PACKAGE=RESULT.json...
//
// LIST excuses changes that no test could notice. Its lines have a file, a mutator, the code of the line and the
// reason, with tabs between; a line number would change with every edit above it. Mutants fails if the tests of a
// package notice too few changes, if an overlooked change is not in LIST, or if LIST excuses one that was noticed or is
// gone.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// least is the percentage of the changes, in lines that a package's tests run, that these tests have to notice.
const least = 90

// result is what is read of gremlins' output.
type result struct {
	Files []struct {
		Name      string `json:"file_name"`
		Mutations []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
			Line   int    `json:"line"`
		} `json:"mutations"`
	} `json:"files"`
}

// mutant identifies a change by the code of its line.
type mutant struct{ file, mutator, code string }

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: mutants LIST PACKAGE=RESULT.json...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(list string, results []string) error {
	excused, err := readList(list)
	if err != nil {
		return err
	}
	var problems []error
	for _, argument := range results {
		dir, file, _ := strings.Cut(argument, "=")
		data, err := os.ReadFile(file) //nolint:gosec // the file that the caller names
		if err != nil {
			return fmt.Errorf("reading gremlins' result: %w", err)
		}
		var found result
		if err := json.Unmarshal(data, &found); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		text, err := judge(dir, found, excused)
		fmt.Println(text)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func readList(name string) (map[mutant]bool, error) {
	data, err := os.ReadFile(name) //nolint:gosec // the file that the caller names
	if err != nil {
		return nil, fmt.Errorf("reading the excused mutants: %w", err)
	}
	excused := map[mutant]bool{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, "\t")
		if len(parts) != 4 || parts[3] == "" {
			return nil, fmt.Errorf("%s: %q is not FILE, MUTATOR, CODE and REASON with tabs between", name, line)
		}
		excused[mutant{parts[0], parts[1], parts[2]}] = true
	}
	return excused, nil
}

// judge says how many changes of a package were noticed. The error says which were overlooked, if that is too many.
func judge(dir string, found result, excused map[mutant]bool) (string, error) {
	killed, lived, uncovered := 0, 0, 0
	overlooked := map[mutant]int{} // the line
	for _, file := range found.Files {
		name := path.Join(dir, file.Name)
		data, err := os.ReadFile(name) //nolint:gosec // a file of the package
		if err != nil {
			return "", fmt.Errorf("reading the code: %w", err)
		}
		lines := strings.Split(string(data), "\n")
		for _, m := range file.Mutations {
			switch m.Status {
			case "KILLED", "TIMED OUT":
				killed++
			case "LIVED":
				lived++
				at := mutant{name, m.Type, strings.TrimSpace(lines[m.Line-1])}
				overlooked[at] = m.Line
			case "NOT COVERED":
				uncovered++
			}
		}
	}
	var problems []error
	for at, line := range overlooked {
		if !excused[at] {
			problems = append(problems,
				fmt.Errorf("%s:%d: no test notices %s in: %s", at.file, line, at.mutator, at.code))
		}
	}
	for at := range excused {
		if path.Dir(at.file) == dir && overlooked[at] == 0 {
			problems = append(problems,
				fmt.Errorf("%s: %s is excused and was noticed, or is gone: %s", at.file, at.mutator, at.code))
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	percent := 100.0
	if killed+lived > 0 {
		percent = 100 * float64(killed) / float64(killed+lived)
	}
	if percent < least {
		problems = append(problems, fmt.Errorf("%s: its tests notice less than %d %%", dir, least))
	}
	return fmt.Sprintf("%s: %d of %d changes noticed (%.0f %%), %d in lines that its own tests do not run", dir, killed,
		killed+lived, percent, uncovered), errors.Join(problems...)
}
