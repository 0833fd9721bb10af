package cilium

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	siteLabel = "zone1"
	siteA     = "site-a"
	siteB     = "site-b"
)

// agentName is the name of the agent's program as its module has it; in Cilium's image it is cilium-agent.
const agentName = "daemon"

// shared is the cluster of all tests. On its node a1 Cilium runs in kube-proxy's place.
var shared *cluster.Cluster

// programs is the directory with the agent and cilium-dbg, sources the one with Cilium's module; wrapper and plugin are
// programs.
var programs, sources, wrapper, plugin string

func TestMain(m *testing.M) {
	if missing := missing(); missing != "" {
		fmt.Println("SKIPPED: Cilium cannot run here:", missing)
		return
	}
	suite.Suite{Name: "cilium", Options: clusterOptions(), Cluster: &shared, Prepare: findPrograms,
		Programs: []string{"application-grid-wrapper", "application-grid-hub"}}.Main(m)
}

// missing says what an agent needs and this machine does not have; "" if it has all.
func missing() string {
	for _, program := range []string{"clang-19", "llc-19", "nsenter", "unshare", "findmnt", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Sprintf("there is no %s: apt-get install clang-19 llvm-19 util-linux curl", program)
		}
	}
	filesystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err.Error()
	}
	for _, name := range []string{"bpf", "cgroup2"} {
		if !strings.Contains(string(filesystems), "\t"+name+"\n") {
			return "the kernel has no file system " + name
		}
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		return "the kernel has no BTF: " + err.Error()
	}
	// An attribute that is too short to be one: a kernel without BPF, or a sandbox, answers otherwise.
	if _, _, errno := unix.Syscall(unix.SYS_BPF, 0, 0, 0); errno == unix.ENOSYS || errno == unix.EPERM {
		return "bpf(2): " + errno.Error()
	}
	return ""
}

func clusterOptions() cluster.Options {
	site := func(name string) map[string]string {
		return map[string]string{siteLabel: name, v1.LabelEdgeNode: "static"}
	}
	return cluster.Options{
		WrapperTLS: true, WrapperArgs: []string{"--keep-answers-for=" + agentName + ",cilium-dbg"},
		Dir: os.Getenv("CILIUM_DIR"), // to keep the logs
		Nodes: []cluster.NodeSpec{
			{Name: "a1", Labels: site(siteA)}, {Name: "a2", Labels: site(siteA)},
			{Name: "b1", Labels: site(siteB)}, {Name: "b2", Labels: site(siteB)},
		},
	}
}

// findPrograms looks for Cilium, and for the programs that the tests run themselves.
func findPrograms(ctx context.Context) error {
	for name, path := range map[string]*string{"application-grid-wrapper": &wrapper, "kubectl-grid": &plugin,
		"cilium/" + agentName: &programs} {
		var err error
		if *path, err = suite.Program(name); err != nil {
			return err
		}
	}
	programs = filepath.Dir(programs)
	directory, err := exec.CommandContext(ctx, "go", "-C", "agent", "list", "-m", "-f", "{{.Dir}}",
		"github.com/cilium/cilium").Output()
	if err != nil {
		return fmt.Errorf("looking for Cilium's sources: %w", err)
	}
	sources = strings.TrimSpace(string(directory))
	return nil
}
