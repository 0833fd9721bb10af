package kubeadm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	pauseImage = "registry.k8s.io/pause:3.10.2"
	// EchoImage answers HTTP requests; see test/cmd/pod.
	EchoImage = "registry.example.org/echo:v1"
)

// ruleTools are the host's programs that kube-proxy starts.
var ruleTools = []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save",
	"ip6tables-restore", "nft", "conntrack"}

// MakeImages writes an archive with the images that kubeadm wants on a node and EchoImage. bin has components, pod and
// image.
func MakeImages(ctx context.Context, bin, archive string) error {
	tree, err := os.MkdirTemp(filepath.Dir(archive), "tree-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := fillTree(ctx, tree, bin); err != nil {
		return fmt.Errorf("gathering the files of images: %w", err)
	}
	components := filepath.Join(bin, "components")
	version, err := exec.CommandContext(ctx, components, "kubeadm", "version", "-o", "short").Output() //nolint:gosec // the caller's
	if err != nil {
		return fmt.Errorf("asking kubeadm's version: %w", err)
	}
	list, err := exec.CommandContext(ctx, components, "kubeadm", "config", "images", "list", //nolint:gosec // the caller's
		"--kubernetes-version", strings.TrimSpace(string(version))).Output()
	if err != nil {
		return fmt.Errorf("asking kubeadm which images it wants: %w", err)
	}
	args := []string{"--rootfs", tree, "--archive", archive, EchoImage + "=/usr/local/bin/echo",
		pauseImage + "=/usr/local/bin/pause"}
	for _, image := range strings.Fields(string(list)) {
		name := strings.TrimPrefix(image, "registry.k8s.io/")
		switch {
		case image == pauseImage:
		case strings.HasPrefix(name, "pause:"):
			return fmt.Errorf("kubeadm wants %s, containerd is configured for %s", image, pauseImage)
		case strings.HasPrefix(name, "coredns/"): // kubeadm gives arguments, and no command
			args = append(args, image+"=/usr/local/bin/coredns")
		default:
			args = append(args, image)
		}
	}
	command := exec.CommandContext(ctx, filepath.Join(bin, "image"), args...) //nolint:gosec // the caller's
	command.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("making images: %w: %s", err, output)
	}
	return nil
}

// fillTree gathers the files of the images: all have the same.
func fillTree(ctx context.Context, tree, bin string) error {
	programs := filepath.Join(tree, "usr/local/bin")
	for _, dir := range []string{programs, filepath.Join(tree, "tmp"), filepath.Join(tree, "etc")} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as in any image
			return err
		}
	}
	for program, names := range map[string][]string{
		"components": {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns",
			"kubectl"},
		"pod": {"pause", "echo"},
	} {
		if err := copyFile(filepath.Join(bin, program), filepath.Join(programs, program)); err != nil {
			return err
		}
		for _, name := range names {
			if err := os.Symlink(program, filepath.Join(programs, name)); err != nil {
				return err
			}
		}
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		return err
	}
	return copyWithLibraries(ctx, tree, append(extensions, ruleToolPaths()...))
}

func ruleToolPaths() []string {
	paths := make([]string, 0, len(ruleTools))
	for _, tool := range ruleTools {
		paths = append(paths, "/usr/sbin/"+tool)
	}
	return paths
}

// copyWithLibraries copies files of the host into the tree, with the libraries that they are linked with.
func copyWithLibraries(ctx context.Context, tree string, files []string) error {
	wanted := map[string]bool{}
	for _, file := range files {
		wanted[file] = true
		output, err := exec.CommandContext(ctx, "ldd", file).Output() //nolint:gosec // a file of the host
		if err != nil {
			return fmt.Errorf("ldd %s: %w", file, err)
		}
		for _, field := range strings.Fields(string(output)) {
			if strings.HasPrefix(field, "/") {
				wanted[field] = true
			}
		}
	}
	for file := range wanted {
		target := filepath.Join(tree, file)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil { //nolint:gosec // as in any image
			return err
		}
		if err := copyFile(file, target); err != nil {
			return err
		}
	}
	return nil
}
