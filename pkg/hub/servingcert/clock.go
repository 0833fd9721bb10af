package servingcert

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Clock is that of the API server, as its answers tell it. The API server decides whether a certificate is valid, and
// all replicas ask it, so a replica whose own clock is wrong replaces nothing that the others find valid. The zero
// value is the own clock, until there was an answer.
type Clock struct {
	// Own is the own clock; time.Now if nil.
	Own func() time.Time

	ahead atomic.Int64
}

// Now is the time of the API server, to a second.
func (c *Clock) Now() time.Time { return c.own().Add(time.Duration(c.ahead.Load())) }

func (c *Clock) own() time.Time {
	if c.Own != nil {
		return c.Own()
	}
	return time.Now()
}

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
			d.clock.ahead.Store(int64(at.Sub(d.clock.own())))
		}
	}
	return response, err
}
