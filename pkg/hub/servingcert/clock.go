package servingcert

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock is the API server's clock, by the dates of its answers. The API server decides whether a certificate is valid,
// and all replicas use its time, so a replica with a wrong clock does not replace a certificate that the others find
// valid.
type clock struct {
	// own is the replica's own clock, which is used until the first answer.
	own   func() time.Time
	ahead atomic.Int64
}

// now returns the time of the API server, to a second.
func (c *clock) now() time.Time { return c.own().Add(time.Duration(c.ahead.Load())) }

// wrap notes the time of every answer. It is a transport.WrapperFunc.
func (c *clock) wrap(next http.RoundTripper) http.RoundTripper { return dated{next, c} }

type dated struct {
	http.RoundTripper

	clock *clock
}

func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(r)
	if err == nil {
		if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
			d.clock.ahead.Store(int64(at.Sub(d.clock.own())))
		}
	}
	return response, err
}
