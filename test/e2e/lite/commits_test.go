package lite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/suite"
)

// cutsWhileWriting is how often the power of each of several nodes is cut while changes are written. Once with -short.
const cutsWhileWriting = 6

// history has the resourceVersions that each pod has had.
type history struct {
	namespace string
	pods      []*corev1.Pod

	mu       sync.Mutex
	versions map[string][]uint64 // guarded by mu
	changes  int                 // guarded by mu
}

// change changes a pod, and returns a text that the change has and nothing else, and its resourceVersion.
func (h *history) change(ctx context.Context) (text string, version uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changes++
	name := h.pods[h.changes%len(h.pods)].Name
	text = fmt.Sprintf("%s-change-%d-", h.pods[0].UID, h.changes)
	changed, err := shared.Client().CoreV1().Pods(h.namespace).Patch(ctx, name, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"annotations":{"change":%q}}}`, text), metav1.PatchOptions{})
	if err != nil {
		return "", 0, err
	}
	version, err = strconv.ParseUint(changed.ResourceVersion, 10, 64)
	h.versions[name] = append(h.versions[name], version)
	return text, version, err
}

// check says what is wrong with a list of the pods that has to have everything up to a version at least.
func (h *history) check(list *corev1.PodList, least uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil || at < least || len(list.Items) != len(h.pods) {
		return fmt.Errorf("the list has version %q and %d pods; to be there are version %d and %d pods",
			list.ResourceVersion, len(list.Items), least, len(h.pods))
	}
	for _, pod := range list.Items {
		want := uint64(0)
		for _, version := range h.versions[pod.Name] {
			if version <= at {
				want = version
			}
		}
		if pod.ResourceVersion != strconv.FormatUint(want, 10) {
			return fmt.Errorf("at version %d %s has %s, and had %d of %v", at, pod.Name, pod.ResourceVersion, want,
				h.versions[pod.Name])
		}
	}
	return nil
}

// TestPowerCutsWhileItWrites cuts the power while changes come all the time. What is answered after a start without the
// cloud is what kube-apiserver said at one version, not older than what has been on the disk.
func TestPowerCutsWhileItWrites(t *testing.T) {
	namespace := suite.Namespace(t, shared, "commits")
	for i := range nodesAtOnce {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, fmt.Sprintf("commits-%d", i), true)
			h := &history{namespace: namespace, versions: map[string][]uint64{}}
			for j := range 5 {
				pod := m.createPod(namespace, "p"+strconv.Itoa(j))
				version, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
				m.Must(err)
				h.pods, h.versions[pod.Name] = append(h.pods, pod), []uint64{version}
			}
			random := rand.New(rand.NewPCG(uint64(i), 4))
			m.start()
			for range cutsWhileWriting {
				m.cutWhileWriting(h, random)
				if testing.Short() {
					break
				}
			}
		})
	}
}

// cutWhileWriting cuts the power while pods change, and starts without the cloud. In the end the cloud is back.
func (m *machine) cutWhileWriting(h *history, random *rand.Rand) {
	first, least, err := h.change(m.Context())
	m.Must(err)
	m.recorded(1, first)
	second, _, err := h.change(m.Context())
	m.Must(err)
	m.recorded(1, second) // the frame before it is on the disk
	changing, stop := context.WithCancel(m.Context())
	var churn sync.WaitGroup
	churn.Go(func() {
		for changing.Err() == nil {
			if _, _, err := h.change(m.Context()); err != nil {
				m.Error(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	time.Sleep(time.Duration(random.Int64N(int64(1200 * time.Millisecond))))
	m.cut.Store(true)
	m.powerCut()
	stop()
	churn.Wait()
	m.start()
	list, err := m.pods()
	m.Must(err)
	m.Must(h.check(list, least))
	m.cut.Store(false)
}
