// Package freeport finds ports for servers of tests that have to be told their port before they listen on it.
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

var (
	mu    sync.Mutex
	given = map[int]bool{} // guarded by mu
)

// Find returns a port of 127.0.0.1 on which nothing listens, and which this process was not given before. The error is
// one of the system, or says that there is none.
func Find(ctx context.Context) (int, error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := first + rand.IntN(last-first+1) //nolint:gosec // no secret
		if given[port] {
			continue
		}
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("looking for a free port: %w", err)
		}
		given[port] = true
		return port, listener.Close()
	}
	return 0, fmt.Errorf("none of %d ports from %d to %d is free", tries, first, last)
}
