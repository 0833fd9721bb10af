package faults

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
	"github.com/application-grid/application-grid/test/netns"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// blockSize is what a disk loses at once, in bytes.
	blockSize = 512
	// patience is how long a wrapper is asked: longer than it waits for its upstream before it would serve a snapshot.
	patience = 1500 * time.Millisecond
	// wrappersAtOnce is how many are started beside each other. They sleep for most of the time.
	wrappersAtOnce = 12
	// storeFile is the first file of a store.
	storeFile = "store-0000000000000001"
)

// servedPaths are what a snapshot answers, and kube-proxy asks for.
var servedPaths = []string{"/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices",
	"/api/v1/nodes?fieldSelector=metadata.name%3D"}

// lone is a wrapper by itself on this machine's loopback; nothing listens at its upstream.
type lone struct {
	url, snapshot string
	paths         []string
	output        bytes.Buffer
	cmd           *exec.Cmd
}

// startLone starts a wrapper of the site's node with this file as its store, in a directory of its own.
func (s *site) startLone(thread *netns.Thread, snapshot []byte) (*lone, error) {
	dir, err := os.MkdirTemp(s.TempDir(), "state")
	if err != nil {
		return nil, err
	}
	l := &lone{paths: slices.Clone(servedPaths)}
	l.paths[len(l.paths)-1] += s.node.Spec.Name
	l.snapshot = filepath.Join(dir, storeFile)
	if err := os.WriteFile(l.snapshot, snapshot, 0o600); err != nil {
		return nil, err
	}
	address := fmt.Sprintf("127.0.0.1:%d", suite.FreePort(s))
	l.url = "http://" + address
	kubeconfig := filepath.Join(dir, "kubeconfig")
	const nowhere = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(nowhere), 0o600); err != nil {
		return nil, err
	}
	l.cmd = exec.Command(suite.Binary(s, "application-grid-wrapper"), "--kubeconfig="+kubeconfig, "--hostname="+s.node.Spec.Name,
		"--bind-address="+address, "--state-dir="+dir)
	l.cmd.Stdout, l.cmd.Stderr = &l.output, &l.output
	return l, thread.Start(l.cmd)
}

func (l *lone) stop() {
	l.cmd.Process.Kill()
	l.cmd.Wait()
}

// statuses asks for every list; 0 stands for no answer.
func (l *lone) statuses(ctx context.Context) []int {
	var statuses []int
	for _, path := range l.paths {
		status := 0
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+path, nil)
		if err == nil {
			if response, err := http.DefaultClient.Do(request); err == nil {
				status = response.StatusCode
				response.Body.Close()
			}
		}
		statuses = append(statuses, status)
	}
	return statuses
}

// expectRejected checks that the snapshot is replaced by the next file and that nothing but 503 is ever answered.
func (l *lone) expectRejected(ctx context.Context) error {
	refused := false
	for begin := time.Now(); time.Since(begin) < patience || !refused; {
		for i, status := range l.statuses(ctx) {
			if status != http.StatusServiceUnavailable && status != 0 {
				return fmt.Errorf("%s was answered with status %d\n%s", l.paths[i], status, l.output.String())
			}
			refused = refused || status == http.StatusServiceUnavailable
		}
		if time.Since(begin) > deadline {
			return errors.New("it did not answer\n" + l.output.String())
		}
		time.Sleep(5 * between)
	}
	if _, err := os.Stat(l.snapshot); !errors.Is(err, os.ErrNotExist) {
		return errors.New("the snapshot was not replaced\n" + l.output.String())
	}
	return nil
}

// expectServed waits until the lists are served, and returns how long that took.
func (l *lone) expectServed(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	for {
		statuses := l.statuses(ctx)
		if !slices.ContainsFunc(statuses, func(status int) bool { return status != http.StatusOK }) {
			return time.Since(begin), nil
		}
		if time.Since(begin) > deadline {
			return 0, fmt.Errorf("the lists are answered with %v\n%s", statuses, l.output.String())
		}
		time.Sleep(between)
	}
}

// A snapshot in which anything at all is damaged is never served, whatever the place. The full form damages every
// block, the short one every eighth and the last.
func TestSnapshotDamaged(t *testing.T) {
	t.Parallel()
	damages := []struct {
		name   string
		damage func(whole []byte, at int) []byte
	}{
		{"snapshot corrupted, every block", func(whole []byte, at int) []byte {
			damaged := bytes.Clone(whole)
			// Another place in every block.
			damaged[min(at+at/blockSize%blockSize, len(whole)-1)] ^= 1 << (at / blockSize % 8)
			return damaged
		}},
		{"snapshot truncated, every block", func(whole []byte, at int) []byte { return whole[:at] }},
	}
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, fault{name: d.name})
			defer s.conclude()
			s.fatten()
			s.Kept(writeDelay, s.node)
			whole := s.wholeState()
			thread := netns.NewThread()
			defer thread.Close()

			// That a good one is served tells that the damage is why the others are not.
			good, err := s.startLone(thread, whole)
			s.Must(err)
			took, err := good.expectServed(s.ctx)
			good.stop()
			s.Must(err)
			s.Logf("the whole snapshot, of %d bytes, was served %s after its process was started", len(whole),
				took.Round(time.Millisecond))

			step := 1
			if testing.Short() {
				step = 8
			}
			blocks := (len(whole) + blockSize - 1) / blockSize
			var places []int
			for block := 0; block < blocks; block += step {
				places = append(places, block*blockSize)
			}
			if last := (blocks - 1) * blockSize; places[len(places)-1] != last {
				places = append(places, last)
			}
			slots := make(chan struct{}, wrappersAtOnce)
			var runs sync.WaitGroup
			for _, at := range places {
				slots <- struct{}{}
				runs.Go(func() {
					defer func() { <-slots }()
					l, err := s.startLone(thread, d.damage(whole, at))
					if err == nil {
						err = l.expectRejected(s.ctx)
						l.stop()
					}
					if err != nil {
						s.Errorf("damaged at %d of %d: %v", at, len(whole), err)
					}
				})
			}
			runs.Wait()
			s.result.lost = []string{fmt.Sprintf("the snapshot, all %d times refused (%d of %d blocks)", len(places),
				len(places), blocks)}
		})
	}
}

// wholeState is a file of a store that has what the store of the node's wrapper has, as its first state.
func (s *site) wholeState() []byte {
	s.Helper()
	all, problems := store.Read(s.node.StateDir, nil)
	path := s.TempDir()
	copied, _, more := store.Open(store.Options{Dir: path, HourlyBytes: snapshot.HourlyBytes,
		State: func() iter.Seq2[string, []byte] { return maps.All(all) }})
	s.Must(errors.Join(errors.Join(append(problems, more...)...), copied.Rewrite(), copied.Close()))
	whole, err := os.ReadFile(filepath.Join(path, storeFile))
	s.Must(err)
	return whole
}

// fatten gives the site a snapshot of some more blocks: with Services that do not compress well.
func (s *site) fatten() {
	s.Helper()
	for i := range 8 {
		random := make([]byte, 3<<10)
		rand.Read(random)
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Name: s.canary.Name + "-" + strconv.Itoa(i),
				Annotations: map[string]string{workload.TopologyKeys: `["` + siteLabel + `"]`,
					"random": base64.StdEncoding.EncodeToString(random)},
			},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: workload.Port}}},
		}
		_, err := shared.Client().CoreV1().Services(namespace).Create(s.ctx, service, metav1.CreateOptions{})
		s.Must(err)
		s.Cleanup(func() { deleteService(service.Name) })
	}
}

// A wrapper whose clock is a day behind that of the process before it numbers its events above those nevertheless, and
// a client that comes with one of those is told to list again. The clock of one process cannot be set alone, so it is
// the state directory that comes from a day ahead.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	const ahead = 24 * time.Hour
	f := fault{name: "clock set back by a day", bound: 90 * time.Second, restarts: true}
	var given uint64
	f.inflict = func(s *site) {
		s.Kept(writeDelay, s.node)
		s.killWrapper()
		given = uint64(time.Now().Add(ahead).UnixMicro())
		dir, state, _, err := snapshot.Open(snapshot.Options{Path: s.node.StateDir, NodeName: s.node.Name(),
			Logger: logr.Discard()})
		s.Must(err)
		state.Revision = given
		state.AsOf = time.Now().Add(ahead) // so that it is written
		_, err = dir.Save(state, given)
		s.Must(errors.Join(err, dir.Close()))
		s.Must(s.node.Wrapper.Launch())
	}
	f.after = func(s *site) {
		list, err := s.observer.client.Resource(observed[0]).List(s.ctx, metav1.ListOptions{})
		s.Must(err)
		revision, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
		s.Must(err)
		if revision <= given {
			s.Errorf("after revision %d was given out, the process with the earlier clock is at %d", given, revision)
		}
		for _, old := range []uint64{given, given - 1000, uint64(time.Now().UnixMicro())} {
			reply, err := s.get(fmt.Sprintf("/api/v1/services?watch=true&timeoutSeconds=1&resourceVersion=%d", old))
			s.Must(err)
			if reply.Status != http.StatusGone {
				s.Errorf("a watch from revision %d, of before the restart, was answered with status %d: %s", old,
					reply.Status, reply.Body)
			}
		}
	}
	f.run(t)
}
