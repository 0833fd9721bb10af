package cri

import (
	"net"
	"net/http"
	"strings"
	"testing"
)

// serveHTTP serves HTTP at a socket, HTTP/2 without TLS among it, until the test ends.
func serveHTTP(t *testing.T, socket string, handler http.HandlerFunc) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	server := &http.Server{Handler: handler, Protocols: &protocols}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}

// TestAnswersThatAreNoMessage: what stands at the socket need not be a runtime.
func TestAnswersThatAreNoMessage(t *testing.T) {
	t.Parallel()
	answer := func(body string, status string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write([]byte(body))
			w.Header().Set("Grpc-Status", status)
		}
	}
	for name, test := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"a page": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who are you?", http.StatusTeapot) },
			`the answer is "418 I'm a teapot"`},
		"a redirection": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) },
			`the answer is "302 Found"`},
		"no status": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 5)) },
			"no gRPC status"},
		"a refusal": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Grpc-Status", "7")
			w.Header().Set("Grpc-Message", "not%20for you")
		}, "not for you (gRPC status 7)"},
		"a refusal after a message": {answer("\x00\x00\x00\x00\x00", "13"), "gRPC status 13"},
		"no message":                {answer("", "0"), "no message"},
		"half a head":               {answer("\x00\x00\x00", "0"), "unexpected EOF"},
		"compressed":                {answer("\x01\x00\x00\x00\x00", "0"), "compressed"},
		"shorter than it says":      {answer("\x00\x00\x00\x00\x05abc", "0"), "unexpected EOF"},
		"longer than it says":       {answer("\x00\x00\x00\x00\x01abc", "0"), "unexpected EOF"},
		"no protobuf":               {answer("\x00\x00\x00\x00\x03abc", "0"), "malformed protobuf"},
		"a broken item":             {answer("\x00\x00\x00\x00\x04\x0a\x02\x0a\x09", "0"), "malformed protobuf"},
		"nothing": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			"stream error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := socketIn(t)
			serveHTTP(t, socket, test.serve)
			pods, err := client(t, socket).Pods(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, %v; want an error with %q", pods, err, test.want)
			}
		})
	}
}

// TestWhatDoesNotSpeakHTTP2: the sockets of other programs.
func TestWhatDoesNotSpeakHTTP2(t *testing.T) {
	t.Parallel()
	for name, said := range map[string]string{"ends": "", "talks": "220 mail.example.org ESMTP\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := socketIn(t)
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			go func() {
				for {
					connection, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = connection.Write([]byte(said))
					_ = connection.Close()
				}
			}()
			if pods, err := client(t, socket).Pods(t.Context()); err == nil {
				t.Errorf("got %v and no error", pods)
			}
		})
	}
}
