package main

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// binaries are what `make cross` builds. Without them there is nothing to test.
const binaries = "../../dist/bin"

// emulators run what this machine's processor cannot.
var emulators = map[string]string{
	"amd64": "qemu-x86_64-static", "arm64": "qemu-aarch64-static", "arm": "qemu-arm-static",
}

// program is what the test must know of a program: the user of its image, and how it runs.
type program struct {
	user int // the group is the same
	args []string
	says string // once it runs
}

var programs = map[string]program{
	"application-grid-wrapper": {
		user: 65532, says: "Serving",
		args: []string{"--kubeconfig=/kubeconfig", "--hostname=node0", "--bind-address=127.0.0.1:0"},
	},
	"statefulset-grid-daemon": { // the directory of the hosts file is root's on every node
		user: 0, says: "Keeping the hosts file",
		args: []string{
			"--kubeconfig=/kubeconfig", "--hostname=node0", "--bind-address=127.0.0.1:0", "--hostpath=/data/hosts",
		},
	},
	"application-grid-controller": {
		user: 65532, says: "Waiting for a CRD",
		args: []string{"--kubeconfig=/kubeconfig", "--health-bind-address=127.0.0.1:0", "--metrics-bind-address=0"},
	},
	"application-grid-hub": {
		user: 65532, says: "Serving securely",
		args: []string{
			"--kubeconfig=/kubeconfig", "--authentication-kubeconfig=/kubeconfig",
			"--authorization-kubeconfig=/kubeconfig", "--authentication-skip-lookup", "--bind-address=127.0.0.1",
		},
	},
}

// must ends a test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func imageOf(t *testing.T, name string) options {
	t.Helper()
	if _, err := os.Stat(binaries); err != nil {
		t.Fatalf("%v: run `make cross` first", err)
	}
	return options{
		name: name, version: "v1.2.3", dockerfile: filepath.Join("../../build", name+".Dockerfile"), binaries: binaries,
		created: time.Unix(1700000000, 0).UTC(), archive: filepath.Join(t.TempDir(), name+".tar"),
	}
}

// TestReproducible: of the same binaries, whenever they were written, come the same bytes.
func TestReproducible(t *testing.T) {
	for name := range programs {
		o := imageOf(t, name)
		first, err := write(o)
		must(t, err)
		sum := sumOf(t, o.archive)
		copied := t.TempDir()
		must(t, os.CopyFS(copied, os.DirFS(binaries)))
		o.binaries, o.archive = copied, filepath.Join(t.TempDir(), "again.tar")
		second, err := write(o)
		must(t, err)
		if first != second || sum != sumOf(t, o.archive) {
			t.Errorf("%s: %s, and then %s", name, first, second)
		}
		t.Log(name, first)
	}
}

func sumOf(t *testing.T, file string) [sha256.Size]byte {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	return sha256.Sum256(data)
}

// TestImages: the archives are valid, say what the Dockerfiles say, and what is in them runs, as the user they name and
// with nothing else around it: the platform of this machine in a changed root, the others emulated.
func TestImages(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test changes the root directory: run it as root")
	}
	for name, program := range programs {
		o := imageOf(t, name)
		if _, err := write(o); err != nil {
			t.Fatal(err)
		}
		index := read(t, o.archive)
		if err := validate.Index(index); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		manifest, err := index.IndexManifest()
		must(t, err)
		var platforms []string
		for _, descriptor := range manifest.Manifests {
			platforms = append(platforms, descriptor.Platform.String())
			t.Run(name+"/"+descriptor.Platform.String(), func(t *testing.T) {
				image, err := index.Image(descriptor.Digest)
				must(t, err)
				check(t, image, o, program.user)
				start(t, image, *descriptor.Platform, name, program)
			})
		}
		if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64", "linux/arm/v7"}) {
			t.Errorf("%s is for %q", name, platforms)
		}
	}
}

// open unpacks an archive, and returns the index of the images in it.
func open(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	directory := t.TempDir()
	file, err := os.Open(archive)
	must(t, err)
	defer file.Close()
	unpack(t, file, directory)
	index, err := layout.ImageIndexFromPath(directory)
	must(t, err)
	return index
}

// read returns the image of all platforms in an archive, which must be the only one.
func read(t *testing.T, archive string) v1.ImageIndex {
	t.Helper()
	outer := open(t, archive)
	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%d images, %v", len(manifest.Manifests), err)
	}
	if tag := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; tag != "v1.2.3" {
		t.Errorf("the tag is %q", tag)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	must(t, err)
	return index
}

// unpack writes the files of a tar, and returns their names.
func unpack(t *testing.T, from io.Reader, directory string) []string {
	t.Helper()
	var names []string
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must(t, err)
		names = append(names, header.Name)
		path := filepath.Join(directory, header.Name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		data, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(path, data, fs.FileMode(header.Mode)))
	}
}

func check(t *testing.T, image v1.Image, o options, user int) {
	t.Helper()
	file, err := image.ConfigFile()
	must(t, err)
	c := file.Config
	if c.User != fmt.Sprintf("%d:%d", user, user) ||
		!slices.Equal(c.Entrypoint, []string{"/usr/local/bin/" + o.name}) ||
		c.Labels["org.opencontainers.image.version"] != o.version ||
		c.Labels["org.opencontainers.image.title"] != o.name || !file.Created.Equal(o.created) {
		t.Errorf("the configuration is %+v, created %s", c, file.Created)
	}
}

// start runs the program of an image: --version, and then without it, until it gets a signal.
func start(t *testing.T, image v1.Image, platform v1.Platform, name string, p program) {
	t.Helper()
	root, err := os.MkdirTemp("", "image-root-") //nolint:usetesting // t.TempDir is closed to the user 65532
	must(t, err)
	defer os.RemoveAll(root)
	content := mutate.Extract(image)
	defer content.Close()
	if names := unpack(t, content, root); !slices.Equal(names, []string{
		"usr/local/bin/" + name, "licenses/LICENSE", "licenses/THIRD_PARTY_NOTICES",
	}) {
		t.Fatalf("in the image are %q", names)
	}
	kubeconfig := `{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x,` +
		` cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: x, context: {cluster: x}}]}`
	for _, err := range []error{
		os.Chmod(root, 0o755),
		os.WriteFile(filepath.Join(root, "kubeconfig"), []byte(kubeconfig), 0o644), // what a cluster mounts
		os.Mkdir(filepath.Join(root, "data"), 0o755), os.Chown(filepath.Join(root, "data"), p.user, p.user),
	} {
		must(t, err)
	}
	command := []string{"/usr/local/bin/" + name}
	if platform.Architecture != runtime.GOARCH { // statically linked, the emulator runs in the changed root too
		emulator, err := exec.LookPath(emulators[platform.Architecture])
		if err != nil {
			t.Fatalf("%v: apt-get install qemu-user-static", err)
		}
		data, err := os.ReadFile(emulator)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(root, "emulator"), data, 0o755))
		command = append([]string{"/emulator"}, command...)
	}
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command(command[0], append(slices.Clone(command[1:]), args...)...)
		cmd.Dir, cmd.Env = "/", []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Chroot: root, Credential: &syscall.Credential{Uid: uint32(p.user), Gid: uint32(p.user)},
		}
		return cmd
	}
	out, err := run("--version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), name+" ") ||
		!strings.Contains(string(out), "linux/"+platform.Architecture) {
		t.Fatalf("--version: %v: %s", err, out)
	}
	t.Logf("%s", out)
	cmd := run(p.args...)
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	hang := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer hang.Stop()
	found := false
	var said strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if !found && strings.Contains(lines.Text(), p.says) {
			found = true
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !found {
		t.Errorf("want %q and an end without an error, got %v:\n%s", p.says, err, said.String())
	}
}
