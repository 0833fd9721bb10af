package lite

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/suite"
)

const (
	// cuts is how often a node's power is cut around a pod's last DELETE, on so many nodes at once. A quarter with
	// -short.
	cuts, nodesAtOnce = 200, 8
	// around is how long before and after the kubelet has sent the DELETE the power is cut at most.
	before, after = 5 * time.Millisecond, 45 * time.Millisecond
)

// outcomes count how power cuts ended: where the pod was for whom.
type outcomes struct {
	mu sync.Mutex
	// answered: the kubelet was answered that the pod is gone. passedOn: kube-apiserver knows it, but the kubelet does
	// not. noted: only the node knows it. risen: nobody knows it, and the pod starts again.
	answered, passedOn, noted, risen int // guarded by mu
}

// TestGonePodsStayGone cuts the power around the DELETE by which the kubelet says that nothing is left of a
// StatefulSet's pod. After a start without the cloud a pod that is gone for kube-apiserver or the kubelet is not
// answered any more, all other pods are.
func TestGonePodsStayGone(t *testing.T) {
	each := cuts / nodesAtOnce
	if testing.Short() {
		each /= 4
	}
	namespace := suite.Namespace(t, shared, "gone")
	var found outcomes
	t.Run("nodes", func(t *testing.T) {
		for i := range nodesAtOnce {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, fmt.Sprintf("gone-%d", i), true)
				random := rand.New(rand.NewPCG(uint64(i), 3))
				stays := m.createPod(namespace, "stays")
				m.start()
				m.recorded(1, string(stays.UID))
				for range each {
					m.cutAroundDelete(namespace, stays, random, &found)
				}
			})
		}
	})
	t.Logf("of %d power cuts %d came after the kubelet was answered, %d after the DELETE was passed on, %d after it "+
		"was noted, and %d before", each*nodesAtOnce, found.answered, found.passedOn, found.noted, found.risen)
	if found.answered == 0 || found.passedOn+found.noted == 0 || found.risen == 0 {
		t.Error("the moments were not around the DELETE")
	}
}

// cutAroundDelete makes a pod, confirms that it is gone, cuts the power meanwhile, and starts without the cloud. In the
// end the cloud is back.
func (m *machine) cutAroundDelete(namespace string, stays *corev1.Pod, random *rand.Rand, found *outcomes) {
	pod := m.createPod(namespace, "db")
	m.recorded(1, string(pod.UID))
	kubelet := m.kubelet()
	answered := make(chan bool, 1)
	go func() {
		time.Sleep(before)
		err := kubelet.CoreV1().Pods(namespace).Delete(m.Context(), pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}})
		answered <- err == nil
	}()
	confirmed, ended := false, random.IntN(4) == 0
	if ended {
		confirmed = <-answered // a busy machine takes longer for it than all moments below
	} else {
		time.Sleep(time.Duration(random.Int64N(int64(before + after))))
	}
	m.cut.Store(true)
	m.powerCut()
	m.start()
	list, err := m.pods()
	m.Must(err)
	there := map[types.UID]bool{}
	for _, p := range list.Items {
		there[p.UID] = true
	}
	_, err = shared.Client().CoreV1().Pods(namespace).Get(m.Context(), pod.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		m.Must(err)
	}
	passedOn := err != nil
	if !ended {
		confirmed = <-answered
	}
	if !there[stays.UID] || ((passedOn || confirmed) && there[pod.UID]) {
		m.Errorf("%s: there are %v. %s is gone for kube-apiserver: %v, for the kubelet: %v; %s is to be there", m.name,
			there, pod.UID, passedOn, confirmed, stays.UID)
	}
	found.mu.Lock()
	switch {
	case confirmed:
		found.answered++
	case passedOn:
		found.passedOn++
	case !there[pod.UID]:
		found.noted++
	default:
		found.risen++
	}
	found.mu.Unlock()
	if !passedOn {
		m.Must(shared.Client().CoreV1().Pods(namespace).Delete(m.Context(), pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0)}))
	}
	m.cut.Store(false)
}

// createPod makes a pod of the node, as a StatefulSet and the scheduler do.
func (m *machine) createPod(namespace, what string) *corev1.Pod {
	m.Helper()
	pod, err := shared.Client().CoreV1().Pods(namespace).Create(m.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: what + "-" + m.name},
		Spec: corev1.PodSpec{NodeName: m.name, AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	m.Must(err)
	return pod
}
