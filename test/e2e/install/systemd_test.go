package install

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/application-grid/application-grid/internal/testkit/tlstest"
	"github.com/application-grid/application-grid/test/suite"
)

var units = []string{"application-grid-wrapper", "statefulset-grid-daemon", "lite-apiserver"}

// TestNotifications: the real programs, started as their units start them while the API server is away, say that
// they are ready, serve the watchdog, and say that they end.
func TestNotifications(t *testing.T) {
	for _, name := range units {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			socket, err := net.ListenUnixgram("unixgram",
				&net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
			suite.Must(t, err)
			defer socket.Close()
			next := func() string {
				t.Helper()
				suite.Must(t, socket.SetReadDeadline(time.Now().Add(deadline)))
				buffer := make([]byte, 4096)
				n, err := socket.Read(buffer)
				if err != nil {
					t.Fatalf("systemd hears nothing: %v", err)
				}
				return string(buffer[:n])
			}
			cmd := exec.Command(suite.Binary(t, name), startOf(t, name, dir)...)
			const watchdog = 3 * time.Second
			cmd.Env = []string{"NOTIFY_SOCKET=" + filepath.Join(dir, "notify"),
				"WATCHDOG_USEC=" + strconv.FormatInt(watchdog.Microseconds(), 10)}
			var log strings.Builder
			cmd.Stderr = &log
			suite.Must(t, cmd.Start())
			defer cmd.Process.Kill()
			if got := next(); !strings.HasPrefix(got, "READY=1\nSTATUS=not ready: ") {
				t.Errorf("first it says %q", got)
			}
			begin := time.Now()
			for pings := 0; pings < 5; {
				if next() == "WATCHDOG=1" {
					pings++
				}
			}
			if took := time.Since(begin); took < watchdog/2 { // the first is at once
				t.Errorf("5 pings in %s are more than were asked for", took)
			}
			suite.Must(t, cmd.Process.Signal(syscall.SIGTERM))
			for ending := false; !ending; {
				ending = strings.HasPrefix(next(), "STOPPING=1")
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("it ends with %v:\n%s", err, log.String())
			}
		})
	}
}

// startOf is the unit's ExecStart= as systemd would start it, with free ports and an API server that is away.
func startOf(t *testing.T, name, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "systemd", name+".service"))
	suite.Must(t, err)
	match := regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/` + name + ` (.*)$`).FindSubmatch(data)
	if match == nil {
		t.Fatalf("%s has no ExecStart=", name)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["x"] = &clientcmdapi.Cluster{Server: "http://127.0.0.1:1"}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	config.CurrentContext = "x"
	options := "--bind-address=127.0.0.1:0"
	switch name {
	case "statefulset-grid-daemon":
		options += " --hostpath=" + filepath.Join(dir, "hosts")
	case "lite-apiserver":
		authority := tlstest.NewAuthority(t)
		config.Clusters["x"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1",
			CertificateAuthorityData: authority.PEM}
		certificate := filepath.Join(dir, "kubelet.pem")
		if err := os.WriteFile(certificate, authority.IssueClient(t, pkix.Name{CommonName: "system:node:node0",
			Organization: []string{"system:nodes"}}, time.Now().Add(time.Hour)), 0o600); err != nil {
			t.Fatal(err)
		}
		config.AuthInfos["x"] = &clientcmdapi.AuthInfo{ClientCertificate: certificate, ClientKey: certificate}
		options = fmt.Sprintf("--kubeconfig=%s --file-cache-path=%s --port=%d --health-bind-address=0",
			filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "kept"), suite.FreePort(t))
	}
	suite.Must(t, clientcmd.WriteToFile(*config, filepath.Join(dir, "kubeconfig")))
	return strings.Fields(strings.NewReplacer("${CREDENTIALS_DIRECTORY}", dir, "${NODE_NAME}", "node0", "$OPTIONS",
		options, "$SEAL", "--unsealed").Replace(string(match[1])))
}

// exposure is what docs/systemd.md says of the units, and no more.
var exposure = map[string]float64{"application-grid-wrapper": 1.1, "statefulset-grid-daemon": 1.6, "lite-apiserver": 1.6}

// TestInstalledUnits: make install puts everything where it belongs, systemd finds nothing to complain of and
// little that the programs could do, an edited file survives, and make uninstall leaves what it says.
func TestInstalledUnits(t *testing.T) {
	root := t.TempDir()
	run := func(target string, variables ...string) string {
		t.Helper()
		args := append([]string{"-C", filepath.Join("..", "..", ".."), "-o", "build", target}, variables...) // it is built
		out, err := exec.CommandContext(t.Context(), "make", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
		return string(out)
	}
	// A PREFIX of its own, not a DESTDIR: the units name programs that are there.
	prefix, config := filepath.Join(root, "usr"), filepath.Join(root, "etc")
	run("install", "PREFIX="+prefix, "SYSCONFDIR="+config, "DESTDIR=")
	for _, unit := range units {
		file := filepath.Join(prefix, "lib", "systemd", "system", unit+".service")
		analyze(t, "verify", "--man=no", file)
		out := analyze(t, "security", "--offline=true", "--no-pager", file)
		match := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(out)
		if match == nil {
			t.Fatalf("no exposure in %s", out)
		}
		if got, err := strconv.ParseFloat(match[1], 64); err != nil || got > exposure[unit] {
			t.Errorf("%s: exposure %s, was %v: %s", unit, match[1], exposure[unit], out)
		}
	}
	if out := run("uninstall", "PREFIX="+prefix, "SYSCONFDIR="+config, "DESTDIR="); strings.Contains(out, root) {
		t.Errorf("nothing of it was edited, and it says %s", out)
	}
	if left := files(t, root); left != "" {
		t.Errorf("left: %s", left)
	}

	destination := "DESTDIR=" + filepath.Join(root, "package")
	run("install", destination)
	const where = "/package/usr/local/"
	want := "/package/etc/application-grid/application-grid-wrapper.env /package/etc/application-grid/lite-apiserver.env " +
		"/package/etc/application-grid/statefulset-grid-daemon.env " +
		where + "bin/application-grid-controller " + where + "bin/application-grid-hub " +
		where + "bin/application-grid-wrapper " + where + "bin/kubectl-grid " + where + "bin/kubectl_complete-grid " +
		where + "bin/lite-apiserver " + where + "bin/statefulset-grid-daemon " +
		where + "lib/systemd/system/application-grid-wrapper.service " + where +
		"lib/systemd/system/lite-apiserver.service " + where +
		"lib/systemd/system/statefulset-grid-daemon.service " +
		where + "share/doc/application-grid/LICENSE " + where + "share/doc/application-grid/THIRD_PARTY_NOTICES" +
		manual(t, " "+where+"share/man/man1/")
	if got := files(t, root); got != want {
		t.Errorf("installed are %s", got)
	}
	edited := filepath.Join(root, "package", "etc", "application-grid", "application-grid-wrapper.env")
	suite.Must(t, os.WriteFile(edited, []byte("OPTIONS=--v=4\n"), 0o600))
	if out := run("install", destination); !strings.Contains(out, "kept, because it was edited: "+edited) {
		t.Errorf("of the edited file: %s", out)
	}
	suite.Must(t, os.MkdirAll(filepath.Join(root, "package", "var", "lib", "application-grid-wrapper"), 0o700))
	out := run("uninstall", destination)
	for _, kept := range []string{"/etc/application-grid", "/var/lib/application-grid-wrapper"} {
		if !strings.Contains(out, "rm -r "+filepath.Join(root, "package", kept)+"\n") {
			t.Errorf("of %s it says: %s", kept, out)
		}
	}
	if got := files(t, root); got != "/package/etc/application-grid/application-grid-wrapper.env" {
		t.Errorf("left are %s", got)
	}
	if data, err := os.ReadFile(edited); err != nil || string(data) != "OPTIONS=--v=4\n" {
		t.Errorf("the edited file is %q, %v", data, err)
	}
}

// manual are the man pages, each after this prefix, in order.
func manual(t *testing.T, prefix string) string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join("..", "..", "..", "docs", "man", "*.1"))
	if err != nil || len(pages) < 4 {
		t.Fatalf("%d man pages, %v", len(pages), err)
	}
	var names strings.Builder
	for _, page := range pages {
		names.WriteString(prefix + filepath.Base(page))
	}
	return names.String()
}

func analyze(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemd-analyze", args...).CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// files are the files under a directory, without it.
func files(t *testing.T, root string) string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names = append(names, strings.TrimPrefix(path, root))
		}
		return err
	})
	suite.Must(t, err)
	return strings.Join(names, " ")
}
