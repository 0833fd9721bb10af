package install

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// proof is what kubectl grid prove -o json prints.
type proof struct {
	APIVersion, Kind, Verdict string
	Rows                      []struct {
		Site, Node, Verdict, Message string
		Asked, Nobody                int
		Reached                      map[string]int
	}
}

// row is what is said of a node.
func (p *proof) row(t *testing.T, node string) (reached map[string]int, nobody int, verdict, message string) {
	t.Helper()
	for _, r := range p.Rows {
		if r.Node == node {
			return r.Reached, r.Nobody, r.Verdict, r.Message
		}
	}
	t.Fatalf("there is no row of %s in %+v", node, p)
	return nil, 0, "", ""
}

// provingPods are those that are there.
func (f *fixture) provingPods() int {
	f.Helper()
	pods, err := f.client.CoreV1().Pods("kube-system").List(f.ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubectl-grid-prove"})
	f.Must(err)
	return len(pods.Items)
}

// prove runs kubectl grid prove -o json.
func (f *fixture) prove(args ...string) (*proof, int) {
	f.Helper()
	stdout, stderr, code := f.plugin(append([]string{"prove", "-o", "json", "--image=application-grid-wrapper:test"},
		args...)...)
	var p proof
	if err := json.Unmarshal([]byte(stdout), &p); err != nil {
		f.Fatalf("%v: exit code %d, %s%s", err, code, stdout, stderr)
	}
	if left := f.provingPods(); left != 0 {
		f.Errorf("%d pods are left", left)
	}
	return &p, code
}

// TestProve asks a Service from every site with the real kube-proxies' rules, in both modes: where the loop is closed,
// where a node is past the wrapper, where a site has no pod, and where kube-proxy programs nothing. All
// commands say what connections do.
func TestProve(t *testing.T) {
	t.Parallel()
	node := func(name, site string, mode cluster.ProxyMode) cluster.NodeSpec {
		return cluster.NodeSpec{Name: name, ProxyMode: mode,
			Labels: map[string]string{"zone1": site, v1.LabelEdgeNode: "true", v1.LabelKubeProxy: v1.KubeProxyEdge}}
	}
	f := start(t, cluster.Options{DualStack: true, HubLater: true, Nodes: []cluster.NodeSpec{
		node("n0", "east", cluster.NFTables), node("n1", "west", cluster.IPTables), node("n2", "west", cluster.NFTables),
		{Name: "cloud", Direct: true},
	}}, "application-grid-wrapper", "application-grid-hub")
	f.runsAsInstalled()
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	f.Must(workload.In(f.client, "default").CreateDaemonSet(f.ctx, "echo"))
	service, err := workload.In(f.client, "default").CreateService(f.ctx, "echo",
		workload.ServiceOptions{TopologyKeys: []string{"zone1"}})
	f.Must(err)
	for name, want := range map[string]string{"n0": "n0", "n1": "n1 n2", "n2": "n1 n2"} {
		f.reaches(f.Node(name), service, want, 20)
	}

	// Nobody runs pods yet: what there is to say is the pod's own reason, and nothing is left.
	p, code := f.prove("echo", "--timeout=2s")
	if _, _, verdict, message := p.row(t, "n0"); code != 1 || p.Verdict != "Unproved" || verdict != "Unproved" ||
		!strings.Contains(message, "did not end in time") {
		t.Errorf("exit code %d, %+v", code, p)
	}
	f.interruptProof()

	go workload.Probes{Client: f.client, Dir: filepath.Join(f.Cluster.Dir(), "tmp"),
		Execute: func(ctx context.Context, name string, args ...string) error {
			n, err := f.Cluster.Node(name)
			if err != nil {
				return err
			}
			_, err = n.Run(ctx, suite.Binary(t, "application-grid-wrapper"), args...)
			return err
		}}.Run(ctx)
	f.proveClosed()
	f.proveLeak(service)
	f.verdicts()
	f.proveAlone()
	f.proveWithoutRules(service)
	f.verdictsWithoutHub()
}

// reaches waits until a node reaches exactly these nodes.
func (f *fixture) reaches(node *cluster.Node, service *corev1.Service, want string, tries int) {
	f.Helper()
	limited, cancel := context.WithTimeout(f.ctx, deadline)
	defer cancel()
	f.Must(workload.AwaitReach(limited, node, service, want, tries))
}

// proveClosed: the loop is closed on all nodes.
func (f *fixture) proveClosed() {
	f.Helper()
	p, code := f.prove("echo", "--all-nodes", "--requests=40")
	if code != 0 || p.Kind != "Proof" || p.Verdict != "Closed" || len(p.Rows) != 3 {
		f.Errorf("exit code %d, %+v", code, p)
	}
	for name, site := range map[string]string{"n0": "east", "n1": "west", "n2": "west"} {
		if reached, nobody, verdict, _ := p.row(f.T, name); len(reached) != 1 || reached[site] != 40 || nobody != 0 ||
			verdict != "Closed" {
			f.Errorf("from %s: %v, nobody %d, %s", name, reached, nobody, verdict)
		}
	}
	stdout, _, code := f.plugin("prove", "svc/echo", "--image=application-grid-wrapper:test")
	f.Logf("\n%s", stdout)
	if code != 0 || !strings.Contains(stdout, "No connection left its site.") ||
		!strings.Contains(stdout, "east (n0)   20     ·      ·        ok") {
		f.Errorf("exit code %d\n%s", code, stdout)
	}
}

// proveLeak: a node past its wrapper reaches every site.
func (f *fixture) proveLeak(service *corev1.Service) {
	f.Helper()
	n3 := f.AddNode(cluster.NodeSpec{Name: "n3", Direct: true, Labels: map[string]string{"zone1": "east"}})
	f.reaches(n3, service, "cloud n0 n1 n2 n3", 60)
	p, code := f.prove("echo", "--all-nodes", "--requests=60")
	if reached, _, verdict, message := p.row(f.T, "n3"); code != 3 || p.Verdict != "Leak" || verdict != "Leak" ||
		reached["west"] == 0 || !strings.Contains(message, "of west") {
		f.Errorf("exit code %d, %v, %s %s", code, reached, verdict, message)
	}
	if _, _, verdict, _ := p.row(f.T, "n0"); verdict != "Closed" {
		f.Errorf("n0 leaks too: %+v", p)
	}
	// One of each site: an edge node, and what is left out is said.
	stdout, stderr, code := f.plugin("prove", "echo", "--image=application-grid-wrapper:test")
	if code != 3 || !strings.Contains(stdout, "No connection left its site.") ||
		!strings.Contains(stdout, "FAILURE  Node n3: it is in the site zone1=east and is not an edge node") {
		f.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	f.Must(f.Cluster.RemoveNode(f.ctx, "n3"))
}

// proveAlone: in a site without a pod no connection is answered, which is right, and a failure all the same.
func (f *fixture) proveAlone() {
	f.Helper()
	f.Must(workload.In(f.client, "default").CreateDeployment(f.ctx, "lone", 1, map[string]string{"zone1": "west"}))
	lone, err := workload.In(f.client, "default").CreateService(f.ctx, "lone",
		workload.ServiceOptions{TopologyKeys: []string{"zone1"}})
	f.Must(err)
	f.Eventually("the Service of one site is there", func() error {
		if nodes := workload.Reach(f.ctx, f.Node("n1"), lone, 1).Nodes(); nodes[0] == workload.Refused {
			return fmt.Errorf("%q", nodes)
		}
		return nil
	})
	f.reaches(f.Node("n0"), lone, "", 5)
	p, code := f.prove("lone")
	if reached, nobody, verdict, message := p.row(f.T, "n0"); code != 3 || len(reached) != 0 || nobody != 20 ||
		verdict != "Closed" || message != "the site has no ready endpoint, and connections are refused" {
		f.Errorf("exit code %d, %v %d %s %s", code, reached, nobody, verdict, message)
	}
}

// proveWithoutRules: kube-proxy has no part in a Service that it is told to leave alone.
func (f *fixture) proveWithoutRules(service *corev1.Service) {
	f.Helper()
	f.kubectl("label", "service", "echo", "service.kubernetes.io/service-proxy-name=none")
	f.Eventually("kube-proxy has dropped the Service", func() error {
		if nodes := workload.Reach(f.ctx, f.Node("n1"), service, 1).Nodes(); nodes[0] != workload.Refused {
			return fmt.Errorf("%q", nodes)
		}
		return nil
	})
	p, code := f.prove("echo", "--requests=2")
	if _, _, verdict, message := p.row(f.T, "n1"); code != 1 || p.Verdict != "Unproved" || verdict != "Unproved" {
		f.Errorf("exit code %d, %s %s", code, verdict, message)
	}
	stdout, stderr, code := f.plugin("prove", "kubernetes")
	if code != 1 || stdout != "" || !strings.Contains(stderr, "has no topologyKeys") {
		f.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// interruptProof interrupts a run while its pods are there, as Ctrl-C does, and looks that they go.
func (f *fixture) interruptProof() {
	f.Helper()
	cmd := f.Plugin(f.ctx, "prove", "echo", "--image=application-grid-wrapper:test")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	f.Must(cmd.Start())
	f.Eventually("pods are made", suite.Is(2, f.provingPods))
	f.Must(cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 ||
		!strings.Contains(stderr.String(), "interrupted") {
		f.Errorf("%v: %s", err, stderr.String())
	}
	if left := f.provingPods(); left != 0 {
		f.Errorf("%d pods are left", left)
	}
}
