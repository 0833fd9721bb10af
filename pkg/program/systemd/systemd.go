package systemd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

const (
	// statusPause is the time between two calls of Status. A status is sent only when it has changed.
	statusPause = 5 * time.Second
	// statusLimit is the most bytes of a status: systemctl status shows it on one line.
	statusLimit = 300
	// pingsPerInterval is how many pings the watchdog gets in each WatchdogSec=. systemd recommends two; the third
	// leaves room on a busy machine.
	pingsPerInterval = 3
)

// Program is the program whose state systemd gets.
type Program struct {
	// Alive returns an error if the program cannot do its work, or cannot report before its context ends. While it
	// fails, the watchdog gets no pings, and systemd restarts the program after WatchdogSec=. Another program that
	// cannot be reached is not a reason to fail: a restart would not repair that.
	Alive func(context.Context) error
	// Status returns the program's state as a line for people.
	Status func() string
}

// Notify sends READY=1, then the program's status and the watchdog's pings until ctx is done, and then STOPPING=1. It
// is called once the program listens. It returns at once if systemd does not expect notifications.
//
// A program that has not yet synced with its API server is ready nevertheless; its status says what it waits for. The
// kubelet and kube-proxy are ordered after these units, and the way to the API server may lead through them. Clients
// that ask before the sync get a 503 and try again.
func Notify(ctx context.Context, p Program) {
	logger := klog.FromContext(ctx).WithName("systemd")
	sentStatus := p.status()
	sent, err := daemon.SdNotify(false, daemon.SdNotifyReady+"\nSTATUS="+sentStatus)
	if err != nil {
		logger.Error(err,
			"Cannot notify systemd that the program is ready; it will end the program after TimeoutStartSec=")
	}
	if !sent {
		return
	}
	notify := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			logger.Error(err, "Cannot notify systemd", "state", state)
		}
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Error(err, "Cannot read the unit's WatchdogSec=; the watchdog gets no pings")
	}
	var pings <-chan time.Time // nil, so never ready, without a watchdog
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
				logger.Error(err, "Not pinging the watchdog: the program does not do its work",
					"restartWithin", interval)
				continue
			}
			notify(daemon.SdNotifyWatchdog)
		case <-looks.C:
			if status := p.status(); status != sentStatus {
				sentStatus = status
				notify("STATUS=" + status)
			}
		}
	}
}

// before returns what get returns, or late if the limit is reached first. A call that hangs is left to itself.
func before[T, L any](limit <-chan L, get func() T, late T) T {
	result := make(chan T, 1)
	go func() { result <- get() }()
	select {
	case got := <-result:
		return got
	case <-limit:
		return late
	}
}

// alive calls Alive, and fails after limit even if Alive hangs: systemd will soon end the program.
func (p Program) alive(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	late := fmt.Errorf("no answer within %s", limit)
	err := before(ctx.Done(), func() error { return p.Alive(ctx) }, late)
	if err != nil && ctx.Err() != nil { // both may be there at the same time
		return late
	}
	return err
}

// status calls Status, and makes one short line of it. It waits for one second at most.
func (p Program) status() string {
	status := strings.Join(strings.Fields(before(time.After(time.Second), p.Status, "does not answer")), " ")
	if len(status) > statusLimit {
		status = strings.ToValidUTF8(status[:statusLimit], "") + "…"
	}
	return status
}

// CheckAnswer requests a URL of the program's own listener, and fails if the answer is not 200.
func CheckAnswer(ctx context.Context, url string) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		// The program asks itself, so nothing depends on whether others trust its certificate.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("asking itself: %w", err)
	}
	// Every program accepts this name, whatever address it listens on.
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
