package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/pkg/autonomy/deadnodes"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// output is what the program printed, and its exit code.
type output struct {
	code           int
	stdout, stderr string
}

// call runs a command line.
func call(t *testing.T, args ...string) output {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := newOptions().program().Main(args, &stdout, &stderr)
	return output{code, stdout.String(), stderr.String()}
}

// kubeconfig writes one that leads to the server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + server + "}}]\n" +
		"contexts: [{name: x, context: {cluster: c, user: u}}]\n" +
		"current-context: x\n" +
		"users: [{name: u, user: {token: t}}]\n"
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestHelpAndVersion(t *testing.T) {
	for _, flag := range []string{"--help", "-h"} {
		o := call(t, flag)
		if o.code != 0 || o.stderr != "" {
			t.Errorf("%s: got %+v", flag, o)
		}
		for _, want := range []string{"Upstream flags:", "Node flags:", "Serving flags:", "Logging flags:",
			"--logging-format", "--kubeconfig", "--hostname", "localhost:51006", "--notify-channel-size"} {
			if !strings.Contains(o.stdout, want) {
				t.Errorf("%s does not say %q:\n%s", flag, want, o.stdout)
			}
		}
	}
	// What follows --help does not count.
	if o := call(t, "--help", "--no-such-flag", "start"); o.code != 0 ||
		!strings.Contains(o.stdout, "Upstream flags:") {
		t.Errorf("got %+v", o)
	}
	if o := call(t, "--version"); o.code != 0 || !strings.HasPrefix(o.stdout, "application-grid-wrapper ") {
		t.Errorf("--version: got %+v", o)
	}
}

// expectRefused: a clear error with parts of the message, a code that is not 0, and nothing is started.
func expectRefused(t *testing.T, line string, code int, says ...string) {
	t.Helper()
	o := call(t, strings.Fields(line)...)
	if o.code != code || o.stdout != "" {
		t.Errorf("%s: got code %d, stdout %q, want %d", line, o.code, o.stdout, code)
	}
	for _, want := range says {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("%s: the message does not say %q: %s", line, want, o.stderr)
		}
	}
	if strings.Contains(o.stderr, "goroutine ") {
		t.Errorf("%s: that is no sentence: %s", line, o.stderr)
	}
}

func TestBadCommandLine(t *testing.T) {
	for line, says := range map[string][]string{
		"--no-such-flag":  {"--no-such-flag", "--help"},
		"--kube-qps=fast": {"kube-qps", "fast"},
		"--debug=maybe":   {"debug", "maybe"},
		"--kubeconfig":    {"kubeconfig"},
		"start": {"application-grid-wrapper: unexpected argument \"start\": only flags are taken\n" +
			"Run application-grid-wrapper --help for all flags.\n"},
		"-bind-address=x":                {"unknown shorthand flag: 'b'"}, // also of SuperEdge's
		"--debug --version start":        {`"start"`},
		"--version --logging-format=xml": {"--logging-format"},
		// A value that is the name of a command is no command.
		"--hostname explain start": {`application-grid-wrapper: unexpected argument "start"`},
	} {
		expectRefused(t, line, flags.ExitUsage, says...)
	}
}

func TestBadKubeconfig(t *testing.T) {
	absent, garbage := filepath.Join(t.TempDir(), "absent"), filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\t{"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for line, says := range map[string][]string{
		"":                            {"--kubeconfig"},
		"--kubeconfig=" + absent:      {"--kubeconfig", absent},
		"--kubeconfig=" + garbage:     {"--kubeconfig", garbage},
		"--kubeconfig=" + t.TempDir(): {"--kubeconfig"},
		"--kubeconfig=" + kubeconfig(t, "'http://%zz'"): {"%zz"},
	} {
		expectRefused(t, line, flags.ExitFailure, says...)
	}
}

func TestBadFlags(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	const autonomy = "--service-autonomy-enhancement"
	for line, says := range map[string][]string{
		"--kube-qps=0":                          {"--kube-qps"},
		"--kube-burst=-1":                       {"--kube-burst"},
		"--bind-address=0.0.0.0:51006":          {"--bind-address", "loopback"},
		"--keep-answers-for=agent --state-dir=": {"--keep-answers-for", "--state-dir"},
		"--keep-answers-for=agent --insecure=false --bind-address=0.0.0.0:51006": {
			"--keep-answers-for", "--ca-file",
		},
		"--bind-address=nonsense":                                          {"--bind-address", "nonsense"},
		"--insecure=false --cert-dir=":                                     {"--cert-file", "--key-file", "--cert-dir"},
		"--insecure=false --cert-file=" + absent + " --key-file=" + absent: {"--cert-file", absent},
		"--local-endpoint=nowhere --local-port=1":                          {"--local-endpoint", "nowhere"},
		"--local-endpoint=169.254.0.1":                                     {"--local-port"},
		"--local-endpoint=169.254.0.1 --local-port=70000":                  {"70000"},
		"--local-endpoint=169.254.0.1 --local-port=1 --wrapper-in-cluster=false": {
			"--wrapper-in-cluster",
		},
		autonomy + "=enabled=true,address=localhost:51005":   {autonomy, "localhost:51005", "http"},
		autonomy + "=enabled=true,address=ftp://localhost/":  {autonomy, "ftp://localhost/", "http"},
		autonomy + "=enabled=true,address=http:///localinfo": {autonomy, "host"},
		autonomy + "=enabled=true,address=":                  {autonomy, "address"},
		autonomy + "=enabled=true,address=http://%zz":        {autonomy, "%zz"},
		autonomy + "=enabled=true,interval=30s":              {"interval", "30s", "seconds"},
		autonomy + "=enabled=true,interval=90000":            {"interval", "86400"},
		autonomy + "=interval=99999999999999999999":          {"interval"},
		autonomy + "=":                          {"name=value"},
		autonomy + "=enabled":                   {"name=value"},
		autonomy + "=enabled=perhaps":           {"perhaps"},
		autonomy + "=interval=0":                {"interval"},
		autonomy + "=colour=red":                {"colour"},
		"--cri=/run/containerd/containerd.sock": {"--cri", "/run/containerd/containerd.sock", "unix://", "auto"},
		"--cri=auto --return-grace=-1s":         {"--return-grace"},
		"--site-exchange=auto":                  {"--site-exchange", "auto", "off", "on"},
		"--site-exchange=on":                    {"--site-exchange-key-file", "plain text"},
		"--site-exchange=on --site-exchange-key-file=k --site-exchange-port=0": {"--site-exchange-port"},
	} {
		expectRefused(t, "--kubeconfig="+kubeconfig(t, "http://127.0.0.1:1")+" "+line, flags.ExitFailure, says...)
	}
}

// TestDefaults are those of SuperEdge's wrapper, which existing installations rely on.
func TestDefaults(t *testing.T) {
	o := newOptions()
	if err := o.program().Command().ParseFlags(nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"kubeconfig": "", "hostname": "", "ca-file": "", "cert-file": "", "key-file": "",
		"bind-address": "localhost:51006",
		"insecure":     "true", "wrapper-in-cluster": "true", "notify-channel-size": "100", "debug": "false",
		"kube-qps":              "1000",
		"kube-burst":            "1000",
		"support-endpointslice": "false", "service-autonomy-enhancement": defaultAutonomy,
	} {
		f := o.flags.Lookup(name)
		if f == nil {
			t.Errorf("--%s is gone", name)
			continue
		}
		if f.DefValue != want || f.Value.String() != want {
			t.Errorf("--%s: got %q, want %q", name, f.Value, want)
		}
	}
	if notices := append(o.flags.Ignored(), o.withoutEffect()...); len(notices) > 0 {
		t.Errorf("defaults are nothing to speak of: %q", notices)
	}
}

// TestIgnoredFlagsAreSaid: flags without a meaning are accepted, and the log says that they have no effect.
func TestIgnoredFlagsAreSaid(t *testing.T) {
	for line, wanted := range map[string]string{
		"--notify-channel-size=5":                                 "--notify-channel-size",
		"--support-endpointslice":                                 "--support-endpointslice",
		"--support-endpointslice=false --notify-channel-size=100": "--notify-channel-size --support-endpointslice",
		"--cert-file=x --key-file=y --ca-file=z":                  "--cert-file --key-file --ca-file",
		"--cert-dir=x":                                            "--cert-dir",
		"--cert-file=x --insecure=false":                          "",
		"--hostname=n --debug --v=3":                              "",
		"--return-grace=1m":                                       "--return-grace",
		"--return-grace=1m --cri=auto":                            "",
		"--return-grace=1m --site-exchange=on":                    "",
		"--site-exchange-port=1 --site-exchange-key-file=k":       "--site-exchange-port --site-exchange-key-file",
	} {
		o, want := newOptions(), strings.Fields(wanted)
		if err := o.program().Command().ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		notices := append(o.flags.Ignored(), o.withoutEffect()...)
		if len(notices) != len(want) {
			t.Errorf("%s: got %q", line, notices)
			continue
		}
		for i, name := range want {
			if !strings.Contains(notices[i], name+":") {
				t.Errorf("%s: %q does not name %s", line, notices[i], name)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	const upstream = "https://127.0.0.1:1/prefix"
	o := newOptions()
	err := o.program().Command().ParseFlags([]string{
		"--kubeconfig=" + kubeconfig(t, upstream), "--hostname=Node0", "--bind-address=[::1]:1", "--debug",
		"--kube-qps=5",
		"--kube-burst=6",
		"--local-endpoint=169.254.0.1", "--local-port=51003", "--insecure=false", "--cert-file=c", "--key-file=k",
		"--ca-file=a",
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	if config.NodeName != "node0" || config.BindAddress != "[::1]:1" || !config.Debug || !config.RewriteKubernetes ||
		config.LocalEndpoint == nil || config.LocalEndpoint.Port != 51003 ||
		config.LocalEndpoint.IP.String() != "169.254.0.1" {
		t.Errorf("got %+v", config)
	}
	up, err := config.Connection.Config()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(config.Connection.Credentials(), "the token in /") {
		t.Errorf("the credentials are %s", config.Connection.Credentials())
	}
	if up.Host != upstream || up.QPS != 5 || up.Burst != 6 || !strings.HasPrefix(up.UserAgent,
		"application-grid-wrapper/") {
		t.Errorf("got the upstream %+v", up)
	}
	if config.TLS == nil || config.TLS.Cert != "c" || config.TLS.Key != "k" || config.TLS.ClientCA != "a" {
		t.Errorf("got the TLS files %+v", config.TLS)
	}
}

func TestAutonomy(t *testing.T) {
	standard := deadnodes.Options{Address: "http://localhost:51005/localinfo", Interval: 30 * time.Second}
	tests := []struct {
		args []string
		want *deadnodes.Options
	}{
		{nil, nil},
		{[]string{"--service-autonomy-enhancement=enabled=false,interval=5,address=http://localhost:1/"}, nil},
		{[]string{"--service-autonomy-enhancement=enabled=true"}, &standard},
		{[]string{"--service-autonomy-enhancement=enabled=true,interval=30,address=http://localhost:51005/localinfo"},
			&standard},
		{[]string{"--service-autonomy-enhancement=interval=1, enabled=true"},
			&deadnodes.Options{Address: standard.Address, Interval: time.Second}},
		{[]string{"--service-autonomy-enhancement=address=https://[::1]:2/a?b=c,enabled=1"},
			&deadnodes.Options{Address: "https://[::1]:2/a?b=c", Interval: standard.Interval}},
	}
	for _, test := range tests {
		o := newOptions()
		upstream := "--kubeconfig=" + kubeconfig(t, "http://127.0.0.1:1")
		if err := o.program().Command().ParseFlags(append(test.args, upstream)); err != nil {
			t.Fatal(err)
		}
		config, err := o.config()
		if err != nil {
			t.Errorf("%v: %v", test.args, err)
			continue
		}
		if got := config.Autonomy; (got == nil) != (test.want == nil) || (got != nil && *got != *test.want) {
			t.Errorf("%v: got %+v, want %+v", test.args, got, test.want)
		}
	}
}

// TestFlagsReference: docs/reference.md has the flags as they are. Those of explain and probe are left to --help.
func TestFlagsReference(t *testing.T) { docstest.CompareFlags(t, program, newOptions().flags) }

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) { docstest.CompareManual(t, program, newOptions().program().Command()) }

// TestFlagsOfSuperEdge: docs/migrate.md says which flags were kept.
func TestFlagsOfSuperEdge(t *testing.T) {
	docstest.CompareWithSuperEdge(t, program, newOptions().flags)
}
