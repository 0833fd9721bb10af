package standin

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const (
	// configFile is the node's configuration.
	configFile = "/etc/rancher/k3s/config.yaml"
	// agentDir has what the agent keeps.
	agentDir = "/var/lib/rancher/k3s/agent"
	// Socket is containerd's.
	Socket = "/run/k3s/containerd/containerd.sock"
	// PIDFile has the number of the process.
	PIDFile = "/run/k3s.pid"

	apiServerPort = "6443"
	agentPort     = "6444"
)

// Run is the process. It returns when it has failed, as that of k3s ends: with any of its parts. "k3s ctr" is ctr.
func Run() int {
	if len(os.Args) > 1 && os.Args[1] == "ctr" {
		err := syscall.Exec("/opt/bin/ctr", append([]string{"ctr"}, os.Args[2:]...), //nolint:gosec // as k3s does
			append(os.Environ(), "CONTAINERD_ADDRESS="+Socket))
		fmt.Fprintln(os.Stderr, "k3s ctr:", err)
		return 1
	}
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	log.SetPrefix("k3s stand-in: ")
	log.Print(run(context.Background()))
	return 1
}

// agent is a node's part.
type agent struct {
	configuration
	command, name string
	// server is how kubelet and kube-proxy reach an API server.
	server string
	// ended has why a part has ended.
	ended chan error
}

func run(ctx context.Context) error {
	if err := os.WriteFile(PIDFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(agentDir+"/pod-manifests", 0o700); err != nil { // of static pods
		return err
	}
	if err := version.SetDynamicVersion(version.Get().GitVersion + "+k3s1"); err != nil {
		return fmt.Errorf("the version of k3s: %w", err)
	}
	c, err := readConfiguration(configFile)
	if err != nil {
		return err
	}
	a := &agent{configuration: c, command: "agent", name: c.first("node-name", ""), ended: make(chan error)}
	if err := a.connect(); err != nil {
		return err
	}
	a.awaitServer(ctx)
	if err := validate(c["kube-proxy-arg"]); err != nil {
		return err
	}
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged // kubelet and kube-proxy both set up logging
	logs.InitLogs()
	go a.child("containerd", "--config="+agentDir+"/etc/containerd/config.toml")
	awaitSocket()
	go a.kubelet(ctx)
	go a.kubeProxy()
	go a.describeNode(ctx)
	return <-a.ended
}

// connect starts what listens on the ports of k3s: on an agent a load balancer, on a server the control plane.
func (a *agent) connect() error {
	port := a.first("lb-server-port", agentPort)
	listen, target := "127.0.0.1:"+port, strings.TrimPrefix(a.first("server", ""), "https://")
	if target == "" {
		a.command = "server"
		a.startControlPlane(port)
		listen, target = "0.0.0.0:"+apiServerPort, "127.0.0.1:"+port
	}
	a.server = "https://127.0.0.1:" + port
	listener, err := net.Listen("tcp", listen) //nolint:noctx // it lasts as long as the process
	if err != nil {
		return err
	}
	go func() { a.ended <- balance(listener, target) }()
	return nil
}

// validate has kube-proxy's own flags parse the arguments.
func validate(args []string) error {
	command := proxy.NewProxyCommand()
	globalflag.AddGlobalFlags(command.Flags(), command.Name(), logs.SkipLoggingConfigurationFlags())
	if err := command.ParseFlags(arguments(nil, args)); err != nil {
		return fmt.Errorf("kube-proxy-arg: %w", err)
	}
	return nil
}

// child runs a program that ends with this process; this process ends with it.
func (a *agent) child(name string, args ...string) {
	// the child dies with the thread that has started it
	runtime.LockOSThread()
	file, err := os.OpenFile(filepath.Join("/var/log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // one of ours
	if err != nil {
		a.ended <- err
		return
	}
	defer file.Close()
	command := exec.Command(name, args...) //nolint:gosec,noctx // one of ours; it ends with this process
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		a.ended <- err
		return
	}
	_ = command.Wait() // its state says how it ended
	a.ended <- fmt.Errorf("%s ended: %s", name, command.ProcessState)
}

func awaitSocket() {
	for {
		connection, err := net.Dial("unix", Socket) //nolint:noctx // it answers at once
		if err == nil {
			_ = connection.Close()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (a *agent) kubelet(ctx context.Context) {
	kubeconfig, err := a.writeKubeconfig("kubelet")
	if err == nil {
		command := kubelet.NewKubeletCommand(ctx)
		command.SetArgs(arguments(map[string]string{
			"config": agentDir + "/etc/kubelet.yaml", "kubeconfig": kubeconfig, "hostname-override": a.name,
			"node-ip": a.first("node-ip", ""), "node-labels": strings.Join(a.configuration["node-label"], ","),
			"read-only-port": "0", "cert-dir": agentDir + "/pki",
		}, a.configuration["kubelet-arg"]))
		err = command.Execute()
	}
	a.ended <- fmt.Errorf("the kubelet ended: %w", err)
}

func (a *agent) kubeProxy() {
	kubeconfig, err := a.writeKubeconfig("kubeproxy")
	if err == nil {
		args := arguments(map[string]string{
			"proxy-mode": "iptables", "healthz-bind-address": "127.0.0.1", "kubeconfig": kubeconfig,
			"cluster-cidr": a.first("cluster-cidr", "10.42.0.0/16"), "conntrack-max-per-core": "0",
			"conntrack-tcp-timeout-established": "0s", "conntrack-tcp-timeout-close-wait": "0s",
			"hostname-override": a.name,
		}, a.configuration["kube-proxy-arg"])
		log.Printf("running kube-proxy %s", strings.Join(args, " "))
		command := proxy.NewProxyCommand()
		command.SetArgs(args)
		err = command.Execute()
	}
	a.ended <- fmt.Errorf("kube-proxy ended: %w", err)
}

// keys are those of a map, in order.
func keys[V any, M ~map[string]V](m M) []string { return slices.Sorted(maps.Keys(m)) }
