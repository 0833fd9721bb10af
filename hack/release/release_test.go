package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/xeipuuv/gojsonschema"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"
)

// made is what `make test-release` has made. Without it there is nothing to test.
const made = "../../dist/release"

// must ends a test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// versionMade is the version of what was made.
func versionMade(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(made, krewFile))
	if err != nil {
		t.Fatalf("%v: run `make test-release`", err)
	}
	var plugin krewPlugin
	must(t, yaml.UnmarshalStrict(data, &plugin))
	return plugin.Spec.Version
}

// names are the files of the release.
func names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(made)
	if err != nil {
		t.Fatalf("%v: run `make test-release`", err)
	}
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// binary is a program of bin/, which `make test-release` builds.
func binary(t *testing.T, name string) string {
	t.Helper()
	directory := os.Getenv("BIN")
	if directory == "" {
		directory = "../../bin"
	}
	path, err := filepath.Abs(filepath.Join(directory, name))
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `make test-release`", err)
	}
	return path
}

// output runs a command and returns what it prints.
func output(t *testing.T, dir string, env []string, command string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %q: %w\n%s", command, args, err, out)
	}
	return string(out), err
}

// extract unpacks an archive of the release into a directory.
func extract(t *testing.T, archive string) string {
	t.Helper()
	directory := t.TempDir()
	data, err := os.ReadFile(filepath.Join(made, archive))
	must(t, err)
	write := func(file string, mode os.FileMode, content io.Reader) {
		t.Helper()
		if !filepath.IsLocal(file) {
			t.Fatalf("%s has %s", archive, file)
		}
		path := filepath.Join(directory, file)
		text, err := io.ReadAll(content)
		must(t, errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, mode)))
	}
	if strings.HasSuffix(archive, ".zip") {
		r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		must(t, err)
		for _, file := range r.File {
			content, err := file.Open()
			must(t, err)
			write(file.Name, file.Mode(), content)
		}
		return directory
	}
	var stream io.Reader = bytes.NewReader(data)
	if !strings.HasSuffix(archive, ".tar") {
		if stream, err = gzip.NewReader(stream); err != nil {
			t.Fatal(err)
		}
	}
	for r := tar.NewReader(stream); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return directory
		}
		must(t, err)
		if header.Uid != 0 || header.Uname != "" || header.ModTime.IsZero() {
			t.Errorf("%s says of %s by whom and when it was made: %+v", archive, header.Name, header)
		}
		write(header.Name, header.FileInfo().Mode(), r)
	}
}

// TestWhatIsThere: the files that docs/dev/release.md lists are there, and sha256sum knows all of them.
func TestWhatIsThere(t *testing.T) {
	version, all := versionMade(t), names(t)
	want := []string{
		"SHA256SUMS", "grid.yaml", "images.txt", "provenance.intoto.json",
		chartName(version), "application-grid_" + version + "_airgap.tar",
		"application-grid_" + version + "_manifests.tar.gz",
	}
	for _, program := range inImages {
		want = append(want, imageArchive(program, version), imageArchive(program, version)+".cdx.json")
	}
	platform := "linux_" + runtime.GOARCH
	want = append(want, pluginArchive(version, platform), pluginArchive(version, platform)+".cdx.json")
	archive := fmt.Sprintf("application-grid_%s_linux_%s.tar.gz", version, runtime.GOARCH)
	want = append(want, archive, archive+".cdx.json")
	for _, file := range want {
		if !slices.Contains(all, file) {
			t.Errorf("there is no %s", file)
		}
	}
	if out, err := output(t, made, nil, "sha256sum", "--check", "--strict", sumsFile); err != nil ||
		strings.Count(out, ": OK\n") != len(all)-1 {
		t.Errorf("%d files, and sha256sum says: %v\n%s", len(all), err, out)
	}
}

// TestPrograms: what is in an archive runs, says its version, and installs itself as docs/systemd.md has it.
func TestPrograms(t *testing.T) {
	version := versionMade(t)
	platform := "linux_" + runtime.GOARCH
	below := filepath.Join(extract(t, fmt.Sprintf("application-grid_%s_%s.tar.gz", version, platform)),
		fmt.Sprintf("application-grid_%s_%s", version, platform))
	root := t.TempDir()
	if out, err := output(t, below, []string{"DESTDIR=" + root, "PREFIX=/usr", "SYSCONFDIR=/etc"},
		filepath.Join(below, "hack/install.sh"), "install"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, program := range programs {
		for _, path := range []string{filepath.Join(below, "bin", program), filepath.Join(root, "usr/bin", program)} {
			if out, err := output(t, below, nil, path, "--version"); err != nil || !strings.Contains(out, version) {
				t.Errorf("%s: %v: %s", path, err, out)
			}
		}
	}
	for _, page := range append(slices.Clone(programs), plugin+"-status", "application-grid-wrapper-explain") {
		if data, err := os.ReadFile(filepath.Join(root, "usr/share/man/man1", page+".1")); err != nil ||
			!strings.Contains(string(data), "\n.SH NAME\n"+page+" - ") {
			t.Errorf("the man page of %s is %q: %v", page, data, err)
		}
	}
	alone := extract(t, pluginArchive(version, platform))
	if pages, err := filepath.Glob(filepath.Join(alone, "docs/man/*.1")); err != nil || len(pages) < 5 {
		t.Errorf("the archive of the plugin has the man pages %q: %v", pages, err)
	}
	if out, err := output(t, "", nil, filepath.Join(alone, plugin), "--version"); err != nil ||
		!strings.Contains(out, version) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestBillsOfMaterials: each is CycloneDX by its own schema, says the digest of its file, and has exactly the modules
// that are linked into the programs in that file, with licences that may go with them.
func TestBillsOfMaterials(t *testing.T) {
	directory, err := output(t, ".", nil, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go")
	must(t, err)
	schemas := gojsonschema.NewSchemaLoader()
	// The schema refers to others by their addresses, which are in the module, too.
	for _, other := range []string{"spdx.schema.json", "jsf-0.82.schemax.json"} {
		must(t, schemas.AddSchema("http://cyclonedx.org/schema/"+strings.ReplaceAll(other, "schemax", "schema"),
			gojsonschema.NewReferenceLoader("file://"+filepath.Join(strings.TrimSpace(directory), "schema",
				other))))
	}
	schema, err := schemas.Compile(gojsonschema.NewReferenceLoader("file://" +
		filepath.Join(strings.TrimSpace(directory), "schema", "bom-1.6.schema.json")))
	must(t, err)
	serials := map[string]bool{}
	checked := 0
	for _, file := range names(t) {
		artifact, is := strings.CutSuffix(file, ".cdx.json")
		if !is {
			continue
		}
		checked++
		data, err := os.ReadFile(filepath.Join(made, file))
		must(t, err)
		result, err := schema.Validate(gojsonschema.NewBytesLoader(data))
		if err != nil || !result.Valid() {
			t.Errorf("%s is not CycloneDX: %v %v", file, err, result.Errors())
		}
		var bill cyclonedx.BOM
		if err := cyclonedx.NewBOMDecoder(bytes.NewReader(data),
			cyclonedx.BOMFileFormatJSON).Decode(&bill); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		sum, err := sumOf(filepath.Join(made, artifact))
		if err != nil || (*bill.Metadata.Component.Hashes)[0].Value != sum {
			t.Errorf("%s does not have the digest of %s: %v", file, artifact, err)
		}
		if serials[bill.SerialNumber] {
			t.Errorf("%s has the serial number of another one", file)
		}
		serials[bill.SerialNumber] = true
		refs := map[string]bool{bill.Metadata.Component.BOMRef: true}
		var listed []string
		for _, component := range *bill.Components {
			refs[component.BOMRef] = true
			if component.Licenses == nil || len(*component.Licenses) == 0 {
				t.Errorf("%s: %s has no licence", file, component.BOMRef)
			}
			if component.Type == cyclonedx.ComponentTypeLibrary {
				listed = append(listed, component.Name+"@"+component.Version)
			}
		}
		for _, dependency := range *bill.Dependencies {
			for _, ref := range append([]string{dependency.Ref}, *dependency.Dependencies...) {
				if !refs[ref] {
					t.Errorf("%s: nothing is %s", file, ref)
				}
			}
		}
		if strings.HasSuffix(artifact, "_image.tar") {
			continue // layers: the same programs as in the archives
		}
		want := linked(t, extract(t, artifact))
		slices.Sort(listed)
		if !slices.Equal(listed, want) {
			t.Errorf("%s has\n%q\nand linked are\n%q", file, listed, want)
		}
	}
	// Four images, the programs' archive and the plugin's, of one platform at least.
	if checked < 6 {
		t.Errorf("only %d bills", checked)
	}
}

// linked are the modules of all programs below a directory, and the standard library.
func linked(t *testing.T, directory string) []string {
	t.Helper()
	modules := map[string]bool{}
	err := filepath.WalkDir(directory, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // no program
		}
		modules["std@"+strings.TrimPrefix(info.GoVersion, "go")] = true
		for _, module := range info.Deps {
			modules[module.Path+"@"+module.Version] = true
		}
		return nil
	})
	must(t, err)
	return slices.Sorted(maps.Keys(modules))
}

// TestProvenance: in-toto's own library takes the statement for valid, and SLSA's for a provenance; its subjects are
// the files that are there.
func TestProvenance(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(made, provenanceFile))
	must(t, err)
	var s intoto.Statement
	must(t, protojson.Unmarshal(data, &s))
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	predicate, err := json.Marshal(s.GetPredicate().AsMap())
	must(t, err)
	var provenance slsa.Provenance
	must(t, protojson.Unmarshal(predicate, &provenance))
	if err := provenance.Validate(); err != nil {
		t.Error(err)
	}
	var subjects []string
	for _, subject := range s.GetSubject() {
		subjects = append(subjects, subject.GetName())
		if sum, err := sumOf(filepath.Join(made, subject.GetName())); err != nil ||
			subject.GetDigest()["sha256"] != sum {
			t.Errorf("%s: %v, or another digest", subject.GetName(), err)
		}
	}
	want := slices.DeleteFunc(names(t), func(name string) bool { return name == sumsFile || name == provenanceFile })
	if !slices.Equal(subjects, want) {
		t.Errorf("its subjects are %q, and there are %q", subjects, want)
	}
	commit := provenance.GetBuildDefinition().GetResolvedDependencies()[0].GetDigest()["gitCommit"]
	if head, err := output(t, ".", nil, "git", "rev-parse", "HEAD"); err != nil || strings.TrimSpace(head) != commit {
		t.Errorf("it is of commit %q, and this is %s%v", commit, head, err)
	}
}

// TestKrewManifest: as krew checks it: a name and a version of its form, platforms that do not overlap, and archives
// that have the digest, the program and a licence.
func TestKrewManifest(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(made, krewFile))
	must(t, err)
	var plugin krewPlugin
	must(t, yaml.UnmarshalStrict(data, &plugin))
	if err := checkVersion(plugin.Spec.Version); err != nil || plugin.Metadata.Name+".yaml" != krewFile ||
		plugin.Spec.ShortDescription == "" ||
		len(plugin.Spec.ShortDescription) > 50 || strings.HasSuffix(plugin.Spec.ShortDescription, ".") {
		t.Errorf("%v: %+v", err, plugin)
	}
	seen := map[string]bool{}
	for _, platform := range plugin.Spec.Platforms {
		of := fmt.Sprint(platform.Selector.MatchLabels)
		if seen[of] || platform.Selector.MatchLabels["os"] == "" || platform.Selector.MatchLabels["arch"] == "" {
			t.Errorf("%s is there twice, or of no platform", of)
		}
		seen[of] = true
		archive := platform.URI[strings.LastIndex(platform.URI, "/")+1:]
		if sum, err := sumOf(filepath.Join(made, archive)); err != nil || sum != platform.Sha256 {
			t.Errorf("%s: %v, or another digest", archive, err)
		}
		directory := extract(t, archive)
		for _, file := range []string{platform.Bin, "LICENSE"} {
			if _, err := os.Stat(filepath.Join(directory, file)); err != nil {
				t.Errorf("%s: %v", archive, err)
			}
		}
	}
	archives := slices.DeleteFunc(names(t), func(file string) bool {
		return !strings.HasPrefix(file, "kubectl-grid_") || strings.HasSuffix(file, ".cdx.json")
	})
	if len(seen) == 0 || len(seen) != len(archives) {
		t.Errorf("for %v, and there are the archives %q", seen, archives)
	}
}

// TestChart: helm takes the package, and it asks for the images of its release without being told.
func TestChart(t *testing.T) {
	version := versionMade(t)
	chart := filepath.Join(made, chartName(version))
	env := []string{"HOME=" + t.TempDir()}
	out, err := output(t, "", env, binary(t, "helm"), "show", "chart", chart)
	if err != nil || !strings.Contains(out, "version: "+strings.TrimPrefix(version, "v")+"\n") ||
		!strings.Contains(out, "appVersion: "+version+"\n") {
		t.Errorf("%v: %s", err, out)
	}
	out, err = output(t, "", env, binary(t, "helm"), "template", "application-grid", chart, "--namespace=kube-system",
		"--set=distribution=k3s", "--set=hub.enabled=true")
	must(t, err)
	for _, program := range inImages {
		if !strings.Contains(out, fmt.Sprintf("image: %q\n", program+":"+version)) {
			t.Errorf("the chart does not ask for %s:%s", program, version)
		}
	}
}

// TestManifests: they name the images of the release.
func TestManifests(t *testing.T) {
	version := versionMade(t)
	below := filepath.Join(extract(t, "application-grid_"+version+"_manifests.tar.gz"), "application-grid_"+version,
		"manifests")
	for program, file := range map[string]string{
		"application-grid-controller": "deployment.yaml", "application-grid-hub": "deployment.yaml",
		"application-grid-wrapper": "daemonset.yaml", "statefulset-grid-daemon": "daemonset.yaml",
	} {
		data, err := os.ReadFile(filepath.Join(below, program, file))
		if err != nil || !strings.Contains(string(data), "image: "+program+":"+version+"\n") {
			t.Errorf("%s: %v", program, err)
		}
	}
	for _, file := range []string{
		"kubeadm/kustomization.yaml", "crds/superedge.io_servicegrids.yaml", "monitoring/alerts.yaml",
	} {
		if _, err := os.Stat(filepath.Join(below, file)); err != nil {
			t.Error(err)
		}
	}
}

// TestPush pushes the images into a registry, where they then are whole and have the digests that the release says; an
// archive that is not what the list says is refused.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	list, err := os.ReadFile(filepath.Join(made, imagesFile))
	must(t, err)
	if err := push(t.Context(), []string{"--release=" + made}); err == nil ||
		!strings.Contains(err.Error(), "REGISTRY=") {
		t.Errorf("without a registry: %v", err)
	}
	directory := t.TempDir()
	var renamed strings.Builder
	for line := range strings.Lines(string(list)) {
		fmt.Fprintf(&renamed, "%s/edge/%s", host, line)
		program, _, _ := strings.Cut(line, ":")
		archive := imageArchive(program, versionMade(t))
		must(t, copyFile(filepath.Join(directory, archive), filepath.Join(made, archive)))
	}
	must(t, os.WriteFile(filepath.Join(directory, imagesFile), []byte(renamed.String()), 0o600))
	must(t, push(t.Context(), []string{"--release=" + directory, "--insecure"}))
	for line := range strings.Lines(renamed.String()) {
		tagged, digest, _ := strings.Cut(strings.TrimSpace(line), "@")
		tag, err := name.NewTag(tagged, name.Insecure)
		must(t, err)
		index, err := remote.Index(tag)
		must(t, err)
		if got, err := index.Digest(); err != nil || got.String() != digest {
			t.Errorf("%s is %s there, want %s: %v", tagged, got, digest, err)
		}
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
	}
	other := strings.ReplaceAll(renamed.String(), "sha256:", "sha256:0000")
	must(t, os.WriteFile(filepath.Join(directory, imagesFile), []byte(other), 0o600))
	if err := push(t.Context(), []string{"--release=" + directory, "--insecure"}); err == nil ||
		!strings.Contains(err.Error(), "the archive has the image") {
		t.Errorf("another digest: %v", err)
	}
}
