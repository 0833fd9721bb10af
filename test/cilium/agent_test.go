package cilium

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// account is that of the agent.
const account = "cilium"

// enter makes the namespaces of the agent, besides the network of its node: a mount namespace with a /run, a BPF file
// system and a service account of its own, and a cgroup below which alone its programs see connections. Cilium sets two
// sysctls that are the whole machine's; there it sees files in their place.
const enter = `set -eu; cd "$1"; mkdir -p lib cg; cp -r "$2/bpf" lib; chmod -R u+w lib
mountpoint -q cg || mount -t cgroup2 none cg; mkdir -p "cg/$3"; echo $$ >"cg/$3/cgroup.procs"
exec unshare -m -C bash -euc '
	mount --make-rprivate /; mount -t tmpfs run /run; mkdir -p /run/cilium "$1"
	for s in timer_migration unprivileged_bpf_disabled; do
		cat /proc/sys/kernel/$s >$s; mount --bind $s /proc/sys/kernel/$s
	done
	for m in $(findmnt -rnt bpf -o TARGET); do umount "$m"; done; mount -t bpf none /sys/fs/bpf
	umount cg; mount -t cgroup2 none cg; cp ca.crt token "$1/"; echo ready; exec sleep infinity' - ` + serviceAccount

// serviceAccount is where a pod has its service account.
const serviceAccount = "/run/secrets/kubernetes.io/serviceaccount"

// within runs a program in the agent's namespaces.
const within = `echo $$ >"$1/cgroup.procs"; t=$2; shift 2; exec nsenter -t "$t" -m -C -- "$@"`

// agent is a cilium-agent on a node.
type agent struct {
	t      *testing.T
	node   *cluster.Node
	dir    string
	cgroup string
	// holder keeps the agent's namespaces. process is the agent, nil while it does not run.
	holder, process *exec.Cmd
}

// newAgent prepares a node for Cilium: its kube-proxy goes, and what that has made.
func newAgent(t *testing.T, node *cluster.Node) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "cilium-") //nolint:usetesting // its name is the cgroup's, and clean ends its mounts
	a := &agent{t: t, node: node, dir: dir, cgroup: filepath.Join(dir, "cg", filepath.Base(dir))}
	t.Cleanup(a.clean)
	suite.Must(t, err)
	suite.Must(t, node.KubeProxy.Stop())
	_, err = node.Run(t.Context(), "nft", "flush", "ruleset")
	suite.Must(t, err)
	client := shared.Client()
	token, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Must(t, os.WriteFile(filepath.Join(dir, "token"), []byte(token.Status.Token), 0o600))
	suite.Must(t, os.WriteFile(filepath.Join(dir, "ca.crt"), node.WrapperConfig(cluster.RoleNobody).CAData, 0o600))
	suite.Must(t, os.Mkdir(filepath.Join(dir, "tools"), 0o755))
	for name, program := range map[string]string{"clang": "clang-19", "llc": "llc-19"} {
		path, err := exec.LookPath(program)
		suite.Must(t, err)
		suite.Must(t, os.Symlink(path, filepath.Join(dir, "tools", name)))
	}
	a.holder = exec.Command("bash", "-c", enter, "-", dir, sources, filepath.Base(dir))
	a.holder.Stderr = os.Stderr
	said, err := a.holder.StdoutPipe()
	suite.Must(t, err)
	suite.Must(t, node.Start(a.holder))
	if n, err := said.Read(make([]byte, 16)); n == 0 {
		t.Fatalf("making Cilium's namespaces: %v", err)
	}
	return a
}

// clean ends everything, and removes the cgroup, from outside of its namespace.
func (a *agent) clean() {
	a.stop()
	if a.holder != nil && a.holder.Process != nil {
		_ = a.holder.Process.Kill() // it has nothing to do at its end
		_ = a.holder.Wait()
	}
	begin := time.Now()
	for os.Remove(a.cgroup) != nil && time.Since(begin) < 5*time.Second {
		time.Sleep(50 * time.Millisecond)
	}
	_ = exec.Command("umount", filepath.Join(a.dir, "cg")).Run()
	if _, err := os.Stat(a.cgroup); !errors.Is(err, fs.ErrNotExist) {
		a.t.Logf("%s is still there: %v", a.cgroup, err)
		return
	}
	_ = os.RemoveAll(a.dir)
}

// command is a command in the agent's namespaces, for the node's network.
func (a *agent) command(program string, args ...string) *exec.Cmd {
	return exec.Command("bash", slices.Concat([]string{"-c", within, "-", a.cgroup,
		strconv.Itoa(a.holder.Process.Pid), program}, args)...)
}

// environment is what a pod of Cilium has of its cluster.
func (a *agent) environment() []string {
	a.t.Helper()
	server, port, err := net.SplitHostPort(strings.TrimPrefix(a.node.APIServerURL(), "https://"))
	suite.Must(a.t, err)
	return []string{
		"KUBERNETES_SERVICE_HOST=" + server, "KUBERNETES_SERVICE_PORT=" + port, "K8S_NODE_NAME=" + a.node.Name(),
		"CILIUM_K8S_NAMESPACE=kube-system", "PATH=" + filepath.Join(a.dir, "tools") + ":" + os.Getenv("PATH"),
	}
}

// configure does what the init container of Cilium's pods does: it makes the agent's configuration of cilium-config and
// the CiliumNodeConfigs. It returns the flag that leads the agent there. flags are further ones of the init container.
func (a *agent) configure(flags ...string) string {
	a.t.Helper()
	directory := filepath.Join(a.dir, "config")
	cmd := a.command("env", slices.Concat(a.environment(), []string{filepath.Join(programs, "cilium-dbg"), "build-config",
		"--dest=" + directory}, flags)...)
	said := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	suite.Must(a.t, a.node.Start(cmd))
	if err := cmd.Wait(); err != nil {
		a.t.Fatalf("cilium-dbg build-config: %v\n%s", err, said)
	}
	return "--config-dir=" + directory
}

// start starts the agent with its service account, at kube-apiserver unless a configuration says otherwise.
func (a *agent) start(flags ...string) {
	a.t.Helper()
	lib := filepath.Join(a.dir, "lib")
	a.process = a.command("env", slices.Concat(a.environment(), []string{
		filepath.Join(programs, agentName), "--kube-proxy-replacement=true", "--routing-mode=native",
		"--ipv4-native-routing-cidr=10.244.0.0/16", "--enable-ipv6=false", "--enable-ipv4-masquerade=false",
		"--ipam=kubernetes", "--k8s-require-ipv4-pod-cidr=true", "--identity-allocation-mode=crd", "--enable-hubble=false",
		"--enable-l7-proxy=false", "--enable-health-checking=false", "--enable-endpoint-health-checking=false",
		"--devices=eth0", "--lib-dir=" + lib, "--state-dir=/run/cilium", "--bpf-root=/sys/fs/bpf",
		"--cgroup-root=" + filepath.Join(a.dir, "cg"), "--bpf-lb-map-max=32768", "--bpf-ct-global-tcp-max=65536",
		"--bpf-ct-global-any-max=32768", "--bpf-nat-global-max=65536", "--bpf-neigh-global-max=65536",
		"--enable-cilium-endpoint-slice=false",
	}, flags)...)
	log, err := os.OpenFile(filepath.Join(shared.Dir(), "cilium-agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	suite.Must(a.t, err)
	defer log.Close() // the agent has its own descriptor
	a.process.Stdout, a.process.Stderr = log, log
	suite.Must(a.t, a.node.Start(a.process))
}

// stop stops the agent. Its maps stay.
func (a *agent) stop() {
	if a.process == nil {
		return
	}
	_ = a.process.Process.Signal(os.Interrupt) // if it has ended, it is gone
	stuck := time.AfterFunc(30*time.Second, func() { _ = a.process.Process.Kill() })
	_ = a.process.Wait()
	stuck.Stop()
	a.process = nil
}

// reboot takes away what a machine that reboots has lost.
func (a *agent) reboot() {
	a.t.Helper()
	a.stop()
	cmd := a.command("bash", "-c", "rm -rf /sys/fs/bpf/{tc,cilium} /run/cilium/state")
	cmd.Stderr = os.Stderr
	suite.Must(a.t, a.node.Start(cmd))
	suite.Must(a.t, cmd.Wait())
}

// cpu is how long a process has computed.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	used, err := cluster.ProcessorTime(pid)
	suite.Must(t, err)
	return used
}

var backend = regexp.MustCompile(`^([\d.]+):\d+/TCP`)

// backends returns how many Services the agent's maps have, and the backends of one, in order.
func (a *agent) backends(ctx context.Context, service *corev1.Service) (services int, backends []string, err error) {
	said, err := a.run(filepath.Join(programs, "cilium-dbg"), "bpf", "lb", "list", "-o", "json")
	if err != nil {
		return 0, nil, err
	}
	maps := map[string][]string{}
	if err := json.Unmarshal([]byte(said), &maps); err != nil {
		return 0, nil, err
	}
	for frontend, entries := range maps {
		if !strings.HasPrefix(frontend, service.Spec.ClusterIP+":") {
			continue
		}
		for _, entry := range entries {
			if match := backend.FindStringSubmatch(entry); match != nil && match[1] != "0.0.0.0" {
				backends = append(backends, match[1])
			}
		}
	}
	slices.Sort(backends)
	return len(maps), slices.Compact(backends), ctx.Err()
}

// run runs a program in the agent's namespaces, and returns what it prints.
func (a *agent) run(program string, args ...string) (string, error) {
	var said strings.Builder
	cmd := a.command(program, args...)
	cmd.Stdout = &said
	if err := a.node.Start(cmd); err != nil {
		return "", err
	}
	err := cmd.Wait()
	return said.String(), err
}

// probe connects to a Service from the agent's node as kubectl grid prove does.
func (a *agent) probe(service *corev1.Service) (result probe.Result, err error) {
	said, err := a.run(wrapper, "probe", net.JoinHostPort(service.Spec.ClusterIP,
		strconv.Itoa(int(service.Spec.Ports[0].Port))), "--requests=30", "--timeout=200ms")
	if err == nil {
		err = json.Unmarshal([]byte(said), &result)
	}
	return result, err
}

// answers returns the nodes that answer connections from the agent's node to a Service.
func (a *agent) answers(service *corev1.Service) (string, error) {
	said, err := a.run("bash", "-c", `for i in $(seq 30); do curl -s -m 2 "$1" || true; done`, "-",
		"http://"+net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port))))
	if err != nil {
		return "", err
	}
	var nodes []string
	for line := range strings.FieldsSeq(said) {
		if node, found := strings.CutPrefix(line, "node="); found {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return strings.Join(slices.Compact(nodes), " "), nil
}
