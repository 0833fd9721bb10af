package kubeadm_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/workload"
)

// check ends and begins all streams, so that a failure belongs to the step that it happened in.
func (o *operator) check(expected map[string][]string) {
	o.Helper()
	for _, node := range slices.Sorted(maps.Keys(expected)) {
		o.Widen(node, expected[node]...)
	}
}

// fromPods has every pod with an address of the CNI on the node ask the Service, also the one that may answer itself,
// and expects these nodes to answer.
func (o *operator) fromPods(node string, by ...string) {
	o.Helper()
	output, err := shared.Node(node).Run(o.Context(), "sh", "-ec",
		"for pod in /var/run/netns/cni-*; do for i in $(seq 20); do nsenter --net=$pod curl -sS --max-time 5 "+workload.URL(o.Service)+"; done; done")
	o.Must(err)
	answered := map[string]int{}
	for line := range strings.Lines(output) {
		from, _, _ := strings.Cut(strings.TrimPrefix(line, "node="), " ")
		answered[from]++
	}
	o.Logf("pods on %s are answered by %v", node, answered)
	if got := slices.Sorted(maps.Keys(answered)); !slices.Equal(got, by) {
		o.Errorf("pods on %s are answered by %v, and not by %v", node, got, by)
	}
}

// oneKubeProxy looks all the time whether two kube-proxies run on a node, until the test ends.
func oneKubeProxy(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	done.Go(func() {
		for ctx.Err() == nil {
			running := kubeProxyProcesses()
			mu.Lock()
			for node, count := range running {
				seen[node] = max(seen[node], count)
			}
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		if len(seen) < len(operate.Everybody) {
			t.Errorf("the processes of kube-proxy were not found: %v", seen)
		}
		for node, count := range seen {
			if count > 1 {
				t.Errorf("%d kube-proxies ran on %s at once", count, node)
			}
		}
	})
}

// inode is the number of a file; two files of /proc/*/ns are the same namespace if they have the same.
func inode(info os.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

// kubeProxyProcesses counts the running kube-proxies by the node in whose network they are. A child of one, which has
// its command line until it becomes iptables, is none.
func kubeProxyProcesses() map[string]int {
	nodes := map[uint64]string{}
	for _, name := range operate.Everybody {
		if link, err := os.Stat(filepath.Join("/run/netns", shared.Node(name).Namespace())); err == nil {
			nodes[inode(link)] = name
		}
	}
	count := map[string]int{}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		if !isKubeProxy(process) || isKubeProxy(filepath.Join("/proc", parentOf(process))) {
			continue
		}
		link, err := os.Stat(filepath.Join(process, "ns", "net"))
		if err != nil {
			continue // it has ended
		}
		if node, ok := nodes[inode(link)]; ok {
			count[node]++
		}
	}
	return count
}

// isKubeProxy reports whether the process with this directory below /proc has kube-proxy's command line.
func isKubeProxy(process string) bool {
	data, err := os.ReadFile(filepath.Join(process, "cmdline"))
	return err == nil && strings.HasPrefix(string(data), "/usr/local/bin/kube-proxy\x00")
}

// parentOf is the number of the process's parent; that of none if it has ended.
func parentOf(process string) string {
	data, _ := os.ReadFile(filepath.Join(process, "stat"))
	_, rest, _ := strings.Cut(string(data), ") ") // number, name in parentheses, state, parent
	if fields := strings.Fields(rest); len(fields) > 1 {
		return fields[1]
	}
	return "none"
}
