package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// TestDefaults are those of SuperEdge's controller, which existing installations rely on, with the leader
// election on.
func TestDefaults(t *testing.T) {
	o := newOptions()
	if err := o.program().Command().ParseFlags(nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"master": "", "kubeconfig": "", "kube-qps": "1000", "kube-burst": "1000", "feature-gates": "",
		"sync-period":  "30",
		"leader-elect": "true", "leader-elect-lease-duration": "15s", "leader-elect-renew-deadline": "10s",
		"leader-elect-retry-period":  "2s",
		"leader-elect-resource-name": "application-grid-controller", "leader-elect-resource-namespace": "kube-system",
		"site-removal-grace": "5m0s", "manage-crds": "auto", "namespaces": "",
		"allowed-site-keys": "", "max-sites-per-grid": "0", "move-kube-proxy": "false",
	} {
		f := o.flags.Lookup(name)
		if f == nil {
			t.Errorf("--%s is gone", name)
			continue
		}
		if f.DefValue != want {
			t.Errorf("--%s: got %q, want %q", name, f.DefValue, want)
		}
	}
	if notices := o.flags.Ignored(); len(notices) > 0 {
		t.Errorf("defaults are nothing to speak of: %q", notices)
	}
}

func TestIgnoredFlagsAreSaid(t *testing.T) {
	o := newOptions()
	if err := o.program().Command().ParseFlags([]string{"--sync-period=5", "--leader-elect-resource-lock=endpoints",
		"--feature-gates=ServiceTopology=true,EndpointSlice=true"}); err != nil {
		t.Fatal(err)
	}
	notices := o.flags.Ignored()
	if len(notices) != 3 || !strings.HasPrefix(notices[1], "Ignoring --sync-period: changes") {
		t.Errorf("got %q", notices)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, help := range []string{"--help", "-h"} {
		code, stdout, stderr := call(help)
		if code != 0 || stderr != "" {
			t.Errorf("%s: got code %d, %s", help, code, stderr)
		}
		for _, want := range []string{
			"API server flags:", "Leader election flags:", "--site-removal-grace", "--vmodule",
			"Usage:\n  application-grid-controller [flags]",
		} {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s does not say %q", help, want)
			}
		}
	}
	if code, stdout, _ := call("--version"); code != 0 || !strings.HasPrefix(stdout, program+" ") {
		t.Errorf("got code %d, %s", code, stdout)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := call("completion", shell); code != 0 || len(stdout) < 1000 {
			t.Errorf("%s: got code %d, %d bytes, %s", shell, code, len(stdout), stderr)
		}
	}
}

// call runs a command line.
func call(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = newOptions().program().Main(args, &out, &err)
	return code, out.String(), err.String()
}

// TestBadCommandLine: a sentence that names the flag, a code that is not 0, and nothing is started.
func TestBadCommandLine(t *testing.T) {
	good := filepath.Join(t.TempDir(), "kubeconfig")
	const content = "{apiVersion: v1, kind: Config, current-context: x, " +
		"contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: http://127.0.0.1:1}}]}"
	if err := os.WriteFile(good, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for args, says := range map[string]string{
		"":                               "--kubeconfig",
		"--kubeconfig=/absent":           "/absent",
		"--kubeconfig=GOOD --kube-qps=0": "--kube-qps",
		"--kubeconfig=GOOD --worker=0":   "--worker",
		"--kubeconfig=GOOD --site-removal-grace=-1s":         "--site-removal-grace",
		"--kubeconfig=GOOD --metrics-bind-address=nonsense":  "--metrics-bind-address",
		"--kubeconfig=GOOD --manage-crds=maybe":              "neither auto nor off",
		"--kubeconfig=GOOD --allowed-site-keys=zone1,a/b/c":  "\"a/b/c\" cannot be the key",
		"--kubeconfig=GOOD --namespaces=shop,Mall":           "\"Mall\" cannot be a namespace",
		"--kubeconfig=GOOD --max-sites-per-grid=-1":          "--max-sites-per-grid",
		"--kubeconfig=GOOD --leader-elect-lease-duration=1s": "--leader-elect-lease-duration",
		"--kubeconfig=GOOD --leader-elect-resource-name=":    "--leader-elect-resource-name",
	} {
		o := newOptions()
		if err := o.program().Command().ParseFlags(strings.Fields(strings.ReplaceAll(args, "GOOD", good))); err != nil {
			t.Fatal(err)
		}
		if _, err := o.config(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", args, err)
		}
	}
	for _, argument := range []string{"--no-such-flag", "start"} {
		if code, _, stderr := call(argument); code != flags.ExitUsage || !strings.Contains(stderr, argument) ||
			!strings.HasSuffix(stderr, "\nRun application-grid-controller --help for all flags.\n") {
			t.Errorf("got code %d, %s", code, stderr)
		}
	}
}
