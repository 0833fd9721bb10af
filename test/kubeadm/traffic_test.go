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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/workload"
)

// siteLabel is the label that makes sites, as in the pages.
const siteLabel = "zone1"

// startEcho runs an echo pod on every node, real containers with addresses of the CNI, and makes their Service closed.
func (o *operator) startEcho() *corev1.Service {
	o.Helper()
	set := kubeadm.EchoDaemonSet()
	_, err := o.client.AppsV1().DaemonSets(set.Namespace).Create(o.Context(), set, metav1.CreateOptions{})
	o.Must(err)
	service, err := workload.In(o.client, set.Namespace).CreateService(o.Context(), "echo",
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	o.Must(err)
	return service
}

// sites are the nodes' requests to the Service, which go on during all steps, and what each may be answered by.
type sites struct {
	*operator
	// streaming is the context of the streams: they go on from step to step.
	streaming context.Context
	service   *corev1.Service
	streams   map[string]*stream
}

// stream are the requests of one node.
type stream struct {
	traffic *workload.Traffic
	since   time.Time
}

// everybody is who may answer a node without a wrapper.
var everybody = []string{"cloud0", "node0", "node1"}

// expect waits until requests from the node are answered by exactly these nodes; from then on, until the next expect or
// pause of the node, a request that is lost or answered by another one fails the test.
func (s *sites) expect(node string, by ...string) {
	s.Helper()
	s.pause(node)
	ctx, cancel := context.WithTimeout(s.Context(), patience.Within)
	defer cancel()
	begin := time.Now()
	for {
		seen := s.look(ctx, node)
		if slices.Equal(seen, by) {
			break
		}
		if ctx.Err() != nil {
			s.Shell("kubectl get nodes --show-labels; kubectl get pods -A -o wide; kubectl get endpointslices -A; " +
				"kubectl -n kube-system get daemonsets")
			s.Fatalf("%s is answered by %v, and not by %v", node, seen, by)
		}
	}
	s.Logf("%s is answered by %v after %.1f s", node, by, time.Since(begin).Seconds())
	s.resume(node, by)
}

// resume begins the node's stream.
func (s *sites) resume(node string, by []string) {
	traffic := workload.StartTraffic(s.streaming, workload.URL(s.service), 10*time.Millisecond)
	traffic.From(shared.Node(node), by)
	s.streams[node] = &stream{traffic, time.Now()}
}

// widen goes on with the stream of the node, which may from now on be answered by these nodes: it is about to change.
func (s *sites) widen(node string, by ...string) {
	s.Helper()
	s.pause(node)
	s.resume(node, by)
}

// pause ends the node's stream and reports what was lost.
func (s *sites) pause(node string) {
	s.Helper()
	stream := s.streams[node]
	if stream == nil {
		return
	}
	delete(s.streams, node)
	tried, failed := stream.traffic.End()
	s.Logf("%s: %d requests in %.1f s, %d lost or answered by a foreign site", node, tried,
		time.Since(stream.since).Seconds(), len(failed))
	if len(failed) > 0 {
		s.Errorf("%s, of %d requests:\n%s", node, tried, strings.Join(failed[:min(len(failed), 20)], "\n"))
	}
	if tried == 0 && time.Since(stream.since) > time.Second {
		s.Errorf("%s made no request", node)
	}
}

// check ends and begins all streams, so that a failure belongs to the step that it happened in.
func (s *sites) check(expected map[string][]string) {
	s.Helper()
	for _, node := range slices.Sorted(maps.Keys(expected)) {
		s.pause(node)
		s.resume(node, expected[node])
	}
}

// look is who answers the node now, in order; it asks often enough to meet each of three.
func (s *sites) look(ctx context.Context, node string) []string {
	reached := map[string]bool{}
	for range 30 {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		answer, err := workload.Ask(attempt, shared.Node(node), workload.URL(s.service))
		cancel()
		if err != nil {
			answer.Node = "nobody"
			time.Sleep(20 * time.Millisecond)
		}
		reached[answer.Node] = true
	}
	return slices.Sorted(maps.Keys(reached))
}

// fromPods has every pod with an address of the CNI on the node ask the Service, also the one that may answer itself,
// and expects these nodes to answer.
func (s *sites) fromPods(node string, by ...string) {
	s.Helper()
	output, err := shared.Node(node).Run(s.Context(), "sh", "-ec",
		"for pod in /var/run/netns/cni-*; do for i in $(seq 20); do nsenter --net=$pod curl -sS --max-time 5 "+workload.URL(s.service)+"; done; done")
	s.Must(err)
	answered := map[string]int{}
	for line := range strings.Lines(output) {
		from, _, _ := strings.Cut(strings.TrimPrefix(line, "node="), " ")
		answered[from]++
	}
	s.Logf("pods on %s are answered by %v", node, answered)
	if got := slices.Sorted(maps.Keys(answered)); !slices.Equal(got, by) {
		s.Errorf("pods on %s are answered by %v, and not by %v", node, got, by)
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
		if len(seen) < len(everybody) {
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
	for _, name := range everybody {
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
