// Command image makes a container image of a program without a container engine: the image that the program's
// Dockerfile describes after its last FROM, for every platform that it is given a binary of, as an OCI archive. Of the
// same binaries it makes the same bytes.
//
// With --rootfs it makes images of a directory of files instead, all with the same files: NAME:TAG=PROGRAM...
package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// options say what an image is made of.
type options struct {
	// dockerfile describes it; $VERSION there becomes version.
	dockerfile, version string
	// binaries is a directory with a directory per platform: linux_amd64, linux_arm_v7.
	binaries string
	// created is the time that everything in the image bears.
	created time.Time
	// archive is the file to write, tagged name:version; name is the program's, after the registry if there is one.
	archive, name, registry string
	// rootfs is a directory with the files of images for a platform, named as the directories of binaries are.
	rootfs, platform string
}

func main() {
	var o options
	flag.StringVar(&o.name, "name", "", "program, and name of the image")
	flag.StringVar(&o.registry, "registry", "", "what comes before the image's name, such as registry.example.org/edge")
	flag.StringVar(&o.version, "version", "", "version, and tag of the image")
	flag.StringVar(&o.dockerfile, "dockerfile", "", "file that describes the image")
	flag.StringVar(&o.binaries, "binaries", "", "directory with a directory per platform")
	flag.StringVar(&o.archive, "archive", "", "file to write")
	flag.StringVar(&o.rootfs, "rootfs", "",
		"directory with the files of the images that are named as arguments, NAME:TAG=PROGRAM")
	flag.StringVar(&o.platform, "platform", "linux_amd64", "platform of what is in --rootfs")
	flag.Parse()
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(o options, images []string) error {
	ofTree := o.rootfs != "" && len(images) > 0 && o.archive != ""
	if !ofTree && (o.name == "" || o.version == "" || o.dockerfile == "" || o.binaries == "" || o.archive == "") {
		return errors.New("--name, --version, --dockerfile, --binaries and --archive are all needed")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is not seconds since 1970: %w", err)
	}
	o.created = time.Unix(seconds, 0).UTC()
	if ofTree {
		return writeTree(o, images)
	}
	digest, err := write(o)
	if err != nil {
		return err
	}
	fmt.Printf("%s  %s  %s\n", o.archive, o.tagged(), digest)
	return nil
}

// tagged is the image's name with its registry and its tag.
func (o options) tagged() string { return path.Join(o.registry, o.name) + ":" + o.version }

// write makes the image and writes its archive.
func write(o options) (v1.Hash, error) {
	index, err := assemble(o)
	if err != nil {
		return v1.Hash{}, err
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("computing the digest: %w", err)
	}
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: nameAnnotations(o.tagged())},
	})
	directory, err := os.MkdirTemp("", "image-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(directory)
	if _, err := layout.Write(directory, named); err != nil {
		return v1.Hash{}, fmt.Errorf("writing the image: %w", err)
	}
	return digest, pack(o.archive, directory, o.created)
}

// assemble makes the image of all platforms.
func assemble(o options) (v1.ImageIndex, error) {
	described, err := describe(o.dockerfile, o.version)
	if err != nil {
		return nil, err
	}
	platforms, err := os.ReadDir(o.binaries)
	if err != nil {
		return nil, fmt.Errorf("--binaries: %w", err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, entry := range platforms { // in the order of their names
		parts := append(strings.Split(entry.Name(), "_"), "")
		platform := v1.Platform{OS: parts[0], Architecture: parts[1], Variant: parts[2]}
		binary, err := os.ReadFile(filepath.Join(o.binaries, entry.Name(), o.name))
		if err != nil {
			return nil, fmt.Errorf("--binaries: %w", err)
		}
		image, err := assembleFor(platform, described, binary, o.created)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &platform},
		})
	}
	return index, nil
}

// assembleFor makes the image of one platform.
func assembleFor(platform v1.Platform, described *description, binary []byte, created time.Time) (v1.Image, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, file := range append([]content{{described.program, 0o755, binary}}, described.files...) {
		header := &tar.Header{
			Typeflag: tar.TypeReg,
			Name:     strings.TrimPrefix(file.name, "/"),
			Mode:     file.mode,
			Size:     int64(len(file.data)),
			ModTime:  created,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(file.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	files, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer: files, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "COPY " + described.program},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: created}
	config.Config = described.config
	return mutate.ConfigFile(image, config)
}

// content is a file of an image.
type content struct {
	name string
	mode int64
	data []byte
}

// description is what a Dockerfile says of an image.
type description struct {
	config v1.Config
	// program is the path of the program, which comes from another stage.
	program string
	// files are added from the repository.
	files []content
}

// copyFrom reads files of the repository for COPY FILE... DIRECTORY/.
func (d *description) copyFrom(repository string, fields []string) error {
	last := len(fields) - 1
	if last < 1 || !strings.HasSuffix(fields[last], "/") {
		return errors.New("want COPY FILE... DIRECTORY/")
	}
	for _, name := range fields[:last] {
		data, err := os.ReadFile(filepath.Join(repository, name)) //nolint:gosec // what the Dockerfile says
		if err != nil {
			return err
		}
		d.files = append(d.files, content{fields[last] + path.Base(name), 0o644, data})
	}
	return nil
}

// describe reads of a Dockerfile what its last stage says: the configuration of the image, and its files. An
// instruction that it does not know is an error, so that the image cannot be another one than Docker's.
func describe(dockerfile, version string) (*description, error) {
	data, err := os.ReadFile(dockerfile) //nolint:gosec // what the caller says
	if err != nil {
		return nil, fmt.Errorf("--dockerfile: %w", err)
	}
	d := &description{config: v1.Config{Labels: map[string]string{}}}
	config := &d.config
	last := strings.LastIndex("\n"+string(data), "\nFROM ")
	if last < 0 {
		return nil, fmt.Errorf("%s has no FROM", dockerfile)
	}
	lines := bufio.NewScanner(bytes.NewReader(data[last:]))
	for lines.Scan() {
		instruction, rest, _ := strings.Cut(lines.Text(), " ")
		switch instruction {
		case "", "ARG":
		case "FROM":
			if rest != "scratch" {
				return nil, fmt.Errorf("%s: the last stage is from %s, not from scratch", dockerfile, rest)
			}
		case "COPY":
			fields := strings.Fields(rest)
			if len(fields) > 0 && !strings.HasPrefix(fields[0], "--") {
				if err := d.copyFrom(filepath.Join(filepath.Dir(dockerfile), ".."), fields); err != nil {
					return nil, fmt.Errorf("%s: %q: %w", dockerfile, lines.Text(), err)
				}
				continue
			}
			if len(fields) != 3 || !strings.HasPrefix(fields[0], "--from=") || d.program != "" {
				return nil, fmt.Errorf("%s: want one COPY --from=STAGE BINARY FILE, got %q", dockerfile, lines.Text())
			}
			d.program = path.Clean(fields[2])
		case "LABEL":
			key, value, _ := strings.Cut(rest, "=")
			value, err := strconv.Unquote(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", dockerfile, lines.Text(), err)
			}
			config.Labels[key] = strings.ReplaceAll(value, "$VERSION", version)
		case "USER":
			config.User = rest
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &config.Entrypoint); err != nil {
				return nil, fmt.Errorf("%s: %q: %w", dockerfile, lines.Text(), err)
			}
		default:
			return nil, fmt.Errorf("%s: the instruction %q is not known here", dockerfile, instruction)
		}
	}
	if d.program == "" || config.User == "" || !slices.Equal(config.Entrypoint, []string{d.program}) {
		return nil, fmt.Errorf("%s: the last stage has to COPY one program, to be its ENTRYPOINT, and to have a USER",
			dockerfile)
	}
	return d, lines.Err()
}

// pack writes a directory as a tar file, whose bytes depend on the files' names and contents only.
func pack(archive, directory string, created time.Time) error {
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil { //nolint:gosec // as any directory of a build
		return err
	}
	out, err := os.Create(archive) //nolint:gosec // what the caller says
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	err = filepath.WalkDir(directory, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(file) //nolint:gosec // our own
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, file)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg,
			Name:     name,
			Mode:     0o644,
			Size:     int64(len(data)),
			ModTime:  created,
		}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err := errors.Join(err, w.Close(), out.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", archive, err)
	}
	return nil
}
