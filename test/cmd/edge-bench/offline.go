package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// measureOffline restarts the wrapper with its link cut, and times how soon it serves its snapshot.
func measureOffline(ctx context.Context, node *cluster.Node, t *table) (err error) {
	// An orderly end leaves a snapshot.
	if err := node.Wrapper.Stop(); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(node.StateDir, "store-0*"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("the wrapper left no snapshot in %s: %w", node.StateDir, err)
	}
	var size int64
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		size += info.Size()
	}
	t.add("snapshot: size", "", fmt.Sprintf("%.0f kB", float64(size)/1000), "")
	if err := node.CutLink(ctx); err != nil {
		return err
	}
	defer func() {
		if restored := node.RestoreLink(ctx); err == nil {
			err = restored
		}
	}()
	s, err := newSide("wrapper", node.WrapperConfig(cluster.RoleKubeProxy), plain)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := node.Wrapper.Launch(); err != nil {
		return err
	}
	for {
		body, err := s.get(ctx, "", "application/vnd.kubernetes.protobuf")
		if err == nil {
			_, err = io.Copy(io.Discard, body)
			_ = body.Close() // read to its end
		}
		if err == nil {
			break
		}
		if time.Since(begin) > 30*time.Second || ctx.Err() != nil {
			return fmt.Errorf("the snapshot is not served: %w", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.add("snapshot: from start, link cut, to a list of all slices", "", milliseconds(time.Since(begin)), "")
	resident, err := memory(node.Wrapper.PID())
	if err != nil {
		return err
	}
	t.add("snapshot: resident memory while it is served", "", resident, "")
	return nil
}
