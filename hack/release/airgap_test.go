package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// bundle unpacks the bundle for sites without a network.
func bundle(t *testing.T) string {
	t.Helper()
	version := versionMade(t)
	return filepath.Join(extract(t, "application-grid_"+version+"_airgap.tar"), "application-grid_"+version+"_airgap")
}

// TestAirgapCheck: the script of the bundle takes it as it is, and refuses it with a file that was changed, is missing
// or was added.
func TestAirgapCheck(t *testing.T) {
	directory := bundle(t)
	check := func() (string, error) { return output(t, "/", nil, filepath.Join(directory, "airgap.sh"), "check") }
	if out, err := check(); err != nil || !strings.Contains(out, "as they were released") {
		t.Fatalf("%v\n%s", err, out)
	}
	page := filepath.Join(directory, "README.md")
	original, err := os.ReadFile(page)
	must(t, err)
	for name, change := range map[string]func() error{
		"changed": func() error { return os.WriteFile(page, append(original, ' '), 0o600) },
		"missing": func() error { return os.Remove(page) },
		"added":   func() error { return os.WriteFile(filepath.Join(directory, "images", "other.tar"), nil, 0o600) },
	} {
		must(t, change())
		if out, err := check(); err == nil {
			t.Errorf("%s: it says %s", name, out)
		}
		if _, err := output(t, "/", nil, filepath.Join(directory, "airgap.sh"), "import"); err == nil {
			t.Errorf("%s: it is imported", name)
		}
		os.Remove(filepath.Join(directory, "images", "other.tar"))
		must(t, os.WriteFile(page, original, 0o600))
	}
	if _, err := check(); err != nil {
		t.Error(err)
	}
	if _, err := output(t, "/", nil, filepath.Join(directory, "airgap.sh")); err == nil {
		t.Error("it does something without being asked")
	}
}

// TestAirgapImport imports the bundle into a real containerd, twice: the images are there under the names that a
// kubelet asks for.
func TestAirgapImport(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("containerd wants to be root")
	}
	directory := bundle(t)
	state := t.TempDir()
	socket := filepath.Join(state, "containerd.sock")
	configuration := filepath.Join(state, "config.toml")
	must(t, os.WriteFile(configuration,
		fmt.Appendf(nil, "version = 3\nroot = %q\nstate = %q\ndisabled_plugins = [%q]\n[grpc]\naddress = %q\n",
			filepath.Join(state,
				"root"), filepath.Join(state, "run"), "io.containerd.cri.v1.runtime", socket), 0o600))
	log, err := os.Create(filepath.Join(state, "log"))
	must(t, err)
	defer log.Close()
	containerd := exec.Command(binary(t, "containerd"), "--config", configuration)
	containerd.Stdout, containerd.Stderr = log, log
	must(t, containerd.Start())
	defer func() {
		if err := containerd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		_ = containerd.Wait() // it ends with the signal's code
	}()
	ctr := binary(t, "ctr") + " --address " + socket
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		_, err := output(t, "/", nil, binary(t, "ctr"), "--address", socket, "version")
		if err == nil {
			break
		}
		if time.Since(begin) > 30*time.Second {
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("containerd does not answer: %v\n%s", err, said)
		}
	}
	for range 2 {
		out, err := output(t, "/", []string{"CTR=" + ctr}, filepath.Join(directory, "airgap.sh"), "import")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if strings.Count(out, "imported: ") != 4 {
			t.Errorf("it says %s", out)
		}
	}
	list, err := output(t, "/", nil, binary(t, "ctr"), "--address", socket, "--namespace", "k8s.io", "images", "list",
		"-q")
	must(t, err)
	for _, program := range inImages {
		if want := "docker.io/library/" + program + ":" + versionMade(t); !strings.Contains(list, want+"\n") {
			t.Errorf("there is no %s in %s", want, list)
		}
	}
}
