package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Interposer stands between a client, such as one node's wrapper, and kube-apiserver and can misbehave as a cloud, or
// what is on the way to it, does. It runs beside kube-apiserver and serves with its certificate.
type Interposer struct {
	listener net.Listener
	server   *http.Server
	proxy    *httputil.ReverseProxy
	cancel   context.CancelFunc
	served   atomic.Int64

	mu      sync.Mutex
	current *episode // guarded by mu
}

// Behaviour is how an Interposer treats requests. The zero value passes them on.
type Behaviour struct {
	// Answer, if set, answers requests instead of kube-apiserver.
	Answer http.HandlerFunc
	// Alter, if set, changes kube-apiserver's answers.
	Alter func(*http.Response)
	// Delay is how much longer every byte takes, in each direction.
	Delay time.Duration
	// Freezes lets requests that are under way when the behaviour begins hear nothing more, with their
	// connections kept until the next Behaviour begins. Otherwise they are cut off.
	Freezes bool
	// Endures lets what the behaviour silenced stay silent when the next one begins, as if whoever answered had
	// forgotten it. Otherwise it is cut off then.
	Endures bool
}

// episode is the time of one Behaviour.
type episode struct {
	Behaviour

	// over is closed when next is set.
	over chan struct{}
	next *episode
}

// Interpose starts an Interposer before kube-apiserver for whoever is told its URL. It ends with Close, or with the
// process.
func (c *Cluster) Interpose(ctx context.Context) (*Interposer, error) {
	host := bridgeAddress
	if c.namespace == nil {
		host = "127.0.0.1"
	}
	listener, err := c.thread.Listen(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fmt.Errorf("interposer: listening: %w", err)
	}
	server := &url.URL{Scheme: "https", Host: local(c.ports.apiserver)}
	// It lives until Close, not as long as the call that starts it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	i := &Interposer{listener: listener, cancel: cancel, current: &episode{over: make(chan struct{})}}
	i.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(server) },
		Transport: &http.Transport{DialContext: c.dial, TLSClientConfig: c.tlsConfig(true), ForceAttemptHTTP2: true,
			DisableCompression: true},
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			if alter, set := response.Request.Context().Value(alterKey{}).(func(*http.Response)); set && alter != nil {
				alter(response)
			}
			return nil
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	i.server = &http.Server{
		Handler:           http.HandlerFunc(i.serve),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // connections that are cut off are what it is for
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	go i.server.ServeTLS(delayingListener{listener, i.delay}, c.credentials.file("apiserver.crt"), c.credentials.file("apiserver.key")) //nolint:errcheck // it ends with Close
	return i, nil
}

// alterKey is the context key of Behaviour.Alter.
type alterKey struct{}

// URL is where it serves.
func (i *Interposer) URL() string { return "https://" + i.listener.Addr().String() }

// Served counts the requests that came.
func (i *Interposer) Served() int64 { return i.served.Load() }

// Behave begins a behaviour, which ends the one before.
func (i *Interposer) Behave(behaviour Behaviour) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current.next = &episode{Behaviour: behaviour, over: make(chan struct{})}
	close(i.current.over)
	i.current = i.current.next
}

func (i *Interposer) episode() *episode {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.current
}

func (i *Interposer) delay() time.Duration { return i.episode().Delay }

func (i *Interposer) serve(w http.ResponseWriter, r *http.Request) {
	i.served.Add(1)
	e := i.episode()
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), alterKey{}, e.Alter))
	defer cancel()
	f := &freezingWriter{ResponseWriter: w, ctx: ctx, cancel: cancel, at: e}
	go f.follow()
	r = r.WithContext(ctx)
	if e.Answer != nil {
		e.Answer(f, r)
	} else {
		i.proxy.ServeHTTP(f, r)
	}
	if ctx.Err() != nil { // not an ordinary end, which would be one of the answer's
		panic(http.ErrAbortHandler)
	}
}

// Close ends it and all that is under way.
func (i *Interposer) Close() error {
	i.cancel()
	if err := i.server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("interposer: closing: %w", err)
	}
	return nil
}

// freezingWriter is the answer to a request that may hear nothing more from the moment on that a behaviour begins.
type freezingWriter struct {
	http.ResponseWriter

	ctx    context.Context //nolint:containedctx // the request's, which a Write must heed
	cancel context.CancelFunc

	mu     sync.Mutex
	at     *episode // guarded by mu
	frozen bool     // guarded by mu
	silent bool     // guarded by mu; it outlasts the behaviours to come
}

// follow freezes the request, or cuts it off, when the behaviour it began under is over.
func (f *freezingWriter) follow() {
	for {
		over := f.over()
		if over == nil {
			return
		}
		select {
		case <-over:
		case <-f.ctx.Done():
			return
		}
	}
}

// over brings the request up to the behaviour of now, and returns when that one is over; nil if the request ends with
// none that follows.
func (f *freezingWriter) over() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.ctx.Err() == nil && !f.silent {
		select {
		case <-f.at.over:
		default:
			return f.at.over
		}
		if f.silent = f.at.Endures && (f.frozen || f.at.Answer != nil); f.silent {
			break
		}
		if f.at = f.at.next; f.at.Freezes {
			f.frozen = true
		} else {
			f.cancel()
		}
	}
	return nil
}

// Write implements io.Writer. Nothing is written for a behaviour that is over, however late follow is.
func (f *freezingWriter) Write(p []byte) (int, error) {
	f.over()
	f.mu.Lock()
	frozen := f.frozen
	f.mu.Unlock()
	if frozen {
		<-f.ctx.Done()
	}
	if err := f.ctx.Err(); err != nil {
		return 0, err
	}
	return f.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (f *freezingWriter) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// delayingListener accepts connections whose bytes take longer.
type delayingListener struct {
	net.Listener

	delay func() time.Duration
}

// Accept implements net.Listener.
func (l delayingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go carry(far, conn, l.delay)
	go carry(conn, far, l.delay)
	return near, nil
}

// carry copies from one end to the other with a delay, which does not lower the throughput, and closes both when
// one is closed.
func carry(to io.WriteCloser, from io.ReadCloser, delay func() time.Duration) {
	type parcel struct {
		bytes []byte
		due   time.Time
	}
	parcels := make(chan parcel, 1024)
	go func() {
		defer to.Close()
		defer from.Close()
		for p := range parcels {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.bytes); err != nil {
				_ = from.Close() // nothing more is read, so that the channel is closed
			}
		}
	}()
	defer close(parcels)
	for {
		buffer := make([]byte, 16<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			parcels <- parcel{buffer[:n], time.Now().Add(delay())}
		}
		if err != nil {
			return
		}
	}
}
