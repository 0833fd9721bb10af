package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// BackUp copies what etcd has, for Restore. etcd is stopped meanwhile.
func (c *Cluster) BackUp(ctx context.Context) error {
	if err := c.Etcd.Stop(); err != nil {
		return err
	}
	if err := copyDir(c.backup(), c.etcdDir()); err != nil {
		return fmt.Errorf("copying etcd's data: %w", err)
	}
	return c.Etcd.Start(ctx)
}

// Restore sets etcd back to what it had at BackUp, and starts it and kube-apiserver again. The rest of the control
// plane goes on.
func (c *Cluster) Restore(ctx context.Context) error {
	c.APIServer.Kill()
	c.Etcd.Kill()
	if err := os.RemoveAll(c.etcdDir()); err != nil {
		return fmt.Errorf("removing etcd's data: %w", err)
	}
	if err := copyDir(c.etcdDir(), c.backup()); err != nil {
		return fmt.Errorf("restoring etcd's data: %w", err)
	}
	if err := c.Etcd.Start(ctx); err != nil {
		return err
	}
	return c.APIServer.Start(ctx)
}

func (c *Cluster) etcdDir() string { return filepath.Join(c.dir, "etcd") }

func (c *Cluster) backup() string { return filepath.Join(c.dir, "etcd.backup") }

func copyDir(to, from string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	return os.Chmod(to, 0o700) //nolint:gosec // a directory, which etcd wants no one else to read
}
