package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sumsFile has the checksums of the other files in its directory, in the format of sha256sum.
const sumsFile = "SHA256SUMS"

// checksums writes those of all other files of the release.
func (r *release) checksums() error {
	var b bytes.Buffer
	for _, name := range slices.Sorted(slices.Values(r.written)) {
		sum, err := sumOf(filepath.Join(r.output, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s  %s\n", sum, name)
	}
	return os.WriteFile(r.file(sumsFile), b.Bytes(), 0o644) //nolint:gosec // for everybody to read
}

// sumsOf are the checksums of entries of an archive, by their names in the directory that all of them are in.
func sumsOf(entries []entry, below string) ([]byte, error) {
	var lines []string
	for _, e := range entries {
		content, _, err := e.open()
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		_, err = io.Copy(hash, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", hash.Sum(nil), strings.TrimPrefix(e.name, below)))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[2*sha256.Size:], b[2*sha256.Size:]) })
	return []byte(strings.Join(lines, "")), nil
}
