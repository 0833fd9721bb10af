package servingcert

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock is that of the API server, as its answers tell it. The API server decides whether a certificate is valid, and
// all replicas ask it, so a replica whose own clock is wrong replaces nothing that the others find valid.
type clock struct {
	// own is the own clock, which counts until there was an answer.
	own   func() time.Time
	ahead atomic.Int64
}

// now is the time of the API server, to a second.
func (c *clock) now() time.Time { return c.own().Add(time.Duration(c.ahead.Load())) }

// wrap notes the time of every answer. It is a transport.WrapperFunc.
func (c *clock) wrap(next http.RoundTripper) http.RoundTripper { return dated{next, c} }

type dated struct {
	http.RoundTripper

	clock *clock
}

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			d.clock.ahead.Store(int64(at.Sub(d.clock.own())))
		}
	}
	return response, err
}
