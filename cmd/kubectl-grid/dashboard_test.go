package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// TestDashboard: the command prints the URL of a page that it serves, and ends well when it is interrupted.
func TestDashboard(t *testing.T) {
	api := httptest.NewServer(shop(t))
	defer api.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	read, write := io.Pipe()
	var stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"dashboard", "--kubeconfig=" + writeKubeconfig(t, api.URL)}, write, &stderr)
		write.Close()
	}()
	url, err := bufio.NewReader(read).ReadString('\n')
	url = strings.TrimSpace(url)
	origin, token, ok := strings.Cut(url, "/#token=")
	if err != nil || !strings.HasPrefix(origin, "http://127.0.0.1:") || !ok || len(token) < 20 {
		t.Fatalf("it prints %q, %v", url, err)
	}
	if code, page := get(t, origin+"/", ""); code != http.StatusOK ||
		!strings.Contains(page, "<title>application-grid</title>") {
		t.Errorf("got %d %s", code, page)
	}
	interrupt()
	if got := <-code; got != 0 || !strings.Contains(stderr.String(), "Ctrl-C ends it") {
		t.Errorf("exit code %d: %s", got, stderr.String())
	}
}

// get asks the dashboard for something, with its token.
func get(t *testing.T, url, token string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

func TestDashboardFailures(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"--port=x", flags.ExitUsage, "invalid argument"},
		{"more", flags.ExitUsage, "unknown command"},
		{"--kubeconfig=" + writeKubeconfig(t, "http://127.0.0.1:1"), flags.ExitFailure, "asking the cluster"},
	} {
		got := callBare(t, "dashboard", test.args)
		if got.code != test.code || !strings.Contains(got.stderr, test.says) || got.stdout != "" {
			t.Errorf("%s: got %+v", test.args, got)
		}
	}
}
