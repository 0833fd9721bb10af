package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// kubectl runs the cluster's kubectl against one server.
type kubectl struct {
	f      *fixture
	binary string
	server string
}

// kubectlTo is a kubectl behind a relay that adds the credentials of a configuration: kubectl itself sends none over
// plain HTTP, and does not reach into a node's network.
func (f *fixture) kubectlTo(config *rest.Config) kubectl {
	f.Helper()
	transport, err := rest.TransportFor(config)
	f.must(err)
	target, err := url.Parse(config.Host)
	f.must(err)
	relay := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
		},
		Transport: transport, FlushInterval: -1,
	})
	f.Cleanup(relay.Close)
	binary, err := suite.Program("COMPONENTS_BIN", "components")
	f.must(err)
	return kubectl{f, binary, relay.URL}
}

func (k kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"kubectl", "--kubeconfig=/dev/null", "--cache-dir=" + k.f.TempDir(), "--server=" + k.server},
		args...)
	return exec.CommandContext(ctx, k.binary, args...)
}

func (k kubectl) run(args ...string) (string, error) {
	out, err := k.command(k.f.ctx, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// watch runs kubectl get --watch until the test ends, and returns its lines.
func (k kubectl) watch(args ...string) *bufio.Scanner {
	k.f.Helper()
	ctx, cancel := context.WithTimeout(k.f.ctx, deadline)
	cmd := k.command(ctx, append([]string{"get", "--watch"}, args...)...)
	out, err := cmd.StdoutPipe()
	k.f.must(err)
	k.f.must(cmd.Start())
	k.f.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	return bufio.NewScanner(out)
}

// kubectls are a kubectl that asks kube-apiserver, and one that asks the wrapper of a1.
func (f *fixture) kubectls() (direct, wrapped kubectl) {
	f.Helper()
	node, err := shared.Node("a1")
	f.must(err)
	return f.kubectlTo(shared.RESTConfig()), f.kubectlTo(node.WrapperConfig(cluster.RoleAdmin))
}

// TestKubectlReadsAsUsual: what kubectl prints of Services that are not governed, and of the node, is the same text
// through the wrapper as without it; of a governed Service it prints what the node may see.
func TestKubectlReadsAsUsual(t *testing.T) {
	f := newFixture(t)
	f.daemonSet("plain")
	f.service("headless", workload.ServiceOptions{Headless: true})
	direct, wrapped := f.kubectls()
	for _, args := range [][]string{
		{"get", "svc,endpointslices,endpoints", "--output=wide"},
		{"get", "svc,endpointslices", "--show-labels"},
		{"get", "svc/plain", "svc/headless"},
		{"get", "svc", "--sort-by=.metadata.name", "--no-headers"},
		{"get", "endpointslices", "--output=name"},
		{"get", "svc", "--all-namespaces", "--selector=component=apiserver", "--output=wide"},
		{"get", "node", "a1", "--output=wide"},
	} {
		args = append(args, "--namespace="+f.namespace)
		var text string
		// An age may grow, and the last endpoint arrive, between the two.
		f.eventually(strings.Join(args, " "), func() error {
			want, err := direct.run(args...)
			if err != nil {
				return err
			}
			text, err = wrapped.run(args...)
			if err != nil {
				return err
			}
			if withoutWarnings(text) != withoutWarnings(want) {
				return fmt.Errorf("through the wrapper:\n%swithout it:\n%s", text, want)
			}
			if args[1] == "svc,endpointslices,endpoints" && !strings.Contains(text, "+ 1 more...") {
				return fmt.Errorf("not all four endpoints are there yet:\n%s", text)
			}
			return nil
		})
		f.Logf("kubectl %s\n%s", strings.Join(args, " "), text)
	}

	f.daemonSet("governed", unitLabel)
	f.eventually("kubectl shows two of the four endpoints of a governed Service", func() error {
		text, err := wrapped.run("get", "endpointslices", "--namespace="+f.namespace,
			"--selector=kubernetes.io/service-name=governed", "--no-headers")
		if err != nil {
			return err
		}
		if fields := strings.Fields(text); len(fields) != 5 || len(strings.Split(fields[3], ",")) != 2 {
			return fmt.Errorf("got %s", text)
		}
		return nil
	})
}

// withoutWarnings leaves out what kube-apiserver says of Endpoints with every answer: that they are deprecated.
func withoutWarnings(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"),
		func(line string) bool { return strings.HasPrefix(line, "Warning: ") })
	return strings.Join(lines, "\n")
}

// TestKubectlWatch: kubectl get --watch prints the same lines through the wrapper as without it.
func TestKubectlWatch(t *testing.T) {
	f := newFixture(t)
	f.service("first", workload.ServiceOptions{})
	direct, wrapped := f.kubectls()
	f.eventually("the wrapper has the first Service", func() error {
		_, err := wrapped.run("get", "svc/first", "--namespace="+f.namespace)
		return err
	})
	args := []string{"svc", "--namespace=" + f.namespace, "--output=wide", "--output-watch-events"}
	lines := map[string]*bufio.Scanner{"direct": direct.watch(args...), "wrapped": wrapped.watch(args...)}
	var seen []string
	expect := func(what ...string) {
		t.Helper()
		got := map[string]string{}
		for name, scanner := range lines {
			var fields []string
			for range what {
				if !scanner.Scan() {
					t.Fatalf("%s: kubectl ended: %v", name, errors.Join(scanner.Err(), f.ctx.Err()))
				}
				fields = append(fields, withoutAge(scanner.Text())...)
				seen = append(seen, scanner.Text())
			}
			got[name] = strings.Join(fields, " ")
			for _, w := range what {
				if !strings.Contains(got[name], w) {
					t.Errorf("%s: got %q, want %q in it", name, got[name], w)
				}
			}
		}
		if got["direct"] != got["wrapped"] {
			t.Errorf("through the wrapper: %s; without it: %s", got["wrapped"], got["direct"])
		}
	}
	expect("EVENT NAME", "ADDED first")
	services := f.client.CoreV1().Services(f.namespace)
	_, err := services.Patch(f.ctx, "first", types.MergePatchType, []byte(`{"spec":{"type":"NodePort"}}`),
		metav1.PatchOptions{})
	f.must(err)
	expect("MODIFIED first")
	f.service("second", workload.ServiceOptions{})
	expect("ADDED second")
	f.must(services.Delete(f.ctx, "first", metav1.DeleteOptions{}))
	expect("DELETED first")
	f.Logf("%s", strings.Join(seen, "\n"))
}

// withoutAge are the fields of a line of kubectl get svc --output=wide --output-watch-events without the age.
func withoutAge(line string) []string {
	fields := strings.Fields(line)
	if len(fields) < 7 {
		return fields
	}
	return slices.Delete(fields, 6, 7)
}
