package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestReplace: the new file has its content and mode, and what fails leaves the old one and nothing else.
func TestReplace(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken on purpose")
	write := func(f *os.File) error {
		_, err := f.WriteString("new")
		return err
	}
	for name, test := range map[string]struct {
		present bool
		write   func(*os.File) error
		check   func() error
		want    string
		err     error
	}{
		"there was none": {write: write, want: "new"},
		"there was one":  {present: true, write: write, want: "new"},
		"a failed write": {
			present: true, write: func(f *os.File) error { _, _ = f.WriteString("ne"); return broken }, want: "old",
			err: broken,
		},
		"a failed check": {
			present: true, write: write, check: func() error { return broken }, want: "old", err: broken,
		},
		"a closed file": {
			present: true, write: func(f *os.File) error { return f.Close() }, want: "old", err: os.ErrClosed,
		},
		"a file that has gone": {
			present: true, write: func(f *os.File) error { return os.Remove(f.Name()) }, want: "old",
			err: fs.ErrNotExist,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			if test.present {
				if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			aside, err := os.CreateTemp(filepath.Dir(path), "aside-")
			if err != nil {
				t.Fatal(err)
			}
			err = Replace(path, aside, func() error {
				return errors.Join(aside.Chmod(0o640), test.write(aside))
			}, func() error {
				if test.check == nil {
					return nil
				}
				return test.check()
			})
			if !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			if got, err := os.ReadFile(path); string(got) != test.want {
				t.Errorf("the file is %q, %v", got, err)
			}
			if info, err := os.Stat(path); test.err == nil && (err != nil || info.Mode().Perm() != 0o640) {
				t.Errorf("%v, %v", info, err)
			}
			if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
				t.Errorf("files are left: %v", entries)
			}
		})
	}
}
