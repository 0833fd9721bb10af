package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// treePath is the PATH of a container of a tree.
const treePath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// writeTree writes an archive with images that all have the same files, those of a directory, and differ in their names
// and in what they start: each of images is NAME:TAG or NAME:TAG=PROGRAM. The layer is not compressed: such an archive
// is for a machine nearby.
func writeTree(o options, images []string) error {
	parts := append(strings.Split(o.platform, "_"), "", "")
	var files bytes.Buffer
	if err := packTree(&files, o.rootfs, o.created); err != nil {
		return fmt.Errorf("--rootfs: %w", err)
	}
	layer := static.NewLayer(files.Bytes(), types.OCIUncompressedLayer)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		name, program, _ := strings.Cut(image, "=")
		made,
			err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
			types.OCIConfigJSON),
			mutate.Addendum{Layer: layer, MediaType: types.OCIUncompressedLayer})
		if err != nil {
			return err
		}
		config, err := made.ConfigFile()
		if err != nil {
			return err
		}
		config = config.DeepCopy()
		config.OS, config.Architecture, config.Variant = parts[0], parts[1], parts[2]
		config.Created = v1.Time{Time: o.created}
		config.Config.Env = []string{treePath}
		if program != "" {
			config.Config.Entrypoint = []string{program}
		}
		if made, err = mutate.ConfigFile(made, config); err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: made, Descriptor: v1.Descriptor{
			Annotations: nameAnnotations(name), Platform: config.Platform(),
		}})
	}
	directory, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	if _, err := layout.Write(directory, index); err != nil {
		return fmt.Errorf("writing the images: %w", err)
	}
	return pack(o.archive, directory, o.created)
}

// nameAnnotations are by what an archive says the name of an image: to containerd all of it, to others the tag.
// containerd takes the name literally, and the kubelet looks for one with a registry.
func nameAnnotations(name string) map[string]string {
	full := name
	if first, _, found := strings.Cut(name, "/"); !found {
		full = "docker.io/library/" + name
	} else if !strings.ContainsAny(first, ".:") && first != "localhost" {
		full = "docker.io/" + name
	}
	return map[string]string{
		"org.opencontainers.image.ref.name": name[strings.LastIndex(name, ":")+1:],
		"io.containerd.image.name":          full,
	}
}

// packTree writes a directory as a layer: files, with their modes, directories and symbolic links.
func packTree(out io.Writer, directory string, created time.Time) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(directory, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || file == directory {
			return err
		}
		info, err := os.Lstat(file)
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(file); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(directory, file); err != nil {
			return err
		}
		if info.IsDir() {
			header.Name += "/"
		}
		// Whoever owns them here, and whenever they were made.
		header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
		header.ModTime, header.AccessTime, header.ChangeTime = created, time.Time{}, time.Time{}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		content, err := os.Open(file) //nolint:gosec // what the caller says
		if err != nil {
			return err
		}
		defer content.Close()
		_, err = io.Copy(w, content)
		return err
	})
	return errors.Join(err, w.Close())
}
