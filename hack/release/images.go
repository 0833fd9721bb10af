package main

import (
	"archive/tar"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// imagesFile lists the images of a release, a line each: NAME:TAG@DIGEST.
const imagesFile = "images.txt"

// image is the name of a program's image, with its registry and its tag.
func (r *release) image(program string) string {
	return path.Join(r.registry, program) + ":" + r.version
}

// imageArchive is the name of an image's archive in the release.
func imageArchive(program, version string) string {
	return fmt.Sprintf("%s_%s_image.tar", program, version)
}

// imagePrograms are the programs that there are archives of images of.
func (r *release) imagePrograms() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(r.images, "*.tar"))
	if err != nil {
		return nil, fmt.Errorf("--images %s: %w", r.images, err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("--images: found no archive in %s", r.images)
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(filepath.Base(file), ".tar")
	}
	return files, nil
}

// imageArchives takes over the archives of images, with a bill of materials each, and lists their digests.
func (r *release) imageArchives() error {
	of, err := r.imagePrograms()
	if err != nil {
		return err
	}
	names, err := platforms(r.binaries)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, program := range of {
		archive := imageArchive(program, r.version)
		if err := copyFile(r.file(archive), filepath.Join(r.images, program+".tar")); err != nil {
			return err
		}
		described, err := imageIn(filepath.Join(r.output, archive))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s@%s\n", r.image(program), described.Digest)
		var binaries []string
		for _, platform := range names {
			binaries = append(binaries, filepath.Join(r.binaries, platform, program))
		}
		if err := r.billOfMaterials(archive, binaries); err != nil {
			return err
		}
	}
	return os.WriteFile(r.file(imagesFile), []byte(list.String()), 0o644) //nolint:gosec // for everybody to read
}

// imageIn describes the image of all platforms in an OCI archive: its digest, and its names as annotations.
func imageIn(archive string) (v1.Descriptor, error) {
	directory, err := unpackImage(archive)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("%s: %w", archive, err)
	}
	defer os.RemoveAll(directory)
	_, described, err := readImage(archive, directory)
	return described, err
}

// readImage returns the one image of all platforms in an archive that is unpacked, and what the archive says of it.
func readImage(archive, directory string) (v1.ImageIndex, v1.Descriptor, error) {
	outer, err := layout.ImageIndexFromPath(directory)
	if err != nil {
		return nil, v1.Descriptor{}, fmt.Errorf("%s: %w", archive, err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		return nil, v1.Descriptor{}, fmt.Errorf("%s: %w", archive, err)
	}
	if len(manifest.Manifests) != 1 {
		return nil, v1.Descriptor{}, fmt.Errorf("%s has %d images", archive, len(manifest.Manifests))
	}
	described := manifest.Manifests[0]
	index, err := outer.ImageIndex(described.Digest)
	if err != nil {
		return nil, v1.Descriptor{}, fmt.Errorf("%s: %w", archive, err)
	}
	return index, described, nil
}

// unpackImage writes the files of an archive into a directory of its own.
func unpackImage(archive string) (string, error) {
	file, err := os.Open(archive) //nolint:gosec // a file of the release
	if err != nil {
		return "", err
	}
	defer file.Close()
	directory, err := os.MkdirTemp("", "image-")
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(directory) // a name of the archive cannot lead out of it
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(directory))
	}
	defer root.Close()
	err = unpack(root, tar.NewReader(file))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(directory))
	}
	return directory, nil
}

func unpack(root *os.Root, r *tar.Reader) error {
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := root.MkdirAll(path.Dir(header.Name), 0o755); err != nil {
			return err
		}
		out, err := root.Create(header.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, r)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}

// push pushes the images of a release to the registry that their names have, and prints each as NAME@DIGEST, which is
// what is signed.
func push(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("push", flag.ContinueOnError)
	directory := f.String("release", "dist/release", "directory of the release")
	insecure := f.Bool("insecure", false, "the registry speaks plain HTTP")
	if err := f.Parse(args); err != nil {
		return err
	}
	list, err := os.ReadFile(filepath.Join(*directory, imagesFile))
	if err != nil {
		return err
	}
	var options []name.Option
	if *insecure {
		options = append(options, name.Insecure)
	}
	for line := range strings.Lines(string(list)) {
		tagged, digest, _ := strings.Cut(strings.TrimSpace(line), "@")
		if !strings.Contains(tagged, "/") {
			return fmt.Errorf("%s has no registry: make the release with REGISTRY=registry.example.org", tagged)
		}
		tag, err := name.NewTag(tagged, options...)
		if err != nil {
			return err
		}
		archive := filepath.Join(*directory, imageArchive(path.Base(tag.RepositoryStr()), tag.TagStr()))
		if err := pushArchive(ctx, archive, digest, tag); err != nil {
			return fmt.Errorf("pushing %s: %w", tagged, err)
		}
		fmt.Printf("%s@%s\n", tag.Context(), digest)
	}
	return nil
}

func pushArchive(ctx context.Context, archive, digest string, tag name.Tag) error {
	directory, err := unpackImage(archive)
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	index, got, err := readImage(archive, directory)
	if err != nil {
		return err
	}
	if got.Digest.String() != digest {
		return fmt.Errorf("the archive has the image %s, and %s says %s", got.Digest, imagesFile, digest)
	}
	return remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// copyFile copies a file to its name in the release.
func copyFile(to, from string) error {
	in, err := os.Open(from) //nolint:gosec // a file of the build
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to) //nolint:gosec // a file of the release
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
