// Package freeport finds ports for servers of tests that need their port before they listen on it.
//
// A port that the kernel chose (port 0) does not serve for that: the kernel may give it to any client as soon as
// nothing listens on it, for example while a server is started again.
package freeport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
)

// Ports from first to last are below those that Linux gives to clients (net.ipv4.ip_local_port_range) and those that
// Kubernetes gives to Services, and above those that Kubernetes' programs have of their own.
const (
	first, last = 12000, 29999
	tries       = 100
)

// claims are listeners at abstract names of sockets, one for each port that was given: by them other processes see that
// the port is taken, also while nothing listens on it. They end with the process.
var (
	mu     sync.Mutex
	claims []net.Listener // guarded by mu
)

// Find returns a port of 127.0.0.1 on which nothing listens, and which it gave neither to this process before nor to
// another one that runs. The error is one of the system, or says that no port is free.
func Find(ctx context.Context) (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := first + rand.IntN(last-first+1) //nolint:gosec // no secret
		claim, err := new(net.ListenConfig).Listen(ctx, "unix", fmt.Sprintf("@application-grid/port/%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("claiming a port: %w", err)
		}
		claims = append(claims, claim)
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("looking for a free port: %w", err)
		}
		return port, listener.Close()
	}
	return 0, fmt.Errorf("none of %d ports from %d to %d is free", tries, first, last)
}
