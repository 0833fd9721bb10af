// Command edge-cluster starts etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok, and per node a
// network namespace with kube-proxy, application-grid-wrapper and an HTTP echo server behind every pod address, and
// walks through what this project does there. Afterwards the cluster stays up until Ctrl-C, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"
)

func main() {
	install := pflag.Bool("install", false, "install missing Debian packages with apt-get")
	once := pflag.Bool("once", false, "end after the walk-through; the exit code is 0 only if what was seen is right")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := checkMachine(ctx, *install)
	if err == nil {
		err = run(ctx, *once)
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "edge-cluster: %v\n", err)
		os.Exit(1)
	}
}

// program is the path of a binary in this program's directory.
func program(name string) string {
	self, err := os.Executable()
	if err != nil {
		self = filepath.Join("bin", "edge-cluster")
	}
	return filepath.Join(filepath.Dir(self), name)
}

// indented writes every line of progress with two spaces before it.
type indented struct{ out *os.File }

func (w indented) Write(line []byte) (int, error) {
	if _, err := w.out.WriteString("  " + string(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// errWrong ends a demo in which a connection left its site, or a change did not arrive.
var errWrong = errors.New("what was seen is not what should be")
