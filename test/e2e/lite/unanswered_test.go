package lite

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/test/suite"
)

// TestUnansweredDeleteIsRepeated: the link and the power fail while the kubelet's last DELETE of a pod is under way.
// The pod is gone from the node, and its Node starts without the cloud. When the cloud is back, the kubelet has to see
// the pod that is still being deleted there, so that it confirms its end. Otherwise the pod stays in the cloud for
// good, and a StatefulSet makes no other.
func TestUnansweredDeleteIsRepeated(t *testing.T) {
	namespace := suite.Namespace(t, shared, "unanswered")
	m := newMachine(t, "unanswered", false)
	pod, stays := m.createPod(namespace, "db"), m.createPod(namespace, "stays")
	m.start()
	m.recorded(1, string(pod.UID), string(stays.UID))
	m.Must(shared.Client().CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](30)}))
	deleting, err := shared.Client().CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	m.Must(err)
	const field6 = "\x32" // the resourceVersion in metadata, as protobuf has it
	m.recorded(1, field6+string(rune(len(deleting.ResourceVersion)))+deleting.ResourceVersion)

	kubelet := m.kubelet()
	m.cut.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = kubelet.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}})
	if err == nil {
		t.Fatal("the DELETE was answered")
	}
	m.kill()
	state, _ := store.Read(filepath.Join(m.dir(), "store"), nil)
	for key, value := range state {
		if strings.Contains(key, string(pod.UID)) {
			t.Logf("on the disk: %q: %q", key, value)
		}
	}

	m.start()
	client := m.kubelet()
	pods := cache.NewSharedIndexInformer(cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "",
		fields.OneTermEqualSelector("spec.nodeName", m.name)), &corev1.Pod{}, 0, nil)
	go pods.Run(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), pods.HasSynced) {
		t.Fatal("the kubelet has no pods")
	}
	key := namespace + "/" + pod.Name
	if _, there, _ := pods.GetStore().GetByKey(key); there {
		t.Error("the gone pod is answered")
	}
	m.cut.Store(false)
	began := time.Now()
	m.createPod(namespace, "later")
	patience.Until(t, "the kubelet sees a new pod", func() error {
		if _, there, _ := pods.GetStore().GetByKey(namespace + "/later-" + m.name); !there {
			return errors.New("it does not")
		}
		return nil
	})
	t.Logf("a new pod is there after %s", time.Since(began))
	patience.Until(t, "the kubelet sees the pod that is being deleted", func() error {
		if _, there, _ := pods.GetStore().GetByKey(key); !there {
			in, err := shared.Client().CoreV1().Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
			return errors.Join(errors.New("it does not"), err, errorOf(in))
		}
		return nil
	})
}

func errorOf(pod *corev1.Pod) error {
	return errors.New("in the cloud it is being deleted since " + pod.DeletionTimestamp.String())
}
