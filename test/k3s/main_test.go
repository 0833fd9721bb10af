package k3s_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/k3s"
	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/suite"
)

// shared is the cluster of all tests of this package.
var shared *kubeadm.Cluster

// programs is the directory with what `make kubeadm-programs` builds, images the one with the archives of the
// product's images.
var programs, images string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "k3s: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if err := suite.Privileged(); err != nil {
		return 1, err
	}
	root, err := suite.Root()
	if err != nil {
		return 1, err
	}
	if programs = os.Getenv("BIN"); programs == "" {
		programs = filepath.Join(root, "bin")
	}
	images = filepath.Join(root, "dist", "images")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	shared, err = k3s.Start(ctx, kubeadm.Options{
		Bin: programs, Program: filepath.Join(programs, "kubeadm-cluster"), Nodes: everybody,
		Progress: func(what string, took time.Duration) { fmt.Printf("  %5.1f s  %s\n", took.Seconds(), what) },
	})
	if err != nil {
		return 1, err
	}
	defer context.AfterFunc(ctx, func() {
		_ = shared.Stop() // the program ends with an error anyway
		os.Exit(1)
	})()
	defer func() {
		if os.Getenv("KEEP") != "" && code != 0 {
			fmt.Printf("KEEP: the cluster is there until Ctrl-C: KUBECONFIG=%s\n", shared.Kubeconfig())
			<-ctx.Done()
		}
		if stopErr := shared.Stop(); err == nil {
			err = stopErr
		}
	}()
	return m.Run(), nil
}
