package install

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// TestPreview asks, on a cluster that has nothing of application-grid, what closing Services would change, holds it
// against whom the real kube-proxy's rules reach, and runs the command that is printed.
func TestPreview(t *testing.T) {
	t.Parallel()
	node := func(name, site string) cluster.NodeSpec {
		return cluster.NodeSpec{Name: name, Direct: true, Labels: map[string]string{"site": site}}
	}
	f := start(t, cluster.Options{Nodes: []cluster.NodeSpec{node("n0", "east"), node("n1", "west"),
		node("n2", "west")}})
	f.Must(workload.In(f.client, "default").CreateDaemonSet(f.ctx, "echo"))
	echo, err := workload.In(f.client, "default").CreateService(f.ctx, "echo", workload.ServiceOptions{})
	f.Must(err)
	f.Must(workload.In(f.client, "default").CreateDeployment(f.ctx, "lone", 1, map[string]string{"site": "west"}))
	_, err = workload.In(f.client, "default").CreateService(f.ctx, "lone", workload.ServiceOptions{})
	f.Must(err)
	n0 := f.Node("n0")
	limited, cancel := context.WithTimeout(f.ctx, deadline)
	defer cancel()
	f.Must(workload.AwaitReach(limited, n0, echo, "n0 n1 n2", 60))

	f.Eventually("the pod of lone is ready", func() error {
		if s, _ := f.preview("lone"); s.Ready != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	got, code := f.preview("echo")
	// Two thirds of east's endpoints are in west; a third of those of each of west's nodes is in east.
	if code != 3 || got.Ready != 3 || got.ReadyIn["west"] != 2 || got.Foreign == nil ||
		math.Abs(*got.Foreign-4.0/9) > 1e-9 || len(got.Dark) != 0 {
		t.Errorf("exit code %d, %+v", code, got)
	}
	// What kube-proxy does says the same.
	const requests = 300
	foreign := 0
	for name, count := range workload.Reach(f.ctx, n0, echo, requests) {
		if name != "n0" {
			foreign += count
		}
	}
	if share := float64(foreign) / requests; math.Abs(share-2.0/3) > 0.15 {
		t.Errorf("%.2f of n0's requests leave its site", share)
	}
	if lone, _ := f.preview("lone"); !slices.Equal(lone.Dark, []string{"east"}) {
		t.Errorf("got %+v", lone)
	}

	stdout, _, _ := f.plugin("preview", "--key=site", "-A")
	t.Logf("\n%s", stdout)
	if !strings.Contains(stdout, "1 of 2: east") {
		t.Errorf("got\n%s", stdout)
	}

	// The command that is printed closes the Service; once lone is gone nothing is left to be mended.
	shell := exec.CommandContext(f.ctx, "sh", "-c", got.Command)
	shell.Env = append(os.Environ(), "PATH="+suite.Path(t)+":"+os.Getenv("PATH"), "KUBECONFIG="+f.Cluster.Kubeconfig())
	_, err = suite.Output(shell)
	f.Must(err)
	f.Must(f.client.CoreV1().Services("default").Delete(f.ctx, "lone", metav1.DeleteOptions{}))
	if stdout, _, code := f.plugin("preview", "--key=site", "-A"); code != 3 ||
		!strings.Contains(stdout, "so nothing keeps 1 Service with topologyKeys to the sites") {
		t.Errorf("nothing keeps the Service to its sites yet: exit code %d\n%s", code, stdout)
	}
	f.kubectl("label", "nodes", "--all", v1.LabelEdgeNode+"=static")
	if closed, code := f.preview("echo"); code != 0 || !slices.Equal(closed.TopologyKeys, []string{"site"}) ||
		closed.Foreign != nil || closed.Command != "" {
		t.Errorf("exit code %d, %+v", code, closed)
	}
}

// previewed is a Service as kubectl grid preview has it.
type previewed struct {
	Name         string
	Ready        int
	ReadyIn      map[string]int
	Foreign      *float64
	Dark         []string
	TopologyKeys []string
	Command      string
}

// preview is what is said of a Service, and the exit code.
func (f *fixture) preview(name string) (previewed, int) {
	f.Helper()
	stdout, stderr, code := f.plugin("preview", "--key=site", "-o=json")
	var p struct {
		Kind     string
		Services []previewed
	}
	if err := json.Unmarshal([]byte(stdout), &p); err != nil || p.Kind != "ServicePreview" {
		f.Fatalf("%v: exit code %d, %s%s", err, code, stdout, stderr)
	}
	i := slices.IndexFunc(p.Services, func(s previewed) bool { return s.Name == name })
	if i < 0 {
		f.Fatalf("%s is not in %+v", name, p.Services)
	}
	return p.Services[i], code
}
