// Package listen listens at the addresses that flags give.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// TCP listens at an address. Its error begins with the flag, and says who may have the port.
func TCP(ctx context.Context, flag, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: a program or an outgoing connection has this port; docs/security.md says how to reserve "+
			"it", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return listener, nil
}
