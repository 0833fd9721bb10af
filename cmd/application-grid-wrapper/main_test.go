package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/site/deadnodes"
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

// TestBadCommandLine: a clear error, a code that is not 0, and nothing is started.
func TestBadCommandLine(t *testing.T) {
	good := kubeconfig(t, "http://127.0.0.1:1")
	absent := filepath.Join(t.TempDir(), "absent")
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("\t{"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	tests := []struct {
		args []string
		code int
		// says are parts of the message.
		says []string
	}{
		{[]string{"--no-such-flag"}, flags.ExitUsage, []string{"--no-such-flag", "--help"}},
		{[]string{"--kube-qps=fast"}, flags.ExitUsage, []string{"kube-qps", "fast"}},
		{[]string{"--debug=maybe"}, flags.ExitUsage, []string{"debug", "maybe"}},
		{[]string{"--kubeconfig"}, flags.ExitUsage, []string{"kubeconfig"}},
		{[]string{"start"}, flags.ExitUsage, []string{"application-grid-wrapper: unexpected argument \"start\": only " +
			"flags are taken\nRun application-grid-wrapper --help for all flags.\n"}},
		{[]string{"-bind-address=x"}, flags.ExitUsage, []string{"unknown shorthand flag: 'b'"}}, // also of SuperEdge's
		{[]string{"--debug", "--version", "start"}, flags.ExitUsage, []string{`"start"`}},
		{[]string{"--version", "--logging-format=xml"}, flags.ExitUsage, []string{"--logging-format"}},
		// A value that is the name of a command is no command.
		{[]string{"--hostname", "explain", "start"}, flags.ExitUsage,
			[]string{`application-grid-wrapper: unexpected argument "start"`}},
		{nil, flags.ExitFailure, []string{"--kubeconfig"}},
		{[]string{"--kubeconfig=" + absent}, flags.ExitFailure, []string{"--kubeconfig", absent}},
		{[]string{"--kubeconfig=" + garbage}, flags.ExitFailure, []string{"--kubeconfig", garbage}},
		{[]string{"--kubeconfig=" + t.TempDir()}, flags.ExitFailure, []string{"--kubeconfig"}},
		{[]string{"--kubeconfig=" + kubeconfig(t, "'http://%zz'")}, flags.ExitFailure, []string{"%zz"}},
		{[]string{"--kubeconfig=" + good, "--kube-qps=0"}, flags.ExitFailure, []string{"--kube-qps"}},
		{[]string{"--kubeconfig=" + good, "--kube-burst=-1"}, flags.ExitFailure, []string{"--kube-burst"}},
		{[]string{"--kubeconfig=" + good, "--bind-address=0.0.0.0:51006"}, flags.ExitFailure,
			[]string{"--bind-address", "loopback"}},
		{[]string{"--kubeconfig=" + good, "--keep-answers-for=agent", "--state-dir="}, flags.ExitFailure,
			[]string{"--keep-answers-for", "--state-dir"}},
		{[]string{"--kubeconfig=" + good, "--keep-answers-for=agent", "--insecure=false",
			"--bind-address=0.0.0.0:51006"}, flags.ExitFailure, []string{"--keep-answers-for", "--ca-file"}},
		{[]string{"--kubeconfig=" + good, "--bind-address=nonsense"}, flags.ExitFailure,
			[]string{"--bind-address", "nonsense"}},
		{
			[]string{"--kubeconfig=" + good, "--insecure=false", "--cert-dir="}, flags.ExitFailure,
			[]string{"--cert-file", "--key-file", "--cert-dir"},
		},
		{[]string{"--kubeconfig=" + good, "--insecure=false", "--cert-file=" + absent, "--key-file=" + absent},
			flags.ExitFailure, []string{"--cert-file", absent}},
		{[]string{"--kubeconfig=" + good, "--local-endpoint=nowhere", "--local-port=1"}, flags.ExitFailure,
			[]string{"--local-endpoint", "nowhere"}},
		{[]string{"--kubeconfig=" + good, "--local-endpoint=169.254.0.1"}, flags.ExitFailure, []string{"--local-port"}},
		{[]string{"--kubeconfig=" + good, "--local-endpoint=169.254.0.1", "--local-port=70000"}, flags.ExitFailure,
			[]string{"70000"}},
		{[]string{"--kubeconfig=" + good, "--local-endpoint=169.254.0.1", "--local-port=1",
			"--wrapper-in-cluster=false"},
			flags.ExitFailure, []string{"--wrapper-in-cluster"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,address=localhost:51005"},
			flags.ExitFailure, []string{"--service-autonomy-enhancement", "localhost:51005", "http"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,address=ftp://localhost/"},
			flags.ExitFailure, []string{"--service-autonomy-enhancement", "ftp://localhost/", "http"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,address=http:///localinfo"},
			flags.ExitFailure, []string{"--service-autonomy-enhancement", "host"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,address="}, flags.ExitFailure,
			[]string{"--service-autonomy-enhancement", "address"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,address=http://%zz"},
			flags.ExitFailure, []string{"--service-autonomy-enhancement", "%zz"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,interval=30s"},
			flags.ExitFailure,
			[]string{"interval", "30s", "seconds"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=true,interval=90000"},
			flags.ExitFailure,
			[]string{"interval", "86400"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=interval=99999999999999999999"},
			flags.ExitFailure,
			[]string{"interval"}},
		{
			[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement="}, flags.ExitFailure,
			[]string{"name=value"},
		},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled"}, flags.ExitFailure,
			[]string{"name=value"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=enabled=perhaps"}, flags.ExitFailure,
			[]string{"perhaps"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=interval=0"}, flags.ExitFailure,
			[]string{"interval"}},
		{[]string{"--kubeconfig=" + good, "--service-autonomy-enhancement=colour=red"}, flags.ExitFailure,
			[]string{"colour"}},
		{[]string{"--kubeconfig=" + good, "--cri=/run/containerd/containerd.sock"}, flags.ExitFailure,
			[]string{"--cri", "/run/containerd/containerd.sock", "unix://", "auto"}},
		{[]string{"--kubeconfig=" + good, "--cri=auto", "--return-grace=-1s"}, flags.ExitFailure,
			[]string{"--return-grace"}},
		{[]string{"--kubeconfig=" + good, "--site-exchange=auto"}, flags.ExitFailure,
			[]string{"--site-exchange", "auto", "off", "on"}},
		{[]string{"--kubeconfig=" + good, "--site-exchange=on"}, flags.ExitFailure,
			[]string{"--site-exchange-key-file", "plain text"}},
		{[]string{"--kubeconfig=" + good, "--site-exchange=on", "--site-exchange-key-file=k", "--site-exchange-port=0"},
			flags.ExitFailure, []string{"--site-exchange-port"}},
	}
	for _, test := range tests {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			o := call(t, test.args...)
			if o.code != test.code || o.stdout != "" {
				t.Errorf("got code %d, stdout %q, want %d", o.code, o.stdout, test.code)
			}
			for _, want := range test.says {
				if !strings.Contains(o.stderr, want) {
					t.Errorf("the message does not say %q: %s", want, o.stderr)
				}
			}
			if strings.Contains(o.stderr, "goroutine ") {
				t.Errorf("that is no sentence: %s", o.stderr)
			}
		})
	}
}

// TestDefaults are those of SuperEdge's wrapper, which existing installations rely on.
func TestDefaults(t *testing.T) {
	o := newOptions()
	if err := o.flags.Parse(nil); err != nil {
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
	if notices := o.ignored(); len(notices) > 0 {
		t.Errorf("defaults are nothing to speak of: %q", notices)
	}
}

// TestIgnoredFlagsAreSaid: flags without a meaning are accepted, and the log says that they have no effect.
func TestIgnoredFlagsAreSaid(t *testing.T) {
	tests := []struct {
		args []string
		want []string
	}{
		{[]string{"--notify-channel-size=5"}, []string{"--notify-channel-size"}},
		{[]string{"--support-endpointslice"}, []string{"--support-endpointslice"}},
		{[]string{"--support-endpointslice=false", "--notify-channel-size=100"},
			[]string{"--notify-channel-size", "--support-endpointslice"}},
		{[]string{"--cert-file=x", "--key-file=y", "--ca-file=z"}, []string{"--cert-file", "--key-file", "--ca-file"}},
		{[]string{"--cert-dir=x"}, []string{"--cert-dir"}},
		{[]string{"--cert-file=x", "--insecure=false"}, nil},
		{[]string{"--hostname=n", "--debug", "--v=3"}, nil},
		{[]string{"--return-grace=1m"}, []string{"--return-grace"}},
		{[]string{"--return-grace=1m", "--cri=auto"}, nil},
		{[]string{"--return-grace=1m", "--site-exchange=on"}, nil},
		{[]string{"--site-exchange-port=1", "--site-exchange-key-file=k"},
			[]string{"--site-exchange-port", "--site-exchange-key-file"}},
	}
	for _, test := range tests {
		o := newOptions()
		if err := o.flags.Parse(test.args); err != nil {
			t.Fatal(err)
		}
		notices := o.ignored()
		if len(notices) != len(test.want) {
			t.Errorf("%v: got %q", test.args, notices)
			continue
		}
		for i, want := range test.want {
			if !strings.Contains(notices[i], want+":") {
				t.Errorf("%v: %q does not name %s", test.args, notices[i], want)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	const upstream = "https://127.0.0.1:1/prefix"
	o := newOptions()
	err := o.flags.Parse([]string{
		"--kubeconfig=" + kubeconfig(t, upstream), "--hostname=node0", "--bind-address=[::1]:1", "--debug",
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
		if err := o.flags.Parse(append(test.args, "--kubeconfig="+kubeconfig(t, "http://127.0.0.1:1"))); err != nil {
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

// TestEveryFlagIsInASection: one outside of them would not be parsed.
func TestEveryFlagIsInASection(t *testing.T) {
	usage := call(t, "--help").stdout
	o := newOptions()
	if err := o.flags.Parse(nil); err != nil {
		t.Fatal(err)
	}
	o.flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !strings.Contains(usage, "--"+f.Name) {
			t.Errorf("--help does not tell of --%s", f.Name)
		}
	})
}

// TestHostname: it is read as kube-proxy reads its --hostname-override.
func TestHostname(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{"Edge-1": "edge-1", "edge-1\t": "edge-1", "": strings.ToLower(host)} {
		o := newOptions()
		if err := o.flags.Parse([]string{"--kubeconfig=" + kubeconfig(t, "https://127.0.0.1:1"), "--hostname=" +
			given}); err != nil {
			t.Fatal(err)
		}
		if config, err := o.config(); err != nil || config.NodeName != want {
			t.Errorf("%q: got %q, %v, want %q", given, config.NodeName, err, want)
		}
	}
}
