package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file of an archive. Its content is data, or that of the file from.
type entry struct {
	name       string
	executable bool
	data       []byte
	from       string
}

func (e entry) mode() fs.FileMode {
	if e.executable {
		return 0o755
	}
	return 0o644
}

// open returns the content of an entry and its length.
func (e entry) open() (io.ReadCloser, int64, error) {
	if e.from == "" {
		return io.NopCloser(strings.NewReader(string(e.data))), int64(len(e.data)), nil
	}
	file, err := os.Open(e.from)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// tree are the files below a directory, as entries below another.
func tree(directory, below string) ([]entry, error) {
	var entries []entry
	err := filepath.WalkDir(directory, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", file)
		}
		name, err := filepath.Rel(directory, file)
		if err != nil {
			return err
		}
		entries = append(entries, entry{
			name:       path.Join(below, filepath.ToSlash(name)),
			executable: info.Mode()&0o111 != 0,
			from:       file,
		})
		return nil
	})
	return entries, err
}

// writeArchive writes entries, in the order of their names and with one time, as the kind of archive that the file's
// name says: .tar, .tar.gz, .tgz, .zip.
func writeArchive(file string, entries []entry, modified time.Time) error {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	out, err := os.Create(file) //nolint:gosec // a file of the release
	if err != nil {
		return err
	}
	defer out.Close()
	switch {
	case strings.HasSuffix(file, ".zip"):
		err = writeZip(out, entries, modified)
	case strings.HasSuffix(file, ".tar"):
		err = writeTar(out, entries, modified)
	default:
		// The header's fields stay empty: neither a name nor a time, nor the system that it was written on.
		compressed, _ := gzip.NewWriterLevel(out, gzip.BestCompression)
		err = errors.Join(writeTar(compressed, entries, modified), compressed.Close())
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

func writeTar(out io.Writer, entries []entry, modified time.Time) error {
	w := tar.NewWriter(out)
	for _, e := range entries {
		content, size, err := e.open()
		if err != nil {
			return err
		}
		err = w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     e.name,
			Mode:     int64(e.mode()),
			Size:     size,
			ModTime:  modified,
		})
		if err == nil {
			_, err = io.Copy(w, content)
		}
		if err := errors.Join(err, content.Close()); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return w.Close()
}

func writeZip(out io.Writer, entries []entry, modified time.Time) error {
	w := zip.NewWriter(out)
	for _, e := range entries {
		content, _, err := e.open()
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: modified}
		header.SetMode(e.mode())
		file, err := w.CreateHeader(header)
		if err == nil {
			_, err = io.Copy(file, content)
		}
		if err := errors.Join(err, content.Close()); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return w.Close()
}
