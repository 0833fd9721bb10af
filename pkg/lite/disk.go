package lite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/store"
)

const (
	// commitInterval is how long a change may be in memory only.
	commitInterval = time.Second
	// hourlyBytes limits the bytes written per hour, as in the wrapper (storage/snapshot explains why). The end of a
	// pod counts, but never waits.
	hourlyBytes = 32 << 20
	// commitBytes is about how many bytes go into one commit, but for the node's pods and Node.
	commitBytes = 2 << 20
	// lookInterval is the time between two checks of things that change only with time: certificates, tokens, a full
	// disk.
	lookInterval = 30 * time.Second
	// storeDir is the directory of the store, in the state directory.
	storeDir = "store"
)

// openDisk reads the store, and writes the files that the kubelet needs to find the server. Problems on the disk do
// not keep the server from passing requests on. The only error is that another process uses the directory.
func (s *Server) openDisk(logger klog.Logger) error {
	opened, state, problems := store.Open(store.Options{Dir: filepath.Join(s.config.Dir, storeDir),
		Key: s.config.SealKey, Lasting: isLasting, State: s.store.wholeState, StateSaved: s.store.noteStateSaved,
		HourlyBytes: hourlyBytes})
	s.disk = opened
	for _, problem := range append(problems, s.store.load(state)...) {
		logger.Error(problem, "Not all that was kept can be used, or nothing can be written")
	}
	if s.diskErr = opened.Commit(nil); errors.Is(s.diskErr, store.ErrInUse) {
		return fmt.Errorf("--file-cache-path %s: %w", s.config.Dir, s.diskErr)
	}
	s.writeKubeletFiles(logger)
	s.updateExplanation()
	return nil
}

// writeKubeletFiles writes the files that the kubelet needs to find the server. It may fail on a full disk. The
// kubelet's certificate may be new: the time is not before it.
func (s *Server) writeKubeletFiles(logger klog.Logger) {
	if certificate, err := kubeletCertificate(s.config.Kubeconfig); err == nil {
		s.store.mu.Lock()
		s.store.certified = certificate.NotBefore
		s.store.mu.Unlock()
	}
	pair, err := ensureServingPair(s.config.Dir, s.pair.Load())
	if pair.Leaf != nil {
		s.pair.Store(&pair)
	}
	if err == nil {
		err = writeKubeconfig(s.config.Kubeconfig, s.config.Dir, s.config.Address)
	}
	s.mu.Lock()
	before := s.unwritten
	s.unwritten = err
	s.mu.Unlock()
	if err != nil && before == nil {
		logger.Error(err, "Cannot write the kubelet's kubeconfig or the serving certificate, trying again")
	}
}

// commit writes what has changed to the disk. left is how many bytes may be written now. Which pods are gone does not
// wait for the budget, and may use the reserved space.
func (s *Server) commit(logger klog.Logger, left int64) {
	if s.commitSelected(logger, s.store.pendingRemovals); left > 0 {
		s.commitSelected(logger, func() changes { return s.store.selectPending(left) })
	}
}

// commitSelected commits the changes that take returns.
func (s *Server) commitSelected(logger klog.Logger, take func() changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, before := take(), s.diskErr
	err := s.disk.Commit(of.values())
	if waiting, _ := s.store.unsavedChanges(); err == nil && len(of) == 0 && waiting > 0 {
		return // whether that can be written is not known
	}
	if s.diskErr = err; err == nil {
		s.store.noteSaved(of)
	}
	if err != nil && before == nil {
		logger.Error(err, "What kube-apiserver says is not on the disk, trying again")
	} else if err == nil && before != nil {
		logger.Info("What kube-apiserver says is on the disk again")
	}
}

// commitChanges commits the changes every second. On a node with so many changes that flash would wear out, it commits
// less often, so that one commit has the changes of a longer time.
func (s *Server) commitChanges(ctx context.Context) {
	logger := klog.FromContext(ctx)
	tick, explained := 0, uint64(0)
	_ = wait.PollUntilContextCancel(ctx, commitInterval, false, func(context.Context) (bool, error) {
		tick++
		count := s.store.recorded.Load()
		s.commit(logger, s.budgetLeft())
		again := tick%int(lookInterval/commitInterval) == 0
		if again {
			s.writeKubeletFiles(logger) // the disk may have been full
		}
		if count != explained || again {
			s.updateExplanation()
			explained = count
		}
		return false, nil
	})
	s.commit(logger, hourlyBytes)
}

// budgetLeft returns how many bytes may be written to the disk now.
func (s *Server) budgetLeft() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.Left()
}

// bytesWritten returns how many bytes were written to the disk.
func (s *Server) bytesWritten() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.disk.Written()
}

// notOnDisk describes how much is only in memory; "" if nothing is.
func (s *Server) notOnDisk() string {
	count, since := s.store.unsavedChanges()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := "not on disk: 0 changes"
	if count > 0 {
		text = fmt.Sprintf("not on disk: %d changes since %s", count, since.UTC().Format(time.RFC3339))
	}
	if err := errors.Join(s.diskErr, s.unwritten); err != nil {
		text += ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	} else if count == 0 {
		return ""
	}
	return text
}
