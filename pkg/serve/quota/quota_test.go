package quota

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// TestNobodyLocksOthersOut: who takes all that it can get leaves places for others, however many do so.
func TestNobodyLocksOthersOut(t *testing.T) {
	t.Parallel()
	for greedy := range 20 {
		q := New(1000)
		for range 2000 {
			for caller := range greedy {
				q.Acquire(fmt.Sprint("greedy ", caller))
			}
		}
		free := 1000 - q.Stats().Taken
		if want := 1000/(greedy+1) - 1; free < want {
			t.Errorf("%d greedy callers leave %d places, want %d", greedy, free, want)
		}
		for place := range 10 {
			if _, ok := q.Acquire("kube-proxy"); !ok {
				t.Errorf("%d greedy callers lock another one out of its place %d", greedy, place)
			}
		}
	}
}

// TestCallerIsTheUser: whose process is at the other end is known on the loopback, over IPv4 and IPv6.
func TestCallerIsTheUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = inner.Close() })
		listener := &Listener{Listener: inner, Quota: New(100), Logger: klog.Background()}
		callers := make(chan string)
		server := &http.Server{
			ConnContext: WithCaller, ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { callers <- Caller(r.Context()) }),
		}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
		url := "http://" + strings.ReplaceAll(inner.Addr().String(), "[::]", "127.0.0.1")
		go func() {
			if response, err := http.Get(url); err == nil {
				_ = response.Body.Close()
			}
		}()
		if got := <-callers; got != "user 0" {
			t.Errorf("%s: root is %q", address, got)
		}
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAsAnotherUser$")
		command.Env = append(os.Environ(), "QUOTA_ASK="+url)
		// The test's binary may be where the other user cannot read it.
		command.Path = "/proc/self/exe"
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
		if err := command.Start(); err != nil {
			t.Skipf("cannot become another user: %v", err)
		}
		if got := <-callers; got != "user 12345" {
			t.Errorf("%s: user 12345 is %q", address, got)
		}
		if err := command.Wait(); err != nil {
			t.Errorf("the other user: %v", err)
		}
	}
}

// TestAsAnotherUser is what other tests run as another user.
func TestAsAnotherUser(t *testing.T) {
	if address := os.Getenv("QUOTA_FLOOD"); address != "" {
		flood(t, address)
		return
	}
	url := os.Getenv("QUOTA_ASK")
	if url == "" {
		t.Skip("other tests run it")
	}
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
}

func TestCallersOfOtherHosts(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"192.0.2.7:1": "192.0.2.7", "[2001:db8:1:2:3:4:5:6]:1": "2001:db8:1:2::/64",
		"[::ffff:192.0.2.7]:1": "192.0.2.7",
		// A socket that does not exist has no owner; in particular not root.
		"127.0.0.1:1": "unknown", "[::1]:1": "unknown", "192.0.2.1:1": "unknown",
	} {
		conn := addressed{
			remote: net.TCPAddrFromAddrPort(mustParse(t, remote)),
			local:  net.TCPAddrFromAddrPort(mustParse(t, "192.0.2.1:51006")),
		}
		if got := callerOf(conn); got != want {
			t.Errorf("%s is %q, want %q", remote, got, want)
		}
	}
}

// TestAFloodOfOneUserLeavesRoomForRoot has a process of another user open all connections that it can get, and hold
// them: root, as kube-proxy is, gets its own nevertheless.
func TestAFloodOfOneUserLeavesRoomForRoot(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := &Listener{Listener: inner, Quota: New(100), Logger: klog.Background()}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.NotFoundHandler()}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	flood := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAsAnotherUser$")
	flood.Env = append(os.Environ(), "QUOTA_FLOOD="+inner.Addr().String())
	flood.Path = "/proc/self/exe" // as above
	flood.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	release, err := flood.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := flood.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := flood.Start(); err != nil {
		t.Skipf("cannot become another user: %v", err)
	}
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil || line != "flooded\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if got := listener.Quota.Stats(); got.Taken != 50 || got.Refused < 150 {
		t.Errorf("the flood has %+v of 100", got)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 20 {
		response, err := client.Get("http://" + inner.Addr().String())
		if err != nil {
			t.Fatalf("root is locked out: %v", err)
		}
		_ = response.Body.Close()
	}
	_ = release.Close()
	if err := flood.Wait(); err != nil {
		t.Error(err)
	}
}

// flood opens 200 connections, waits until each is either cut or was left open, says so, and holds what it has until
// its input ends.
func flood(t *testing.T, address string) {
	t.Helper()
	for range 200 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			continue
		}
		_, _ = conn.Read(make([]byte, 1))
	}
	fmt.Println("flooded")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func FuzzParseDiag(f *testing.F) {
	f.Add(make([]byte, 100))
	source := mustParse(f, "127.0.0.1:1")
	f.Fuzz(func(_ *testing.T, answer []byte) { _, _ = parseDiag(answer, source) })
}

// TestManyAtOnce: places that are taken together are given all or none.
func TestManyAtOnce(t *testing.T) {
	q := New(100)
	acquire := func(caller string, n int, want bool) func() {
		t.Helper()
		release, ok := q.AcquireN(caller, n)
		if ok != want {
			t.Fatalf("%d places for %s with %d of 100 taken: got %v, want %v", n, caller, q.Stats().Taken, ok, want)
		}
		return release
	}
	first := acquire("greedy", 30, true)
	second := acquire("greedy", 20, true)
	acquire("greedy", 1, false) // it has half of them
	whole := acquire("other", 90, true)
	acquire("third", 1, false) // more is taken than there is
	whole()
	third := acquire("third", 40, true)
	acquire("third", 11, false)
	first()
	second()
	second() // further calls do nothing
	third()
	if _, ok := New(1).Acquire("a"); !ok {
		t.Error("the only place is not given")
	}
	alone := acquire("one", 1000, true)
	acquire("one", 1, false)
	acquire("two", 1, false)
	alone()
	nothing := acquire("one", 0, true)
	nothing()
	if s := q.Stats(); s.Taken != 0 || len(q.held) != 0 || s.Refused != 5 {
		t.Errorf("in the end: %+v, %v", s, q.held)
	}
}

// TestAGreedyCallerStarvesNobody: whatever callers hold that take all they can get, one that holds nothing gets a list,
// and what is taken beyond the limit is no more than one list.
func TestAGreedyCallerStarvesNobody(t *testing.T) {
	const limit, list = 1000, 60
	q := New(limit)
	for _, greedy := range []string{"a", "b", "c"} {
		for {
			if _, ok := q.AcquireN(greedy, list); !ok {
				break
			}
		}
	}
	if _, ok := q.AcquireN("kube-proxy", 5*list); !ok {
		t.Errorf("kube-proxy gets no list while others hold %d of %d", q.Stats().Taken, limit)
	}
	if taken := q.Stats().Taken; taken > limit+5*list {
		t.Errorf("%d of %d are taken", taken, limit)
	}
}

// scripted is a listener with connections from these addresses.
type scripted struct {
	net.Listener

	from []string
}

func (s *scripted) Accept() (net.Conn, error) {
	inner, _ := net.Pipe()
	from := &net.TCPAddr{IP: net.ParseIP(s.from[0]), Port: 1}
	s.from = s.from[1:]
	return addressed{inner, from, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 2}}, nil
}

// TestOldestIsReplaced: without a place, a caller's new connection replaces its oldest one; if it has none, the oldest
// of all, as many as its part of the places requires. One that is kept is not replaced.
func TestOldestIsReplaced(t *testing.T) {
	t.Parallel()
	const a, b, c, d = "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"
	listener := &Listener{Quota: New(3), Logger: klog.Background(), Replaces: true,
		Listener: &scripted{from: []string{a, b, c, c, d, a}}}
	var open []net.Conn
	for range 6 {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if open = append(open, conn); len(open) == 1 {
			Keep(WithCaller(t.Context(), conn))
		}
	}
	for i, conn := range open {
		err := conn.SetDeadline(time.Now())
		// c's second connection replaces its first, d's that of b, and a's second those of c and d: a's first is kept.
		if wantOpen := i == 0 || i == 5; (err == nil) != wantOpen {
			t.Errorf("connection %d: %v", i, err)
		}
	}
}
