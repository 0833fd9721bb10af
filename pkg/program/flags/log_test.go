package flags

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// runLogging runs a program that logs a few lines, and returns its exit code and what it wrote to stderr.
func runLogging(t *testing.T, args ...string) (int, []string) {
	t.Helper()
	stderr := os.Stderr
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = writer
	t.Cleanup(func() {
		os.Stderr = stderr
		klog.ClearLogger()
	})
	set := New("program")
	set.Logging()
	code := Program{
		Flags: set,
		Run: func(ctx context.Context) error {
			logger := klog.FromContext(ctx)
			logger.V(3).Info("Very much", "node", "a")
			logger.V(2).Info("More", "node", "a")
			logger.Error(errors.New("broken"), "Failed", "service", klog.KRef("ns", "s"))
			klog.Background().Info("By klog itself")
			return nil
		},
	}.Main(args, os.Stdout, os.Stderr)
	_ = writer.Close()
	var lines []string
	for scanner := bufio.NewScanner(reader); scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	return code, lines
}

// TestJSONLog: every line is an object, with the keys and the verbosity that were asked for.
func TestJSONLog(t *testing.T) {
	code, lines := runLogging(t, "--logging-format=json", "-v=2", "--logtostderr")
	if code != 0 || len(lines) != 3 {
		t.Fatalf("%d %q", code, lines)
	}
	var parsed []map[string]any
	for _, line := range lines {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		parsed = append(parsed, object)
	}
	if parsed[0]["msg"] != "More" || parsed[0]["node"] != "a" || parsed[0]["v"] != 2.0 ||
		parsed[1]["err"] != "broken" ||
		parsed[2]["msg"] != "By klog itself" {
		t.Errorf("got %q", lines)
	}
}

func TestTextLog(t *testing.T) {
	code, lines := runLogging(t, "-v=2")
	if code != 0 || len(lines) != 3 || !strings.Contains(lines[0], `] "More" node="a"`) {
		t.Errorf("%d %q", code, lines)
	}
}

func TestLogFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"--logging-format=yaml"}, {"--logging-format=json", "--vmodule=a=1"}} {
		if code, lines := runLogging(t, args...); code != ExitUsage || !strings.Contains(lines[0], "--logging-format") {
			t.Errorf("%q: %d %q", args, code, lines)
		}
	}
}
