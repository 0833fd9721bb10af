package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// image is what a container begins with.
type image struct {
	// files leads from paths in the image to files or directories of this machine.
	files      map[string]string
	uid, gid   int
	entrypoint []string
}

var (
	copyLine       = regexp.MustCompile(`(?m)^COPY --from=build /out/\S+ (\S+)$`)
	userLine       = regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`)
	entrypointLine = regexp.MustCompile(`(?m)^ENTRYPOINT (\[.*\])$`)
)

// ourImage is the image that a Dockerfile describes after its last FROM, with this program in it.
func ourImage(dockerfile, program string) (*image, error) {
	data, err := os.ReadFile(dockerfile)
	if err != nil {
		return nil, err
	}
	stage := string(data)[strings.LastIndex(string(data), "\nFROM "):]
	path, user := copyLine.FindStringSubmatch(stage), userLine.FindStringSubmatch(stage)
	entrypoint := entrypointLine.FindStringSubmatch(stage)
	if path == nil || user == nil || entrypoint == nil {
		return nil, fmt.Errorf("%s has no COPY, USER or ENTRYPOINT of the known form", dockerfile)
	}
	i := &image{files: map[string]string{path[1]: program}}
	if err := json.Unmarshal([]byte(entrypoint[1]), &i.entrypoint); err != nil {
		return nil, fmt.Errorf("%s: %w", dockerfile, err)
	}
	i.uid, err = strconv.Atoi(user[1])
	gid, gidErr := strconv.Atoi(user[2])
	i.gid = gid
	return i, errors.Join(err, gidErr)
}

// unpack writes the image's files below a directory, and those that a container runtime adds.
func (i *image) unpack(root string) error {
	for path, from := range i.files {
		target := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		info, err := os.Stat(from)
		if err != nil {
			return err
		}
		if info.IsDir() {
			err = os.CopyFS(target, os.DirFS(from))
		} else {
			err = copyProgram(from, target)
		}
		if err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "etc", "hosts"), []byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644)
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
