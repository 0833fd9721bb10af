package listen

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// TestPortIsTaken: whoever has the port, the error says which flag it is about and what to do.
func TestPortIsTaken(t *testing.T) {
	t.Parallel()
	first, err := TCP(t.Context(), "--port", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := TCP(t.Context(), "--port", first.Addr().String())
	if second != nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.HasPrefix(err.Error(), "--port: listen tcp ") ||
		!strings.Contains(err.Error(), "docs/security.md") {
		t.Errorf("%v", err)
	}
}
