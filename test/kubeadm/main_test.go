package kubeadm_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/suite"
)

// shared is the cluster of all tests of this package.
var shared *kubeadm.Cluster

// programs is the directory with what `make kubeadm-programs` builds, images the one with the archives of the
// product's images, which `make test-kubeadm` makes.
var programs, images string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "kubeadm: %v\n", err)
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
	shared, err = kubeadm.Start(ctx, kubeadm.Options{
		Bin: programs, Program: filepath.Join(programs, "kubeadm-cluster"), Nodes: []string{"cloud0", "node0", "node1"},
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
