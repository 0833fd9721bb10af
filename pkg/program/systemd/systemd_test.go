package systemd

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// manager is systemd's end of NOTIFY_SOCKET.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T, watchdog time.Duration) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	if watchdog > 0 {
		t.Setenv("WATCHDOG_USEC", strconv.FormatInt(watchdog.Microseconds(), 10))
	}
	return &manager{t, conn}
}

// next is the next message within the time; "" if there is none.
func (m *manager) next(within time.Duration) string {
	m.t.Helper()
	if err := m.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		m.t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, err := m.conn.Read(buffer)
	if err != nil {
		return ""
	}
	return string(buffer[:n])
}

func TestTheLifeOfAProgram(t *testing.T) {
	m := newManager(t, 300*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ill atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		Notify(ctx, Program{
			Alive: func(context.Context) error {
				if ill.Load() {
					return errors.New("ill")
				}
				return nil
			},
			Status: func() string { return "fine\nand more " + strings.Repeat("x", 2*statusLimit) },
		})
	}()
	first := m.next(10 * time.Second)
	if !strings.HasPrefix(first, "READY=1\nSTATUS=fine and more xxx") || len(first) > statusLimit+30 {
		t.Errorf("first it says %q", first)
	}
	for range 3 {
		if got := m.next(10 * time.Second); got != "WATCHDOG=1" {
			t.Errorf("while it is well it says %q", got)
		}
	}
	ill.Store(true)
	got := m.next(time.Second)
	for got == "WATCHDOG=1" { // it may have been on its way
		got = m.next(time.Second)
	}
	if got != "" {
		t.Errorf("while it is ill it says %q", got)
	}
	ill.Store(false)
	if got := m.next(10 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("well again it says %q", got)
	}
	stop()
	for got := ""; !strings.HasPrefix(got, "STOPPING=1"); {
		if got = m.next(10 * time.Second); got == "" {
			t.Fatal("it does not say that it ends")
		}
	}
	<-done
}

// TestHanging: what does not return does not keep systemd waiting for the truth.
func TestHanging(t *testing.T) {
	m := newManager(t, 90*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	hang := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		Notify(ctx, Program{
			Alive:  func(context.Context) error { <-hang; return nil },
			Status: func() string { <-hang; return "" },
		})
	}()
	if got := m.next(10 * time.Second); got != "READY=1\nSTATUS=does not answer" {
		t.Errorf("first it says %q", got)
	}
	if got := m.next(10 * time.Second); got != "WATCHDOG=1" { // the first, for having started
		t.Errorf("then %q", got)
	}
	if got := m.next(time.Second); got != "" {
		t.Errorf("it says %q", got)
	}
	stop()
	<-done
	close(hang)
}

// TestLateAnswer: that a program does not answer in time is said, and not what its request makes of the end of its
// context. A program that ends does not wait for the answer.
func TestLateAnswer(t *testing.T) {
	heeds := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for range 20 {
		err := Program{Alive: heeds}.alive(t.Context(), time.Millisecond)
		if err == nil || err.Error() != "no answer within 1ms" {
			t.Fatalf("got %v", err)
		}
	}
	hang, begin := make(chan struct{}), time.Now()
	defer close(hang)
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, stop)
	err := Program{Alive: func(context.Context) error { <-hang; return nil }}.alive(ctx, 10*time.Second)
	if took := time.Since(begin); err == nil || took > 5*time.Second {
		t.Errorf("at the end of the program it says %v after %s", err, took)
	}
}

func TestWithoutSystemd(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	// returns
	Notify(t.Context(), Program{Alive: func(context.Context) error { return nil }, Status: func() string { return "" }})
}

func TestAnswers(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/livez" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	if err := CheckAnswer(t.Context(), plain.URL+"/livez"); err != nil {
		t.Error(err)
	}
	if err := CheckAnswer(t.Context(), secure.URL+"/livez"); err != nil {
		t.Error(err)
	}
	if err := CheckAnswer(t.Context(), plain.URL+"/other"); err == nil ||
		!strings.Contains(err.Error(), "418") {
		t.Errorf("of a refusal: %v", err)
	}
	plain.Close()
	if err := CheckAnswer(t.Context(), plain.URL+"/livez"); err == nil {
		t.Error("nothing listens, but there is an answer")
	}
}
