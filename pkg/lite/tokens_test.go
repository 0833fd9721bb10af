package lite

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

type endless struct{}

func (endless) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusCreated, Body: zeros{}}, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func (zeros) Close() error { return nil }

// An answer without an end is given up.
func TestAnswersAreBounded(t *testing.T) {
	api, err := apiFor(&rest.Config{Host: "https://192.0.2.1", Transport: endless{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.Get().MaxRetries(0).AbsPath("/openid/v1/jwks").DoRaw(t.Context()); err == nil {
		t.Error("there is no error")
	}
}

// granting is a kube-apiserver whose clock is ahead of the node's.
type granting struct {
	issuer

	ahead time.Duration
	asked int
}

const granted = 20 * time.Second

func (g *granting) RoundTrip(r *http.Request) (*http.Response, error) {
	g.asked++
	issued := time.Now().Add(g.ahead)
	said := ofPod(dnsName, "coredns", "u-dns", issued.Add(granted))
	said.IssuedAt = jwt.NewNumericDate(issued)
	token, err := sign(jose.ES256, g.key, g.id, said)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: token,
		ExpirationTimestamp: metav1.NewTime(issued.Add(granted))}})
	return &http.Response{StatusCode: http.StatusCreated, Body: io.NopCloser(bytes.NewReader(body)), Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}}, err
}

// TestTokensWithAnyClock: whatever the clock of the node is, tokens are renewed after half of their lifetime, and at
// the first contact after a restart, and expire at its end.
func TestTokensWithAnyClock(t *testing.T) {
	for _, ahead := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			cloud := &granting{issuer: newIssuer(t), ahead: ahead}
			api, err := apiFor(&rest.Config{Host: "https://192.0.2.1", Transport: cloud, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			f := &follower{store: newStore("node0"), api: api}
			request := tokenRequest{Namespace: "kube-system", ServiceAccount: "coredns", Pod: "coredns"}
			renew := func(times int) int {
				before := cloud.asked
				for range times {
					if err := f.renewToken(t.Context(), request); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
				}
				return cloud.asked - before
			}
			if asked := renew(60); asked != 6 {
				t.Errorf("%s ahead: %d requests in 60 s, want 6", ahead, asked)
			}
			state := taken(f.store, hourlyBytes)
			f.store = newStore("node0") // a restart
			if problems := f.store.load(state); len(problems) > 0 {
				t.Fatal(problems)
			}
			if asked := renew(5); asked != 1 {
				t.Errorf("%s ahead: %d requests after a restart, want 1", ahead, asked)
			}
			kept, _ := f.store.token(request)
			early := kept.hasExpired(f.store.now())
			time.Sleep(granted)
			if early || !kept.hasExpired(f.store.now()) {
				t.Errorf("%s ahead: it has expired after 5 s: %v, after 25 s: %v", ahead, early,
					kept.hasExpired(f.store.now()))
			}
		})
	}
}

// before returns what time.Now returned a moment ago, by a clock that has been set forward since, or went on in a
// suspend. The seconds since 1885 begin at bit 30.
func before(t *testing.T, by time.Duration) time.Time {
	t.Helper()
	at := time.Now()
	*(*uint64)(unsafe.Pointer(&at)) -= uint64(by/time.Second) << 30 // there is no other way
	if time.Since(at) > time.Minute || time.Now().Round(0).Sub(at) < by {
		t.Fatalf("%s is not %s ago by one clock", at, by)
	}
	return at
}

// TestClockSetRight: a clock that is set forward after the last contact with kube-apiserver counts.
func TestClockSetRight(t *testing.T) {
	s := newStore("node0")
	for range 10000 { // how long the calls take must not matter
		s.noteContact(before(t, fiveYears))
		if late := time.Now().Round(0).Sub(s.now()); late > time.Minute {
			t.Fatalf("it is %s behind", late)
		}
	}
}

// TestTokensOverASuspend: the monotonic clock stands still while the machine is suspended. Afterwards tokens are
// renewed by the other clock, and have expired if that says so; not if that was only set right.
func TestTokensOverASuspend(t *testing.T) {
	const lifetime = time.Hour
	for name, test := range map[string]struct {
		by time.Duration
		// ahead is the clock of kube-apiserver, which is right, before this one was set.
		ahead        time.Duration
		due, expired bool
	}{
		"no suspend":                  {0, 0, false, false},
		"a short one":                 {10 * time.Minute, 0, false, false},
		"one of half of the lifetime": {30 * time.Minute, 0, true, false},
		"a long one":                  {2 * time.Hour, 0, true, true},
		"the clock was set right":     {fiveYears, fiveYears, true, false},
		"no suspend, clock behind":    {0, fiveYears, false, false},
		"no suspend, clock ahead":     {0, -fiveYears, false, false},
	} {
		fetched := before(t, test.by)
		issued := fetched.Round(0).Add(test.ahead)
		kept := token{Issued: issued, Expiration: issued.Add(lifetime), Until: issued.Add(lifetime), fetched: fetched}
		if due, expired := kept.isDue(), kept.hasExpired(time.Now()); due != test.due || expired != test.expired {
			t.Errorf("%s: due %v, expired %v", name, due, expired)
		}
	}
}
