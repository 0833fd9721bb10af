package e2e

import (
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

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
	f.Must(err)
	target, err := url.Parse(config.Host)
	f.Must(err)
	relay := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
		},
		Transport: transport, FlushInterval: -1,
	})
	f.Cleanup(relay.Close)
	return kubectl{f, suite.Binary(f, "components"), relay.URL}
}

func (k kubectl) run(args ...string) (string, error) {
	out, err := exec.CommandContext(k.f.ctx, k.binary, append([]string{"kubectl", "--kubeconfig=/dev/null",
		"--cache-dir=" + k.f.TempDir(), "--server=" + k.server}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// TestKubectlReadsAsUsual: what kubectl prints of Services that are not governed, and of the node, is the same text
// through the wrapper as without it, but that it makes the usual table of names and ages only; of a governed Service it
// prints what the node may see.
func TestKubectlReadsAsUsual(t *testing.T) {
	f := newFixture(t)
	f.daemonSet("plain")
	f.service("headless", workload.ServiceOptions{Headless: true})
	direct, wrapped := f.kubectlTo(shared.RESTConfig()), f.kubectlTo(f.Node("a1").WrapperConfig(cluster.RoleAdmin))
	for _, args := range [][]string{
		{"get", "svc,endpointslices,endpoints", "--output=name"},
		{"get", "svc,endpointslices,endpoints", "--output=custom-columns=L:.metadata.labels"},
		{"get", "svc/plain", "svc/headless", "--output=jsonpath={.items[*].spec}"},
		{"get", "svc", "--sort-by=.metadata.name", "--no-headers", "--output=custom-columns=IP:.spec.clusterIP"},
		{"get", "endpointslices", "--output=jsonpath={.items[*].endpoints}"},
		{"get", "endpoints", "--output=jsonpath={.items[*].subsets}"},
		{"get", "svc", "--all-namespaces", "--selector=component=apiserver", "--output=name"},
		{"get", "node", "a1", "--output=jsonpath={.status.addresses} {.status.nodeInfo}"},
	} {
		args = append(args, "--namespace="+f.namespace)
		var text string
		// The last endpoint may arrive between the two.
		f.Eventually(strings.Join(args, " "), func() error {
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
			if args[1] == "endpointslices" && strings.Count(text, `"addresses"`) != 4 {
				return fmt.Errorf("not all four endpoints are there yet:\n%s", text)
			}
			return nil
		})
		f.Logf("kubectl %s\n%s", strings.Join(args, " "), text)
	}
	text, err := wrapped.run("get", "svc,endpointslices", "--namespace="+f.namespace)
	f.Must(err)
	if lines := strings.Split(text, "\n"); !slices.Equal(strings.Fields(lines[0]), []string{"NAME", "AGE"}) ||
		!strings.Contains(text, "service/plain ") || !strings.Contains(text, "endpointslice.discovery.k8s.io/plain-") {
		t.Errorf("the table is\n%s", text)
	}

	f.daemonSet("governed", siteLabel)
	f.Eventually("kubectl shows two of the four endpoints of a governed Service", func() error {
		text, err := wrapped.run("get", "endpointslices", "--namespace="+f.namespace,
			"--selector=kubernetes.io/service-name=governed", "--output=jsonpath={.items[*].endpoints[*].addresses}")
		if err != nil {
			return err
		}
		if len(strings.Fields(text)) != 2 {
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
