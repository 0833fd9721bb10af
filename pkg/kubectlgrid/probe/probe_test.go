package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

var errNone = errors.New("none")

// nowhere refuses connections.
const nowhere = "127.0.0.1:1"

// TestConnect: each connection counts where the kernel sent it, answered or not.
func TestConnect(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	open := netip.MustParseAddrPort(listener.Addr().String())
	closed := netip.MustParseAddrPort(nowhere)
	a, b := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")

	sources := map[netip.AddrPort]bool{}
	destinations := []netip.AddrPort{a, b, a}
	result := Connect(t.Context(), Options{Target: open, Requests: 3, Timeout: time.Second, None: errNone,
		Destination: func(source, target netip.AddrPort) (netip.AddrPort, error) {
			sources[source] = true
			if target != open || !source.Addr().IsLoopback() || source.Port() == 0 {
				t.Errorf("asked for %s to %s", source, target)
			}
			to := destinations[0]
			destinations = destinations[1:]
			return to, nil
		}})
	if result.Asked != 3 || result.Reached["10.0.0.1:80"] != 2 || result.Reached["10.0.0.2:80"] != 1 ||
		len(result.Silent) != 0 || len(sources) != 3 {
		t.Errorf("got %+v of %v", result, sources)
	}
	for _, test := range []struct {
		name   string
		target netip.AddrPort
		to     netip.AddrPort
		err    error
		want   string
	}{
		{"nobody", closed, a, errNone, `{"asked":2,"nobody":2}`},
		{"sent, and refused", closed, a, nil, `{"asked":2,"silent":{"10.0.0.1:80":2}}`},
		{"not translated", open, open, nil, `{"asked":2,"untranslated":2}`},
		{"unknown to the kernel", open, a, errNone, `{"asked":2,"untranslated":2}`},
		{
			"no capability", open, a, errors.New("operation not permitted"),
			`{"asked":0,"error":"operation not permitted"}`,
		},
	} {
		got,
			err := json.Marshal(Connect(t.Context(),
			Options{Target: test.target, Requests: 2, Timeout: time.Second, None: errNone,
				Destination: func(netip.AddrPort,
					netip.AddrPort) (netip.AddrPort, error) {
					return test.to, test.err
				}}))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: got %s, %v; want %s", test.name, got, err, test.want)
		}
	}
}

// TestResultIsSmall: a result fits into a pod's status, however many addresses there are.
func TestResultIsSmall(t *testing.T) {
	result := Result{Reached: map[string]int{}, Silent: map[string]int{}}
	for i := range 3000 {
		counts := result.Reached
		if i%2 == 0 {
			counts = result.Silent
		}
		result.count(counts,
			netip.MustParseAddrPort(fmt.Sprintf("[fd00:1234:5678:9abc:def0:1234:5678:%x]:65535", i%1000)))
	}
	data, err := json.Marshal(result)
	if total := result.Others; err != nil || len(data) > 4096 || total == 0 {
		t.Errorf("%d bytes, %d others: %v", len(data), total, err)
	}
}
