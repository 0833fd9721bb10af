package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// parsed are the options of a command line that is all right.
func parsed(t *testing.T, args ...string) *options {
	t.Helper()
	o := newOptions()
	args = append([]string{"--hostname=node0", "--master=http://localhost:1"}, args...)
	if err := o.program().Command().ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestDefaults(t *testing.T) {
	config, err := parsed(t).config()
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := config.Connection.Config()
	if err != nil {
		t.Fatal(err)
	}
	if config.Path != "/data/edge/hosts" || config.Domain != "cluster.local" || config.WholeSync != 30*time.Second ||
		config.BindAddress != "localhost:51007" || config.NodeName != "node0" || upstream.QPS != 1000 {
		t.Errorf("got %+v", config)
	}
}

// TestSuperEdgesFlags: a command line of SuperEdge's daemon works, and the log says which flags have no effect.
func TestSuperEdgesFlags(t *testing.T) {
	o := parsed(t, "--worker=4", "--sync-period=30", "--sync-period-as-whole=60", "--feature-gates=A=true",
		"--hostpath=/data/edge/hosts",
		"--leader-elect", "--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=10s",
		"--leader-elect-retry-period=2s",
		"--leader-elect-resource-lock=leases", "--leader-elect-resource-name=x", "--leader-elect-resource-namespace=y")
	config, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	if config.WholeSync != time.Minute {
		t.Errorf("a whole sync every %s", config.WholeSync)
	}
	if notices := o.flags.Ignored(); len(notices) != 10 {
		t.Errorf("of ten ignored flags it is said: %q", notices)
	}
	if notices := parsed(t).flags.Ignored(); len(notices) > 0 {
		t.Errorf("without such flags it is said: %q", notices)
	}
}

func TestRefused(t *testing.T) {
	for want, args := range map[string][]string{
		"--hostname":             {"--hostname= "},
		"not an absolute path":   {"--hostpath=hosts"},
		"not a domain name":      {"--cluster-domain=not_a_domain"},
		"--sync-period-as-whole": {"--sync-period-as-whole=0"},
		"--kube-qps":             {"--kube-qps=0"},
		"--bind-address":         {"--bind-address=51007"},
		"--kubeconfig":           {"--master=", "--kubeconfig=/missing"},
	} {
		if _, err := parsed(t, args...).config(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want something of %q", args, err, want)
		}
	}
	if err := newOptions().program().Command().ParseFlags([]string{"--sync-period-as-whole=often"}); err == nil {
		t.Error("a period that is none was taken")
	}
	call := func(args ...string) int { return newOptions().program().Main(args, io.Discard, io.Discard) }
	if code := call("argument"); code != flags.ExitUsage {
		t.Errorf("an argument: exit code %d", code)
	}
	if code := call("--kubeconfig=/missing"); code != flags.ExitFailure {
		t.Errorf("a missing kubeconfig: exit code %d", code)
	}
}

// TestAsksTheWrapper: a daemon that is told of no API server asks its node's wrapper, without credentials.
func TestAsksTheWrapper(t *testing.T) {
	o := newOptions()
	if err := o.program().Command().ParseFlags([]string{"--hostname=node0"}); err != nil {
		t.Fatal(err)
	}
	config, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := config.Connection.Config()
	if err != nil {
		t.Fatal(err)
	}
	if upstream.Host != wrapper || upstream.BearerToken != "" || upstream.BearerTokenFile != "" {
		t.Errorf("it asks %s, with the token %q", upstream.Host, upstream.BearerToken+upstream.BearerTokenFile)
	}
}

func TestSpellings(t *testing.T) {
	config, err := parsed(t, "--hostname=Edge-1", "--cluster-domain=K8s.Example.org.", "--sync-period-as-whole=90s",
		"--bind-address=0").config()
	if err != nil {
		t.Fatal(err)
	}
	if config.NodeName != "edge-1" || config.Domain != "k8s.example.org" || config.WholeSync != 90*time.Second ||
		config.BindAddress != "" {
		t.Errorf("got %+v", config)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for line, want := range map[string]string{
		"--help": "Usage:\n  statefulset-grid-daemon [flags]\n", "-h": "--hostpath", "--version": program + " ",
		"completion bash": "__start_statefulset-grid-daemon", "completion zsh": "#compdef statefulset-grid-daemon",
		"completion fish": "complete -c statefulset-grid-daemon", "completion powershell": "Register-ArgumentCompleter",
		"__complete --cluster": "--cluster-domain", "__complete --logging-format j": "text\njson\n",
	} {
		var stdout, stderr bytes.Buffer
		if code := newOptions().program().Main(strings.Fields(line), &stdout, &stderr); code != 0 ||
			!strings.Contains(stdout.String(), want) {
			t.Errorf("%s: got code %d\n%s%s", line, code, stdout.String(), stderr.String())
		}
	}
}

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) { docstest.CompareFlags(t, program, newOptions().flags) }

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) { docstest.CompareManual(t, program, newOptions().program().Command()) }

// TestFlagsOfSuperEdge: docs/migrate.md says which flags were kept.
func TestFlagsOfSuperEdge(t *testing.T) {
	docstest.CompareWithSuperEdge(t, program, newOptions().flags)
}
