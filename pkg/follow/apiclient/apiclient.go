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

	"github.com/application-grid/application-grid/pkg/program/version"
)

const (
	// DialTimeout is how long opening a connection may take. SYNs are sent after 0, 1 and 3 s.
	DialTimeout = 5 * time.Second
	// userTimeout is how long sent data may stay unacknowledged by the other end's kernel.
	userTimeout = 20 * time.Second
)

// keepAlive probes a quiet connection, and breaks it 25 s after the last packet from the other end.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}

// Options are the flags for the connection to the API server.
type Options struct {
	// Program is part of the user agent.
	Program string
	// Kubeconfig is a file, Master a URL that takes precedence over the file's. If both are empty, the service
	// account of the pod is used.
	Kubeconfig, Master string
	// QPS and Burst bound the program's own requests; both must be greater than 0.
	QPS   float32
	Burst int
	// PassesOn leaves the StallGuard out, for a program that passes on the requests of other clients.
	PassesOn bool
}

// load reads the client configuration. Its errors name the flag to change.
func (o Options) load() (config *rest.Config, err error) {
	inPod := o.Kubeconfig == "" && o.Master == ""
	if inPod {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags(o.Master, o.Kubeconfig)
	}
	switch {
	case err == nil:
		config.Dial = Dial
		config.UserAgent = o.Program + "/" + strings.Fields(version.String())[0]
		return config, nil
	case inPod:
		return nil, fmt.Errorf("no --kubeconfig, and this is not a pod with a service account: %w", err)
	case o.Master == "":
		return nil, fmt.Errorf("--kubeconfig %s: %w", o.Kubeconfig, err)
	default:
		return nil, fmt.Errorf("--master %q, --kubeconfig %q: %w", o.Master, o.Kubeconfig, err)
	}
}

// Dial makes a connection that breaks within half a minute after the other end falls silent. By default the kernel
// waits 15 minutes for the acknowledgement of sent data, and without limit on a watch, which sends nothing.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: DialTimeout, KeepAliveConfig: keepAlive, ControlContext: setUserTimeout}
	return dialer.DialContext(ctx, network, address)
}

// setUserTimeout sets TCP_USER_TIMEOUT (RFC 5482). Keep-alive probes are not sent while data is unacknowledged, so they
// alone do not notice a peer that dies then.
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
