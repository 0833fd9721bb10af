package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestArchivesDependOnContentOnly: of the same content come the same bytes, in whatever order, whenever written, and
// wherever it lies.
func TestArchivesDependOnContentOnly(t *testing.T) {
	for _, kind := range []string{".tar", ".tar.gz", ".tgz", ".zip"} {
		var made [2][]byte
		for i := range made {
			directory := t.TempDir()
			file := filepath.Join(directory, "program")
			must(t, os.WriteFile(file, []byte("content"), 0o600+os.FileMode(i)*0o100))
			must(t, os.Chtimes(file, time.Unix(int64(i), 0), time.Unix(int64(i), 0)))
			entries := []entry{
				{name: "bin/program", executable: true, from: file}, {name: "README", data: []byte("text")},
			}
			if i == 1 {
				entries[0], entries[1] = entries[1], entries[0]
			}
			archive := filepath.Join(directory, "archive"+kind)
			err := writeArchive(archive, entries, time.Unix(1700000000, 0).UTC())
			must(t, err)
			if made[i], err = os.ReadFile(archive); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(made[0], made[1]) || len(made[0]) == 0 {
			t.Errorf("%s: %d bytes, and then %d others", kind, len(made[0]), len(made[1]))
		}
	}
	if err := writeArchive(filepath.Join(t.TempDir(), "a.tar"), []entry{{name: "a", from: "/no/such/file"}},
		time.Unix(0, 0)); err == nil {
		t.Error("a file that is missing is no error")
	}
}

// TestCompare: a difference between two releases is named.
func TestCompare(t *testing.T) {
	write := func(files map[string]string) string {
		directory := t.TempDir()
		for name, content := range files {
			must(t, os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600))
		}
		return directory
	}
	first := write(map[string]string{"a": "1", "b": "2"})
	if n, err := compare(first, write(map[string]string{"a": "1", "b": "2"})); n != 2 || err != nil {
		t.Errorf("equal ones: %d, %v", n, err)
	}
	for want, files := range map[string]map[string]string{
		"b differs":              {"a": "1", "b": "3"},
		"b was made the first":   {"a": "1"},
		"c was made the second":  {"a": "1", "b": "2", "c": "3"},
		"a was made the first t": {},
	} {
		if _, err := compare(first, write(files)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want something of %q", err, want)
		}
	}
	if _, err := compare(t.TempDir(), t.TempDir()); err == nil {
		t.Error("two times nothing is equal")
	}
}
