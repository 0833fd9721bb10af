package lite

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

var patience = await.Patience{Within: time.Minute, Between: 10 * time.Millisecond}

// machine is a node with a disk, on which lite-apiserver is a process, and a link that can be cut.
type machine struct {
	suite.Test
	name string
	// cut is set while the link is down.
	cut        atomic.Bool
	kubeconfig string
	// image is the file behind the disk, which is mounted at disk; "" if the disk is a directory of this machine's.
	image, disk string
	// address is where the kubelet is served, health where /readyz is.
	address, health string
	process         *exec.Cmd
}

// newMachine makes a node, with a disk that powerCut cuts off if losesPower is set.
func newMachine(t *testing.T, name string, losesPower bool) *machine {
	t.Helper()
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", suite.FreePort(t)) }
	m := &machine{Test: suite.Test{T: t, Cluster: shared, Patience: patience}, name: name,
		disk: filepath.Join(t.TempDir(), "disk"), address: address(), health: address()}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := shared.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	m.Must(err)
	m.Must(shared.CreateCSINode(t.Context(), name))
	upstream := strings.TrimPrefix(shared.RESTConfig().Host, "https://")
	relay, err := cluster.StartRelay(t.Context(), func(ctx context.Context) (net.Conn, error) {
		if m.cut.Load() {
			return nil, errors.New("the link is down")
		}
		opened, err := new(net.Dialer).DialContext(ctx, "tcp", upstream)
		return &linked{Conn: opened, cut: &m.cut}, err
	})
	m.Must(err)
	t.Cleanup(relay.Close)
	m.kubeconfig, err = shared.KubeletKubeconfig(name, "https://"+relay.Address())
	m.Must(err)
	m.Must(os.Mkdir(m.disk, 0o700))
	if losesPower {
		m.image = m.disk + ".0"
		m.run("truncate", "--size=24M", m.image)
		m.run("mkfs.ext4", "-q", m.image)
		m.mount()
	}
	t.Cleanup(func() {
		m.kill()
		if m.image != "" {
			m.run("umount", m.disk)
		}
	})
	return m
}

func (m *machine) run(name string, args ...string) {
	m.Helper()
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil { // also when the test has ended
		m.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, output)
	}
}

// mount mounts the disk so that the file system itself writes nothing for a while that nobody has synced.
func (m *machine) mount() {
	m.Helper()
	m.run("mount", "-o", "loop,commit=300", m.image, m.disk)
}

// linked is a connection over the link. What is sent while the link is down is lost, and with it the connection.
type linked struct {
	net.Conn

	cut  *atomic.Bool
	lost atomic.Bool
}

var errLost = errors.New("the link was down")

// isDown reports whether the link is down. err is set if it was before.
func (c *linked) isDown() (down bool, err error) {
	if c.cut.Load() {
		c.lost.Store(true)
		return true, nil
	}
	if c.lost.Load() {
		return false, errLost
	}
	return false, nil
}

func (c *linked) Write(data []byte) (int, error) {
	if down, err := c.isDown(); down || err != nil {
		return len(data), err
	}
	return c.Conn.Write(data)
}

func (c *linked) Read(data []byte) (int, error) {
	for {
		n, err := c.Conn.Read(data)
		if down, lostErr := c.isDown(); !down || err != nil {
			return n, cmp.Or(err, lostErr)
		}
	}
}

// start starts lite-apiserver, and waits until it serves.
func (m *machine) start() {
	m.Helper()
	_, port, err := net.SplitHostPort(m.address)
	m.Must(err)
	log, err := os.OpenFile(m.disk+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	m.Must(err)
	defer log.Close()
	m.process = exec.Command(suite.Binary(m, "lite-apiserver"), "--kubeconfig="+m.kubeconfig, "--port="+port,
		"--health-bind-address="+m.health, "--file-cache-path="+m.dir(), "--unsealed")
	m.process.Stdout, m.process.Stderr = log, log
	// Its own settings, which the Makefile's of the tests would replace: its memory and processor time are measured.
	m.process.Env = append(os.Environ(), "GOGC=", "GOMEMLIMIT=")
	m.Must(m.process.Start())
	patience.Until(m.T, m.name+" serves", func() error {
		// It has the port before it has read what it kept, and answers a handshake once it serves.
		dialer := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}}
		connection, err := dialer.DialContext(m.Context(), "tcp", m.address)
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// dir is what lite-apiserver has on the disk.
func (m *machine) dir() string { return filepath.Join(m.disk, "lite") }

// kill ends lite-apiserver as a loss of power does.
func (m *machine) kill() {
	if m.process != nil {
		_ = m.process.Process.Kill() // it may have ended
		_ = m.process.Wait()         // it was killed
		m.process = nil
	}
}

// powerCut ends lite-apiserver, and takes from the disk what has not reached it: the disk becomes what the device has,
// and the file system's cache is thrown away.
func (m *machine) powerCut() {
	m.Helper()
	m.kill()
	before := m.image
	number := strings.TrimPrefix(filepath.Ext(before), ".")
	m.image = strings.TrimSuffix(before, number) + number + "1"
	m.run("cp", "--sparse=always", before, m.image)
	m.run("umount", m.disk)
	m.Must(os.Remove(before))
	m.mount()
}

// kubelet is a client as the kubelet is one: with its certificate, and in protobuf.
func (m *machine) kubelet() kubernetes.Interface {
	m.Helper()
	client, err := kubernetes.NewForConfig(m.kubeletConfig())
	m.Must(err)
	return client
}

func (m *machine) kubeletConfig() *rest.Config {
	m.Helper()
	config, err := cluster.ReadKubeletConfig(m.dir())
	m.Must(err)
	return config
}

// pods are what the kubelet is answered.
func (m *machine) pods() (*corev1.PodList, error) {
	return m.kubelet().CoreV1().Pods("").List(m.Context(), metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + m.name, ResourceVersion: "0"})
}

// recorded waits until each of these texts is on the disk in so many entries at least.
func (m *machine) recorded(times int, texts ...string) {
	m.Helper()
	patience.Until(m.T, m.name+" has recorded it", func() error {
		state, problems := store.Read(filepath.Join(m.dir(), "store"), nil)
		for _, text := range texts {
			count := 0
			for key, value := range state {
				if strings.Contains(key, text) || bytes.Contains(value, []byte(text)) {
					count++
				}
			}
			if count < times {
				return fmt.Errorf("%s is in %d entries of %d: %v", text, count, len(state), problems)
			}
		}
		return nil
	})
}

// ready waits until lite-apiserver says that it is.
func (m *machine) ready() {
	m.Helper()
	patience.Until(m.T, m.name+" is ready", func() error { return healthy(m.Context(), "http://"+m.health+"/readyz") })
}
