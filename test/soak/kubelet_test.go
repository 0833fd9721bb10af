package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/application-grid/application-grid/test/cluster"
)

// unanswered is how long lite-apiserver may leave its kubelet without an answer: until it knows that kube-apiserver is
// away, it passes requests on.
const unanswered = 30 * time.Second

// kubelet asks a node's lite-apiserver as the kubelet does: it follows the pods of the node, and lists them again all
// the time, as a kubelet that starts.
type kubelet struct {
	node   *cluster.Node
	client kubernetes.Interface
	// pods is what it has heard since it was last restarted. Only the test's goroutine restarts it.
	pods cache.Store
	stop func()

	mu sync.Mutex
	// excused counts the faults under way that explain failures; tried and failures count lists. answered is when the
	// last one was answered or excused, longest the longest time between two. Guarded by mu.
	excused, tried, failures int
	answered                 time.Time
	longest                  time.Duration
}

func (w *world) newKubelet(node *cluster.Node) *kubelet {
	w.Helper()
	config, err := node.KubeletConfig()
	w.Must(err)
	k := &kubelet{node: node}
	k.client, err = kubernetes.NewForConfig(config)
	w.Must(err)
	return k
}

func (k *kubelet) selector() fields.Selector {
	return fields.OneTermEqualSelector("spec.nodeName", k.node.Name())
}

// restart has the kubelet forget what it has heard.
func (k *kubelet) restart() {
	if k.stop != nil {
		k.stop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var controller cache.Controller
	k.pods, controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(cache.NewListWatchFromClient(
			k.client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, k.selector()), k.client),
		ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{},
	})
	var done sync.WaitGroup
	done.Go(func() { controller.RunWithContext(ctx) })
	k.stop = func() {
		cancel()
		done.Wait()
	}
}

func (k *kubelet) start(t *testing.T) {
	t.Helper()
	k.restart()
	k.answered = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			_, err := k.list(ctx)
			k.count(err)
			time.Sleep(10 * pause)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		k.stop()
	})
}

// count counts a list that ended with this error.
func (k *kubelet) count(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried++
	if err != nil && k.excused == 0 {
		k.failures++
		return
	}
	now := time.Now()
	if k.excused == 0 {
		k.longest = max(k.longest, now.Sub(k.answered))
	}
	k.answered = now
}

// excuse begins a fault that explains failures, until the function that it returns is called.
func (k *kubelet) excuse() (end func()) {
	add := func(n int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.excused += n
		k.answered = time.Now()
	}
	add(1)
	return func() { add(-1) }
}

// list returns the pods with which a kubelet that starts now is answered.
func (k *kubelet) list(ctx context.Context) (map[string]string, error) {
	attempt, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := k.client.CoreV1().Pods("").List(attempt, metav1.ListOptions{
		FieldSelector: k.selector().String(), ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return versions(list.Items), nil
}

// versions are the pods, by name and UID.
func versions(pods []corev1.Pod) map[string]string {
	found := map[string]string{}
	for i := range pods {
		found[pods[i].Namespace+"/"+pods[i].Name+" "+string(pods[i].UID)] = pods[i].ResourceVersion
	}
	return found
}

// knows is nil if a list has these pods, and the kubelet has received them by its watch.
func (k *kubelet) knows(ctx context.Context, want map[string]string) error {
	listed, err := k.list(ctx)
	if err != nil {
		return err
	}
	var followed []corev1.Pod
	for _, object := range k.pods.List() {
		followed = append(followed, *object.(*corev1.Pod))
	}
	for what, got := range map[string]map[string]string{"it lists": listed, "it follows": versions(followed)} {
		if !maps.Equal(got, want) {
			return fmt.Errorf("%s: %s %d pods, %v; there are %d, %v", k.node.Name(), what, len(got), got, len(want), want)
		}
	}
	return nil
}

// awaitKubelets waits until all kubelets know the pods that kube-apiserver has for them.
func (w *world) awaitKubelets(what string) {
	w.Helper()
	for _, k := range w.kubelets {
		w.Eventually(what+": the kubelet of "+k.node.Name(), func() error {
			list, err := w.Cluster.Client().CoreV1().Pods("").List(w.Context(), metav1.ListOptions{FieldSelector: k.selector().String()})
			if err != nil {
				return err
			}
			return k.knows(w.Context(), versions(list.Items))
		})
	}
}

// cutPowerAlone cuts the power of a node while its link is down. Its kubelet is answered as before.
func (w *world) cutPowerAlone() {
	w.Helper()
	node := w.Node(rebooted)
	k := w.kubelets[rebooted]
	w.Eventually("all is on the disk", func() error {
		reply, err := node.Get(w.Context(), node.LiteURL()+"/metrics")
		if err == nil && !strings.Contains(reply.Body, "\nlite_apiserver_unsaved_changes 0\n") {
			err = errors.New("lite-apiserver has unsaved changes")
		}
		return err
	})
	before, err := k.list(w.Context())
	w.Must(err)
	if len(before) == 0 {
		w.Fatalf("%s has no pods", rebooted)
	}
	defer w.askers[rebooted].excuse()()
	func() {
		defer k.excuse()()
		w.Must(node.CutLink(w.Context()))
		w.Must(node.Reboot(w.Context()))
		w.Eventually("the kubelet is answered again", func() error {
			_, err := k.list(w.Context())
			return err
		})
	}()
	after, err := k.list(w.Context())
	w.Must(err)
	if !maps.Equal(before, after) {
		w.Errorf("%s lists %v before a power cut without a link, and %v after it", rebooted,
			slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	}
	w.wait(0, 10*time.Second)
	w.restoreLink(node)
	w.awaitSite(rebooted)
}
