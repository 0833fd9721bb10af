package lite

import (
	"errors"
	"net/http"
	"testing"

	"k8s.io/client-go/rest"
)

type silence struct{ asked int }

func (s *silence) RoundTrip(*http.Request) (*http.Response, error) {
	s.asked++
	return nil, errors.New("no answer in time")
}

// A link that is silent costs the time of one request for a token, and not that of each.
func TestOneTokenOverASilentLink(t *testing.T) {
	link := &silence{}
	api, err := apiFor(&rest.Config{Host: "https://192.0.2.1", Transport: link})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{store: newStore("edge-1"), api: api}
	f.renewTokens(t.Context(), needs{tokens: map[tokenRequest]struct{}{{Pod: "till-0"}: {}, {Pod: "till-1"}: {}}})
	if link.asked != 1 {
		t.Errorf("%d requests for tokens were made", link.asked)
	}
}

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
	if _, err := answerTo(t.Context(), api.Get().AbsPath("/openid/v1/jwks")); err == nil {
		t.Error("there is no error")
	}
}
