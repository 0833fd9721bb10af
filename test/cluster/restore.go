package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// BackUp copies what etcd has, for Restore. etcd is stopped meanwhile.
func (c *Cluster) BackUp(ctx context.Context) error {
	if err := c.Etcd.Stop(); err != nil {
		return err
	}
	err := os.RemoveAll(c.backup())
	if err = errors.Join(err, os.CopyFS(c.backup(), os.DirFS(c.etcdDir()))); err != nil {
		return fmt.Errorf("copying etcd's data: %w", err)
	}
	return c.Etcd.Start(ctx)
}

// Restore sets etcd back to what it had at BackUp, and starts it and kube-apiserver again. The rest of the control
// plane goes on. It does what etcdutl snapshot restore does, with --bump-revision and --mark-compacted if bump is not
// 0.
func (c *Cluster) Restore(ctx context.Context, bump uint64) error {
	c.APIServer.Kill()
	c.Etcd.Kill()
	if err := os.RemoveAll(c.etcdDir()); err != nil {
		return fmt.Errorf("removing etcd's data: %w", err)
	}
	const name = "default"
	peer := "http://" + local(c.ports.etcdPeer)
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: filepath.Join(c.backup(), "member", "snap", "db"), SkipHashCheck: true,
		OutputDataDir: c.etcdDir(), Name: name, PeerURLs: []string{peer}, InitialCluster: name + "=" + peer,
		RevisionBump: bump, MarkCompacted: bump > 0})
	if err != nil {
		return fmt.Errorf("restoring etcd's data: %w", err)
	}
	if err := c.Etcd.Start(ctx); err != nil {
		return err
	}
	return c.APIServer.Start(ctx)
}

func (c *Cluster) etcdDir() string { return filepath.Join(c.dir, "etcd") }

func (c *Cluster) backup() string { return filepath.Join(c.dir, "etcd.backup") }
