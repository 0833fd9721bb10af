package takeover

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests, unless this program was started to become a container.
func TestMain(m *testing.M) {
	if description := os.Getenv(containerVariable); description != "" {
		fmt.Fprintln(os.Stderr, becomeContainer(description)) // it returns only if it fails
		os.Exit(1)
	}
	os.Exit(m.Run())
}
