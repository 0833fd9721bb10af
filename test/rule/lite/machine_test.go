package lite

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/application-grid/application-grid/internal/testkit/freeport"
)

var program = flag.String("lite.program", "../../../bin/lite-apiserver", "the lite-apiserver that is judged")

// What a link may be.
const (
	up      = iota
	refused // connections are refused, and broken off
	hole    // connections are accepted, and nothing is said any more
	silent  // connections say nothing any more, new ones are refused
	slow
)

// link is the way from the node to kube-apiserver.
type link struct {
	listener net.Listener
	to       string
	state    atomic.Int32
	mu       sync.Mutex
	open     map[net.Conn]*atomic.Bool // of both sides. Guarded by mu.
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	l := &link{listener: listener, to: to, open: map[net.Conn]*atomic.Bool{}}
	t.Cleanup(func() {
		_ = listener.Close() // it ends with the test
		l.set(refused)
	})
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go l.serve(connection)
		}
	}()
	return l
}

// set changes the link. What was frozen stays so.
func (l *link) set(state int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.Store(state)
	for connection, frozen := range l.open {
		switch state {
		case refused:
			reset(connection)
		case hole, silent:
			freeze(connection, frozen)
		}
	}
}

// freeze has a connection say nothing any more. The node's kernel notices a dead peer after 22.5 s.
func freeze(connection net.Conn, frozen *atomic.Bool) {
	frozen.Store(true)
	time.AfterFunc(22500*time.Millisecond, func() { reset(connection) })
}

// breakFrozen ends the connections that say nothing any more.
func (l *link) breakFrozen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for connection, frozen := range l.open {
		if frozen.Load() {
			reset(connection)
		}
	}
}

func reset(connection net.Conn) {
	_ = connection.(*net.TCPConn).SetLinger(0) // it may be closed
	_ = connection.Close()                     // it may be closed
}

func (l *link) serve(near net.Conn) {
	var frozen atomic.Bool
	l.mu.Lock()
	l.open[near] = &frozen
	state := l.state.Load()
	l.mu.Unlock()
	if state == hole {
		freeze(near, &frozen)
	}
	defer func() {
		l.mu.Lock()
		delete(l.open, near)
		l.mu.Unlock()
		_ = near.Close() // it may be closed
	}()
	switch state {
	case refused, silent:
		reset(near)
		return
	case hole:
		_, _ = io.Copy(io.Discard, near) // until the other side has enough of it
		return
	}
	far, err := net.Dial("tcp", l.to)
	must(err)
	l.mu.Lock()
	l.open[far] = &frozen
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.carry(near, far, &frozen) })
	both.Go(func() { l.carry(far, near, &frozen) })
	both.Wait()
	l.mu.Lock()
	delete(l.open, far)
	l.mu.Unlock()
}

// carry copies one direction. Frozen connections swallow what is sent, and are only ended by the node.
func (l *link) carry(to, from net.Conn, frozen *atomic.Bool) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if l.state.Load() == slow {
			time.Sleep(20 * time.Millisecond)
		}
		if err == nil && !frozen.Load() {
			_, err = to.Write(buffer[:n])
		}
		if err != nil {
			_ = to.Close()   // it may be closed
			_ = from.Close() // it may be closed
			return
		}
	}
}

// machine is the node's computer with its lite-apiserver.
type machine struct {
	t            *testing.T
	dir          string
	port, health int
	certificate  tls.Certificate
	process      *exec.Cmd
	ended        chan struct{}
	slowest      time.Duration
	resident     atomic.Int64 // KiB, the most
	written      int64
}

func newMachine(t *testing.T, k *keys, server string) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	var err error
	m.certificate, err = tls.X509KeyPair(k.kubelet, k.kubeletKey)
	must(err)
	m.port, err = freeport.Find(t.Context())
	must(err)
	m.health, err = freeport.Find(t.Context())
	must(err)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: k.caPEM}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificate: filepath.Join(m.dir, "kubelet.crt"),
		ClientKey: filepath.Join(m.dir, "kubelet.key")}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	must(os.WriteFile(filepath.Join(m.dir, "kubelet.crt"), k.kubelet, 0o600))
	must(os.WriteFile(filepath.Join(m.dir, "kubelet.key"), k.kubeletKey, 0o600))
	must(clientcmd.WriteToFile(*config, filepath.Join(m.dir, "kubeconfig")))
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			content, _ := os.ReadFile(filepath.Join(m.dir, "log"))
			lines := slices.DeleteFunc(strings.Split(string(content), "\n"), func(line string) bool {
				return strings.Contains(line, "trying again") || strings.Contains(line, "reverseproxy") ||
					strings.Contains(line, "handshake")
			})
			t.Logf("lite-apiserver:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	return m
}

func (m *machine) cache() string { return filepath.Join(m.dir, "lite") }
func (m *machine) store() string { return filepath.Join(m.cache(), "store") }

// start starts lite-apiserver, and waits until it serves.
func (m *machine) start() {
	log, err := os.OpenFile(filepath.Join(m.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(err)
	defer log.Close()
	process := exec.Command(*program, "--kubeconfig="+filepath.Join(m.dir, "kubeconfig"), "--unsealed",
		fmt.Sprint("--port=", m.port), fmt.Sprint("--health-bind-address=127.0.0.1:", m.health),
		"--file-cache-path="+m.cache(), "--allow-service-accounts="+shop+"/"+account)
	process.Stdout, process.Stderr = log, log
	process.Env = append(os.Environ(), "GOGC=", "GOMEMLIMIT=")
	began := time.Now()
	must(process.Start())
	ended := make(chan struct{})
	m.process, m.ended = process, ended
	go func() {
		_ = process.Wait() // kill asks for it, and looks whether it came before
		close(ended)
	}()
	go m.watchMemory(process.Process.Pid, ended)
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Second}, Config: &tls.Config{InsecureSkipVerify: true,
		Certificates: []tls.Certificate{m.certificate}}}
	for {
		connection, err := dialer.Dial("tcp", fmt.Sprint("127.0.0.1:", m.port))
		if err == nil {
			_ = connection.Close() // it was only to see
			break
		}
		if time.Since(began) > 20*time.Second {
			m.t.Fatalf("lite-apiserver does not serve: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	m.slowest = max(m.slowest, time.Since(began))
	if took := time.Since(began); took > 5*time.Second {
		m.t.Errorf("it serves %s after its start", took)
	}
}

func (m *machine) watchMemory(pid int, ended chan struct{}) {
	for {
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if _, after, found := bytes.Cut(content, []byte("VmRSS:")); found {
			kib, _ := strconv.ParseInt(strings.Fields(string(after))[0], 10, 64)
			m.resident.Store(max(m.resident.Load(), kib))
		}
		select {
		case <-ended:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// kill ends lite-apiserver as a loss of power does, and fails the test if it has ended by itself.
func (m *machine) kill() {
	if m.process == nil {
		return
	}
	m.count()
	select {
	case <-m.ended:
		m.t.Errorf("lite-apiserver has ended by itself: %s", m.process.ProcessState)
	default:
	}
	_ = m.process.Process.Kill() // it may have ended
	<-m.ended
	m.process = nil
}

// count adds what the process has written to files.
func (m *machine) count() {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", m.process.Process.Pid))
	if _, after, found := bytes.Cut(content, []byte("\nwrite_bytes:")); found {
		n, _ := strconv.ParseInt(strings.Fields(string(after))[0], 10, 64)
		m.written += n
	}
}

// config is how the kubelet asks lite-apiserver.
func (m *machine) config() *rest.Config {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.cache(), "kubelet.conf"))
	must(err)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.QPS = -1
	return config
}

// readyz is what lite-apiserver says of itself, and whether everything is on the disk.
func (m *machine) readyz() (body string, saved bool) {
	client := &http.Client{Timeout: 2 * time.Second}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/readyz?verbose", m.health))
	if err != nil {
		return err.Error(), false
	}
	defer response.Body.Close()
	content, _ := io.ReadAll(response.Body)
	return string(content), response.StatusCode == http.StatusOK && !bytes.Contains(content, []byte("not on disk"))
}

// explain runs the subcommand, and returns what is missing for each pod, by namespace/name.
func (m *machine) explain() (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, *program, "explain", "--kubeconfig="+filepath.Join(m.cache(), "kubelet.conf"),
		"--output=json")
	var problems bytes.Buffer
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, problems.String())
	}
	var decoded struct {
		Pods []struct {
			Namespace, Name string
			Missing         []string
		}
	}
	if err := json.Unmarshal(output, &decoded); err != nil {
		return nil, fmt.Errorf("%w: %s", err, output)
	}
	all := map[string][]string{}
	for _, pod := range decoded.Pods {
		all[pod.Namespace+"/"+pod.Name] = pod.Missing
	}
	return all, nil
}
