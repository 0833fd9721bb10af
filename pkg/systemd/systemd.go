package systemd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

const (
	// statusPause is between two looks at what Status says. It goes out only when it has changed.
	statusPause = 5 * time.Second
	// statusLimit is how much of it systemctl status gets, in bytes: it is one line.
	statusLimit = 300
	// pingsPerInterval is how often WatchdogSec= is served in its time. systemd recommends two; one more is for a
	// busy machine.
	pingsPerInterval = 3
)

// Program is what systemd is told of.
type Program struct {
	// Alive says whether the program can do its work, in the time of its context. While it fails the watchdog is not
	// served, and systemd restarts the program after WatchdogSec=. That others cannot be reached is no such failure.
	Alive func(context.Context) error
	// Status is a line for people.
	Status func() string
}

// Notify is called once the program listens. It tells systemd so, and goes on to tell it how the program is until
// ctx is done; then it says that the program ends. It returns at once where no systemd waits to be told.
//
// That the program has not yet synced with its API server is told as a status, not by withholding READY=1: the
// kubelet and kube-proxy are ordered after these units, the way to the API server may lead through them, and what
// asks meanwhile gets a 503, which it is made for.
func Notify(ctx context.Context, p Program) {
	logger := klog.FromContext(ctx).WithName("systemd")
	told := p.status()
	sent, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\nSTATUS="+told)
	if err != nil {
		logger.Error(err, "systemd cannot be told that the program is ready: it will end it after TimeoutStartSec=")
	}
	if !sent {
		return
	}
	notify := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			logger.Error(err, "systemd cannot be told", "state", state)
		}
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Error(err, "The unit's WatchdogSec= is not understood, the watchdog is not served")
	}
	var pings <-chan time.Time // never, without a watchdog
	if interval > 0 {
		ticker := time.NewTicker(interval / pingsPerInterval)
		defer ticker.Stop()
		pings = ticker.C
		notify(daemon.SdNotifyWatchdog)
	}
	looks := time.NewTicker(statusPause)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			notify(daemon.SdNotifyStopping + "\nSTATUS=ending")
			return
		case <-pings:
			if err := p.alive(ctx, interval/pingsPerInterval); err != nil {
				logger.Error(err, "Not serving the watchdog: the program does not do its work",
					"restartWithin", interval)
				continue
			}
			notify(daemon.SdNotifyWatchdog)
		case <-looks.C:
			if status := p.status(); status != told {
				told = status
				notify("STATUS=" + told)
			}
		}
	}
}

// alive is Alive with an end, also if that hangs. What hangs is left behind: the program's end is near.
func (p Program) alive(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- p.Alive(ctx) }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer within %s", limit)
	}
}

// status is Status as one short line; nothing if it takes long.
func (p Program) status() string {
	result := make(chan string, 1)
	go func() { result <- p.Status() }()
	select {
	case status := <-result:
		status = strings.Join(strings.Fields(status), " ")
		if len(status) > statusLimit {
			status = strings.ToValidUTF8(status[:statusLimit], "") + "…"
		}
		return status
	case <-time.After(time.Second):
		return "does not answer"
	}
}

// Answers asks the program's own listener for a path, over TLS if tls is set, and fails if it is not answered 200.
func Answers(ctx context.Context, address net.Addr, withTLS bool, path string) error {
	scheme := "http"
	transport := &http.Transport{DisableKeepAlives: true}
	if withTLS {
		scheme = "https"
		// It asks itself: whether its certificate is one that others trust is not the question.
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see above
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address.String()+path, nil)
	if err != nil {
		return fmt.Errorf("asking itself: %w", err)
	}
	// The one name that a program accepts whatever address it listens on.
	request.Host = "localhost"
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("asking itself: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New("it answers itself " + response.Status)
	}
	return nil
}
