package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/pkg/version"
)

const (
	// DialTimeout is how long a connection may take to be made. SYNs are sent after 0, 1 and 3 s.
	DialTimeout = 5 * time.Second
	// userTimeout is how long what was sent may stay without an answer from the other end's kernel.
	userTimeout = 20 * time.Second
)

// keepAlive probes a quiet connection. It is given up 25 s after the other end was last heard of.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// Options are the flags that lead to the API server.
type Options struct {
	// Program is part of the user agent.
	Program string
	// Kubeconfig is a file, Master a URL that takes precedence over the file's. If both are empty, the service
	// account of the pod is used.
	Kubeconfig, Master string
	// QPS and Burst bound the program's own requests; both must be greater than 0.
	QPS   float32
	Burst int
	// PassesOn leaves the StallGuard out, for a program that passes requests on for others.
	PassesOn bool
}

func (o Options) userAgent() string {
	return o.Program + "/" + strings.Fields(version.String())[0]
}

// load reads what leads to the API server. The error says which flag to change.
func (o Options) load() (*rest.Config, error) {
	config, err := o.read()
	if err != nil {
		return nil, err
	}
	config.Dial = Dial
	config.UserAgent = o.userAgent()
	return config, nil
}

func (o Options) read() (*rest.Config, error) {
	if o.Kubeconfig == "" && o.Master == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig, and this is not a pod with a service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags(o.Master, o.Kubeconfig)
	switch {
	case err == nil:
		return config, nil
	case o.Master == "":
		return nil, fmt.Errorf("--kubeconfig %s: %w", o.Kubeconfig, err)
	default:
		return nil, fmt.Errorf("--master %q, --kubeconfig %q: %w", o.Master, o.Kubeconfig, err)
	}
}

// Dial makes a connection that breaks within half a minute after the other end fell silent. The kernel's own
// patience is 15 minutes for data that nobody acknowledges, and endless for a watch that only listens.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: DialTimeout, KeepAliveConfig: keepAlive, ControlContext: setUserTimeout}
	return dialer.DialContext(ctx, network, address)
}

// setUserTimeout sets TCP_USER_TIMEOUT (RFC 5482). The keep-alive probes heed it as well, but no probe is sent
// while data is on its way, which is when this one is needed.
func setUserTimeout(_ context.Context, network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var set error
	err := c.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
	return errors.Join(err, set)
}
