package apiclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const (
	// probeInterval is the time between two probes in the first quickProbes in which the API server is away. From then
	// on it is slowInterval on average, at random: ten thousand nodes must not hold down a server that comes back.
	probeInterval = time.Second
	quickProbes   = 30 * time.Second
	slowInterval  = 5 * time.Second
	// probeTimeout is how long a probe waits for an answer: as long as a kubelet does.
	probeTimeout = 10 * time.Second
	// leastPatience is how long an API server that answers fast may be silent until it is away.
	leastPatience = 2 * time.Second
	// suspectInterval is the time between two probes of an API server that answers.
	suspectInterval = 250 * time.Millisecond
	// answerInterval is the same for probes that answers cause, once each probe was answered for some seconds: a client
	// may ask an aggregated API that is down all the time. It applies until there was no such answer for calmAfter.
	answerInterval = 5 * time.Second
	calmAfter      = time.Minute

	// Spread is the time within which what can wait is done after the API server is back, so that a thousand nodes that
	// lost it together do not ask at the same time.
	Spread = 10 * time.Second

	// Disconnected is the code of the warning with which lite-apiserver marks its answers while kube-apiserver is away
	// ("Disconnected Operation" of RFC 7234, 5.5.3).
	Disconnected = 112

	reviewPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	review     = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
)

// Link knows whether the API server of a Connection is away: from the first dial or probe that fails until a probe is
// answered. It is asked for every request, so that only one request waits for a server that is away. Other errors of
// requests may be their senders' fault, and an answer of 500, 502, 503 or 504, or one that a gateway may have sent, may
// have another cause than the API server, so these only cause a probe. The requests are those of all the Connection's
// transports.
//
// A probe fails if it takes twice as long as the last one that was answered. It still goes on, and its answer counts
// when it comes: on a slow link the API server is there for whoever waits as long.
//
// A probe is a request that no cache answers, and with RequireNode another one that needs etcd. The object that it asks
// for and every Status count, except with a status of 500 and above, which an API server sends in place of etcd. Pages,
// redirects and other objects, which only a gateway sends, do not count.
type Link struct {
	probe func(ctx context.Context) error
	// required is the name of RequireNode's Node; nil for none.
	required atomic.Pointer[string]

	mu sync.Mutex
	// away is closed when the API server is back; nil while it answers. Guarded by mu.
	away chan struct{}
	// back are called when the API server is back; guarded by mu.
	back []func()
	// patience is how long a probe may take until it fails; guarded by mu.
	patience time.Duration
	// answerPause is how long answers cause no further probe, and paused until when; guarded by mu.
	answerPause time.Duration
	paused      time.Time
	// probeWanted has a value when a probe is due at once.
	probeWanted chan struct{}
}

func newLink(probe func(ctx context.Context) error) *Link {
	return &Link{probe: probe, patience: leastPatience, probeWanted: make(chan struct{}, 1)}
}

// Link returns the one Link of the Connection. It needs Link.Run.
func (c *Connection) Link() *Link { return c.link }

func (c *Connection) makeLink() (*Link, error) {
	own, err := c.Transport(rest.CopyConfig)
	if err != nil {
		return nil, err
	}
	server := c.Server()
	link := newLink(nil)
	link.probe = func(ctx context.Context) error {
		// Both at the same time: on a link with a long round trip the time does not suffice for one after the other.
		var asked errgroup.Group
		asked.Go(func() error {
			return sendProbe(ctx, own, http.MethodPost, server.JoinPath(reviewPath).String(), "SelfSubjectReview")
		})
		if node := link.required.Load(); node != nil {
			path := server.JoinPath("/api/v1/nodes", *node)
			asked.Go(func() error { return sendProbe(ctx, own, http.MethodGet, path.String(), "Node") })
		}
		return asked.Wait()
	}
	c.OnChange(link.Suspect)
	return link, nil
}

// RequireNode makes probes also read a Node. kube-apiserver reads it from etcd, so an API server that has lost its etcd
// is away. It still answers reviews, and lists of its watch cache.
func (l *Link) RequireNode(name string) { l.required.Store(&name) }

// sendProbe makes a request of a probe for an object of a kind.
func sendProbe(ctx context.Context, through http.RoundTripper, method, address, kind string) error {
	body := ""
	if method == http.MethodPost {
		body = review
	}
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := through.RoundTrip(r)
	if err != nil {
		return err
	}
	answer, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16)) // so that the connection is used again
	_ = response.Body.Close()                                     // only read
	if !isAPIAnswer(response.StatusCode, answer, kind) {
		return fmt.Errorf("the answer is %s, and not an API server's", response.Status)
	}
	return nil
}

// isAPIAnswer reports whether an API server that works sent an answer to a probe for an object of a kind, in JSON. Of
// its limits it speaks in text. It says in a Status too that it has no reviews, before 1.28.
func isAPIAnswer(code int, answer []byte, kind string) bool {
	is := func(kind string) bool { return bytes.Contains(answer, []byte(`"kind":"`+kind+`"`)) }
	return code < http.StatusInternalServerError && (code == http.StatusTooManyRequests || is("Status") || is(kind))
}

// AwayUntil returns a channel that is closed when the API server is back; nil while it answers.
func (l *Link) AwayUntil() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

// OnBack registers a function that is called whenever the API server is back: at a random time within spread, or at
// once if that is 0.
func (l *Link) OnBack(spread time.Duration, back func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back = append(l.back, func() {
		time.AfterFunc(rand.N(spread+1), back) //nolint:gosec // it spreads requests
	})
}

// NoteAway notes that the API server is away.
func (l *Link) NoteAway() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away == nil {
		l.away = make(chan struct{})
		l.paused = time.Time{}
		l.wake()
	}
}

// Suspect causes a probe of the API server. While it is away, it is probed anyway.
func (l *Link) Suspect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away == nil {
		l.wake()
	}
}

// suspectAnswer is Suspect because of an answer, which says less than an error.
func (l *Link) suspectAnswer(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away != nil || now.Before(l.paused) {
		return
	}
	if now.Sub(l.paused) > calmAfter {
		l.answerPause = 0
	}
	l.answerPause = min(max(2*l.answerPause, suspectInterval), answerInterval)
	l.paused = now.Add(l.answerPause)
	l.wake()
}

func (l *Link) wake() {
	select {
	case l.probeWanted <- struct{}{}:
	default:
	}
}

// noteProbeAnswer notes that the API server has answered a probe after so long.
func (l *Link) noteProbeAnswer(took time.Duration) {
	l.mu.Lock()
	var back []func()
	if took > l.patience {
		l.wake() // the link may have been cut meanwhile: the next probe shows how slow it is
	}
	l.patience = min(max(2*took, leastPatience), probeTimeout)
	if l.away != nil {
		close(l.away)
		l.away, back = nil, l.back
	}
	l.mu.Unlock()
	for _, f := range back {
		f()
	}
}

// ProbeOnce probes once, and returns when that has decided. The probe may go on until ctx is done.
func (l *Link) ProbeOnce(ctx context.Context) {
	began, outcome := time.Now(), make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		err := l.probe(ctx)
		if err == nil {
			l.noteProbeAnswer(time.Since(began))
		}
		outcome <- err
	}()
	for left := leastPatience; left > 0; left = l.patienceLeft(began) {
		select {
		case err := <-outcome:
			if err != nil && ctx.Err() == nil {
				l.NoteAway()
			}
			return
		case <-time.After(left):
		}
	}
	l.NoteAway()
}

// patienceLeft returns how much longer a probe may take that began at a time.
func (l *Link) patienceLeft(began time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.patience - time.Since(began)
}

// Run probes while the API server is away or suspected to be, until ctx is done.
func (l *Link) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	said, suspected := false, true // nothing is known yet
	var asked, since time.Time
	for {
		if away := l.AwayUntil() != nil; away != said {
			said, since = away, time.Now()
			if away {
				logger.Info("kube-apiserver is away: it does not answer, or something in its place answers")
			} else {
				logger.Info("kube-apiserver is back")
			}
		}
		if said || (suspected && time.Since(asked) >= suspectInterval) {
			l.ProbeOnce(ctx)
			asked, suspected = time.Now(), false
		}
		pause := probeInterval
		if said && time.Since(since) > quickProbes {
			pause = slowInterval/2 + rand.N(slowInterval) //nolint:gosec // it spreads requests
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-l.probeWanted:
			suspected = true
		}
	}
}

// noteOutcome suspects the link, or finds it dead, by the outcome of a request with this context.
func (l *Link) noteOutcome(ctx context.Context, response *http.Response, err error) {
	var failed *net.OpError
	switch {
	case err == nil:
		if MayBeGateways(response) {
			l.suspectAnswer(time.Now())
		}
	case ctx.Err() != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(context.Cause(ctx), ErrStalled):
	case errors.As(err, &failed) && failed.Op == "dial":
		l.NoteAway()
	default:
		l.Suspect()
	}
}

// MayBeGateways reports whether an answer may be that of a gateway which has no API server: a failure, a redirect, a
// page, a refusal that is not an object, or JSON in place of an object in protobuf. An API server, or what it passes on
// to, sends each of these as well.
func MayBeGateways(response *http.Response) bool {
	media, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")
	asked := ""
	if response.Request != nil {
		asked = response.Request.Header.Get("Accept")
	}
	isReplaced := media == runtime.ContentTypeJSON && strings.HasPrefix(asked, runtime.ContentTypeProtobuf)
	switch code := response.StatusCode; {
	case code == http.StatusInternalServerError, code == http.StatusBadGateway, code == http.StatusServiceUnavailable,
		code == http.StatusGatewayTimeout:
		return true
	case code == http.StatusNotModified, code == http.StatusTooManyRequests, code > http.StatusInternalServerError:
		return false
	case code >= http.StatusBadRequest:
		return !strings.HasPrefix(media, "application/") || code == http.StatusNotFound && isReplaced
	default:
		return code >= http.StatusMultipleChoices || media == "text/html" || isReplaced
	}
}
