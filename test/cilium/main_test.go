package cilium

import (
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
	unitLabel = "zone1"
	unitA     = "unit-a"
	unitB     = "unit-b"
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
	suite.Suite{Name: "cilium", Options: clusterOptions, Cluster: &shared}.Main(m)
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

func clusterOptions() (cluster.Options, error) {
	var options cluster.Options
	if err := suite.Privileged(); err != nil {
		return options, err
	}
	for _, needed := range []struct {
		to             *string
		variable, name string
	}{
		{&options.Components, "COMPONENTS_BIN", "components"}, {&options.Wrapper, "WRAPPER_BIN", "application-grid-wrapper"},
		{&options.Hub, "HUB_BIN", "application-grid-hub"}, {&plugin, "KUBECTL_GRID_BIN", "kubectl-grid"},
		{&programs, "CILIUM_BIN", filepath.Join("cilium", agentName)},
	} {
		var err error
		if *needed.to, err = suite.Program(needed.variable, needed.name); err != nil {
			return options, err
		}
	}
	programs, wrapper = filepath.Dir(programs), options.Wrapper
	directory, err := exec.Command("go", "-C", "agent", "list", "-m", "-f", "{{.Dir}}", "github.com/cilium/cilium").Output()
	if err != nil {
		return options, fmt.Errorf("looking for Cilium's sources: %w", err)
	}
	sources = strings.TrimSpace(string(directory))
	unit := func(name string) map[string]string {
		return map[string]string{unitLabel: name, v1.LabelEdgeNode: "static"}
	}
	options.WrapperTLS = true
	options.WrapperArgs = []string{"--keep-answers-for=" + agentName + ",cilium-dbg"}
	options.Progress = os.Stdout
	options.Dir = os.Getenv("CILIUM_DIR") // to keep the logs
	options.Nodes = []cluster.NodeSpec{
		{Name: "a1", Labels: unit(unitA)}, {Name: "a2", Labels: unit(unitA)},
		{Name: "b1", Labels: unit(unitB)}, {Name: "b2", Labels: unit(unitB)},
	}
	return options, nil
}
