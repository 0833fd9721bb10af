package servingcert

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Clock is that of the API server, as its answers tell it. The API server decides whether a certificate is valid, and
// all replicas ask it, so a replica whose own clock is wrong replaces nothing that the others find valid. The zero
// value is the own clock, until there was an answer.
type Clock struct{ ahead atomic.Int64 }

// Now is the time of the API server, to a second.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Wrap notes the time of every answer. It is a transport.WrapperFunc.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper { return dated{next, c} }

type dated struct {
	http.RoundTripper

	clock *Clock
}

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			d.clock.ahead.Store(int64(time.Until(at)))
		}
	}
	return response, err
}
