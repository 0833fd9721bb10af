package lite

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	// probeInterval is the time between two probes while kube-apiserver is away.
	probeInterval = time.Second
	// probeTimeout is how long a probe waits for an answer.
	probeTimeout = 2 * time.Second
	// suspectInterval is the time between two probes of a kube-apiserver that answers.
	suspectInterval = 250 * time.Millisecond
)

// link knows whether kube-apiserver answers: it is away from the first dial or probe that fails until a probe is
// answered, whatever the answer is. It is asked for every request, so that one request waits for a server that is away,
// and not all of them. Other errors of requests may be their senders' fault, and cause a probe only.
type link struct {
	// probe asks kube-apiserver anything.
	probe func(ctx context.Context) error

	mu sync.Mutex
	// away is closed when kube-apiserver is back; nil while it answers. Guarded by mu.
	away chan struct{}
	// hurry has a value when a probe is to be made.
	hurry chan struct{}
}

func newLink(probe func(ctx context.Context) error) *link {
	return &link{probe: probe, hurry: make(chan struct{}, 1)}
}

// Away returns a channel that is closed when kube-apiserver is back; nil while it answers.
func (l *link) Away() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

// fail notes that there is no server.
func (l *link) fail() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away == nil {
		l.away = make(chan struct{})
		wake(l.hurry)
	}
}

// suspect has the server probed, unless it is away, and probed anyway.
func (l *link) suspect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away == nil {
		wake(l.hurry)
	}
}

// back notes that kube-apiserver has answered.
func (l *link) back() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away != nil {
		close(l.away)
		l.away = nil
	}
}

// ask probes once.
func (l *link) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := l.probe(ctx)
	if err == nil {
		l.back()
	} else {
		l.fail()
	}
	return err
}

// Run probes while kube-apiserver is away or suspected to be, until ctx is done.
func (l *link) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	said, suspected := false, false
	var asked time.Time
	for {
		if away := l.Away() != nil; away != said {
			said = away
			if away {
				logger.Info("kube-apiserver is away: the kubelet is answered from what is kept")
			} else {
				logger.Info("kube-apiserver is back")
			}
		}
		if said || (suspected && time.Since(asked) >= suspectInterval) {
			_ = l.ask(ctx) // it notes the result
			asked, suspected = time.Now(), false
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-l.hurry:
			suspected = true
		}
	}
}

// watching is a transport that tells the link of requests that fail.
type watching struct {
	next http.RoundTripper
	link *link
}

// RoundTrip implements http.RoundTripper.
func (t watching) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	var failed *net.OpError
	switch {
	case err == nil || (r.Context().Err() != nil && !errors.Is(err, context.DeadlineExceeded)):
	case errors.As(err, &failed) && failed.Op == "dial":
		t.link.fail()
	default:
		t.link.suspect()
	}
	return response, err
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t watching) WrappedRoundTripper() http.RoundTripper { return t.next }
