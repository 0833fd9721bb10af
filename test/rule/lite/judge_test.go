package lite

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// floor is a version that the node has been told of for 2 s, with the pods that were called startable then, their
// last tokens, and how the files of the store were. Secrets and ConfigMaps are followed again within some seconds after
// kube-apiserver is back, so that many nodes do not ask at the same time: of these, and of what accounts read, the node
// was told at version named.
type floor struct {
	version uint64
	named   uint64
	safe    map[types.UID]bool
	tokens  map[types.UID]string
	files   map[string]fileState
	deletes int
}

// fail ends the world with what has happened.
func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	w.note("judged")
	w.mu.Lock()
	text := w.log.String()
	w.mu.Unlock()
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), text)
}

// within waits until there is nothing to complain about, and returns how long that took.
func (w *world) within(limit time.Duration, what string, complain func() string) time.Duration {
	w.t.Helper()
	began, last := time.Now(), ""
	for {
		complaint := complain()
		if complaint == "" {
			return time.Since(began)
		}
		if complaint != last {
			w.note("not yet: %s", complaint)
			last = complaint
		}
		if time.Since(began) > limit {
			w.fail("%s, not within %s: %s", what, limit, complaint)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func selectorOf(resource string) fields.Selector {
	return fields.ParseSelectorOrDie(followed[resource].field)
}

// truth is what kube-apiserver answers the kubelet for a resource at a version.
func (w *world) truth(resource string, version uint64) map[key]object {
	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()
	all := w.cloud.state(resource, version)
	selector := selectorOf(resource)
	maps.DeleteFunc(all, func(_ key, o object) bool { return !selector.Matches(attributes(o)) })
	return all
}

// shown is what a store of the kubelet's has.
func shown(resource string, list []any) map[key]object {
	all := map[key]object{}
	for _, o := range list {
		all[keyOf(resource, o.(object))] = o.(object)
	}
	return all
}

// complete reports whether a pod has all that it needs.
func (w *world) complete(pod *corev1.Pod) bool {
	for _, n := range needs(pod) {
		if !n.satisfied(w.cloud.get(n.key)) {
			return false
		}
	}
	return true
}

// hasRun reports whether the node has the image of the pod's container.
func hasRun(pod *corev1.Pod) bool { return len(pod.Status.ContainerStatuses) > 0 }

// unsettled says what the kubelet does not know although the link is up, or what it has not done.
func (w *world) unsettled() string {
	for resource := range followed {
		want, got := w.truth(resource, w.cloud.now()), shown(resource, w.kubelet.stores[resource].List())
		for k, o := range want {
			pod, isPod := o.(*corev1.Pod)
			switch {
			case isPod && pod.DeletionTimestamp != nil:
				return fmt.Sprintf("pod %s %s is still terminating, the kubelet has it: %v", k.name, pod.UID,
					got[k] != nil)
			case isPod && w.complete(pod) && !hasRun(pod):
				return fmt.Sprintf("pod %s has not started", k.name)
			}
			if got[k] == nil || got[k].GetResourceVersion() != o.GetResourceVersion() {
				return fmt.Sprintf("the kubelet does not have %s %s at version %s", resource, k.name,
					o.GetResourceVersion())
			}
		}
		for k := range got {
			if want[k] == nil {
				return fmt.Sprintf("the kubelet has %s %s, which does not exist", resource, k.name)
			}
		}
	}
	for k, store := range w.kubelet.namedStores() {
		want, got := w.cloud.get(k), shown(k.resource, store.List())[k]
		if (want == nil) != (got == nil) || (want != nil && want.GetResourceVersion() != got.GetResourceVersion()) {
			return fmt.Sprintf("the kubelet does not have %v as it is", k)
		}
	}
	return ""
}

// unsafe says which pods are not called startable that are, or the other way round.
func (w *world) unsafe() (complaint string, safe map[types.UID]bool) {
	missing, err := w.machine.explain()
	if err != nil {
		return err.Error(), nil
	}
	safe = map[types.UID]bool{}
	for k, o := range w.truth("pods", w.cloud.now()) {
		pod := o.(*corev1.Pod)
		lacks, said := missing[k.namespace+"/"+k.name]
		called, is := said && len(lacks) == 0, w.complete(pod) && hasRun(pod)
		if called != is {
			return fmt.Sprintf("explain says of pod %s, startable %v, that it lacks %q", k.name, is, lacks), nil
		}
		safe[pod.UID] = called
	}
	return "", safe
}

// settle waits, with the link up, until the kubelet knows all and has done all, and notes what is promised from then.
func (w *world) settle(limit time.Duration) {
	w.t.Helper()
	took := w.within(limit, "the kubelet follows", w.unsettled)
	time.Sleep(time.Until(w.deaf))
	w.note("the kubelet knows all after %.1f s", took.Seconds())
	w.readAsAgent()
	var next floor
	saved := false
	w.within(30*time.Second, "explain is right and all is on the disk", func() string {
		complaint, safe := w.unsafe()
		if complaint != "" {
			return complaint
		}
		next = floor{version: w.cloud.now(), named: w.memory.named, safe: safe, tokens: map[types.UID]string{}}
		if time.Since(w.back) > 15*time.Second {
			next.named = next.version
		}
		for uid := range safe {
			next.tokens[uid] = w.kubelet.token(uid)
		}
		time.Sleep(2 * time.Second)
		var body string
		body, saved = w.machine.readyz()
		if !saved && !w.diskBroken {
			return body
		}
		return ""
	})
	next.files, next.deletes = w.machine.files(), w.deletes()
	w.memory = next
	if saved {
		w.disk = next
	}
	w.note("settled at version %d, on the disk: %v", next.version, saved)
}

// readAsAgent reads Services with the account's tokens, which are answered while kube-apiserver is away if they were
// read before.
func (w *world) readAsAgent() {
	w.t.Helper()
	for _, pod := range w.kubelet.pods() {
		if token := w.kubelet.token(pod.UID); token != "" && pod.DeletionTimestamp == nil {
			w.within(20*time.Second, "the account's request passes", func() string {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				_, err := w.agentClient(token).CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
				if err != nil && !apierrors.IsUnauthorized(err) { // the pod may be gone meanwhile
					return err.Error()
				}
				return ""
			})
		}
	}
}

// acceptable are the states of an object that may be answered while kube-apiserver is away.
func (w *world) acceptable(k key, selector fields.Selector, from uint64) []object {
	all := w.cloud.versions(k, from, w.until)
	unknown := from == 0
	for i, o := range all {
		switch {
		case o == nil:
		case !selector.Matches(attributes(o)) || w.is(w.gone, o.GetUID()):
			all[i] = nil
		case w.is(w.deleted, o.GetUID()):
			unknown = true // a DELETE may be noted, or have been lost before that
		}
	}
	if unknown {
		all = append(all, nil)
	}
	return all
}

// same reports whether an answer is a state of the truth. A kubelet reads only addresses and ports of a Service.
func same(got, want object) bool {
	if got == nil || want == nil {
		return got == nil && want == nil
	}
	if got.GetResourceVersion() != want.GetResourceVersion() || got.GetUID() != want.GetUID() {
		return false
	}
	got, want = got.DeepCopyObject().(object), want.DeepCopyObject().(object)
	if service, ok := got.(*corev1.Service); ok {
		other := want.(*corev1.Service)
		return service.Spec.ClusterIP == other.Spec.ClusterIP &&
			apiequality.Semantic.DeepEqual(service.Spec.Ports, other.Spec.Ports)
	}
	got.SetManagedFields(nil)
	want.GetObjectKind().SetGroupVersionKind(got.GetObjectKind().GroupVersionKind())
	return apiequality.Semantic.DeepEqual(got, want)
}

// wrong says what of a resource is not as kube-apiserver has said it since a version.
func (w *world) wrong(resource string, got map[key]object, from uint64) string {
	keys := maps.Clone(got)
	maps.Copy(keys, w.truth(resource, from))
	maps.Copy(keys, w.truth(resource, w.until))
	for k := range keys {
		want := w.acceptable(k, selectorOf(resource), from)
		if !slices.ContainsFunc(want, func(o object) bool { return same(got[k], o) }) {
			return fmt.Sprintf("%s %s is answered as %s, it was between versions %d and %d: %s", resource, k.name,
				describe(got[k]), from, w.until, describe(want...))
		}
	}
	return ""
}

func describe(all ...object) (text string) {
	for _, o := range all {
		if o == nil {
			text += "[none]"
		} else {
			text += fmt.Sprintf("[%s %s %v]", o.GetUID(), o.GetResourceVersion(), o.GetDeletionTimestamp() != nil)
		}
	}
	return text
}

// wrongStores is wrong for all that the kubelet follows.
func (w *world) wrongStores() string {
	if !w.kubelet.isSynced() {
		return "the kubelet has no answer to its lists"
	}
	for resource, store := range w.kubelet.stores {
		got := shown(resource, store.List())
		maps.DeleteFunc(got, func(_ key, o object) bool { // it need not be told of what it has removed
			return o.GetDeletionTimestamp() != nil && w.kubelet.hasEnded(o.GetUID()) && w.is(w.deleted, o.GetUID())
		})
		if complaint := w.wrong(resource, got, w.memory.version); complaint != "" {
			return complaint
		}
	}
	return ""
}

// judgeAway judges what is answered while kube-apiserver is away.
func (w *world) judgeAway() {
	w.t.Helper()
	client, err := kubernetes.NewForConfig(w.machine.config())
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var list *corev1.PodList
	took := w.within(30*time.Second, "pods are answered", func() string {
		if list, err = client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0",
			FieldSelector: followed["pods"].field, TimeoutSeconds: new(int64)}); err != nil && w.memory.version > 0 {
			return err.Error()
		}
		return ""
	})
	if err != nil {
		w.note("nothing is answered, and nothing was promised: %v", err)
		return
	}
	w.note("pods are answered after %.1f s at version %s", took.Seconds(), list.ResourceVersion)
	w.judgeSnapshot(list)
	w.within(15*time.Second, "the kubelet has the truth", w.wrongStores)
	time.Sleep(1500 * time.Millisecond) // explain is made again every second
	missing, err := w.machine.explain()
	if err != nil {
		w.fail("explain: %v", err)
	}
	for i := range list.Items {
		pod := &list.Items[i]
		lacks, said := missing[pod.Namespace+"/"+pod.Name]
		if pod.DeletionTimestamp == nil {
			w.judgePod(ctx, client, pod, said && len(lacks) == 0)
		}
	}
	w.judgeUnknown(ctx, client)
	w.judgeAccount(ctx)
	w.note("judged while kube-apiserver is away")
}

// judgeSnapshot judges whether a list is what was at its version, which may be that of an earlier settled state if no
// pod has changed since.
func (w *world) judgeSnapshot(list *corev1.PodList) {
	version, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil || version > w.until {
		w.fail("the list of pods has version %q, promised are %d to %d", list.ResourceVersion, w.memory.version,
			w.until)
	}
	version = max(version, w.memory.version)
	got := map[key]object{}
	for i := range list.Items {
		got[keyOf("pods", &list.Items[i])] = &list.Items[i]
	}
	want := w.truth("pods", version)
	for k, o := range want {
		if got[k] == nil && !w.is(w.deleted, o.GetUID()) || got[k] != nil && !same(got[k], o) {
			w.fail("at version %d pod %s is %s, and was %s", version, k.name, describe(got[k]), describe(o))
		}
		if got[k] != nil && (w.is(w.gone, got[k].GetUID()) || w.is(w.applied, got[k].GetUID())) {
			w.fail("pod %s is back: %s", k.name, describe(got[k]))
		}
	}
	for k := range got {
		if want[k] == nil {
			w.fail("at version %d there was no pod %s, it is answered as %s", version, k.name, describe(got[k]))
		}
	}
}

// judgePod judges what is answered of what a pod needs. startable is what explain says now.
func (w *world) judgePod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, startable bool) {
	promised := w.memory.safe[pod.UID]
	for _, n := range needs(pod) {
		var o object
		var err error
		if n.key.resource == "secrets" {
			o, err = client.CoreV1().Secrets(n.key.namespace).Get(ctx, n.key.name, metav1.GetOptions{})
		} else {
			o, err = client.CoreV1().ConfigMaps(n.key.namespace).Get(ctx, n.key.name, metav1.GetOptions{})
		}
		want := w.cloud.versions(n.key, w.memory.named, w.until)
		switch {
		case apierrors.IsNotFound(err):
			o = nil
		case err != nil && !promised && !startable:
			continue
		case err != nil:
			w.fail("pod %s was called startable before: %v, now: %v; %v is answered with %v", pod.Name, promised,
				startable, n.key, err)
		}
		if !slices.ContainsFunc(want, func(v object) bool { return same(o, v) }) {
			w.fail("%v is answered as %s (%v), and was %s", n.key, describe(o), err, describe(want...))
		}
		if startable && !n.satisfied(o) {
			w.fail("pod %s is called startable, and its %v is answered as %s", pod.Name, n.key, describe(o))
		}
	}
	if promised && !startable && w.stillSafe(pod) {
		w.fail("pod %s was called startable, and is not any more", pod.Name)
	}
	if !hasToken(pod) || (!promised && !startable) {
		return
	}
	granted, err := w.kubelet.askToken(ctx, pod)
	if err != nil {
		w.fail("the token of pod %s: %v", pod.Name, err)
	}
	w.cloud.mu.Lock()
	uid := w.cloud.tokens[granted.Status.Token]
	w.cloud.mu.Unlock()
	if uid != pod.UID || !granted.Status.ExpirationTimestamp.After(time.Now()) {
		w.fail("pod %s gets a token of %q", pod.Name, uid)
	}
}

// stillSafe reports whether nothing that a pod needs has changed since it was called startable.
func (w *world) stillSafe(pod *corev1.Pod) bool {
	for _, n := range needs(pod) {
		if len(w.cloud.versions(n.key, w.memory.named, w.until)) > 1 {
			return false
		}
	}
	return true
}

// judgeUnknown judges the answers about what kube-apiserver has not said.
func (w *world) judgeUnknown(ctx context.Context, client kubernetes.Interface) {
	for path, verb := range map[string]string{
		"/api/v1/namespaces/shop/secrets/never-named": http.MethodGet,
		"/api/v1/namespaces/shop/configmaps":          http.MethodGet,
		"/api/v1/namespaces/shop/pods/never-made":     http.MethodGet,
		"/apis/storage.k8s.io/v1/volumeattachments":   http.MethodGet,
		"/api/v1/nodes": http.MethodGet,
		"/api/v1/namespaces/shop/persistentvolumeclaims/never-named":        http.MethodGet,
		"/api/v1/namespaces/shop/events":                                    http.MethodPost,
		"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1": http.MethodGet,
	} {
		code := 0
		client.CoreV1().RESTClient().Verb(verb).AbsPath(path).Do(ctx).StatusCode(&code)
		if code != http.StatusServiceUnavailable {
			w.fail("%s %s is answered with %d", verb, path, code)
		}
	}
}

// judgeAccount judges what the allowed account is answered.
func (w *world) judgeAccount(ctx context.Context) {
	for uid, token := range w.memory.tokens {
		o := w.pod(uid)
		if token == "" || o == nil || w.is(w.deleted, uid) {
			continue
		}
		client := w.agentClient(token)
		services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
		if err == nil {
			got := map[key]object{}
			for i := range services.Items {
				got[keyOf("services", &services.Items[i])] = &services.Items[i]
			}
			if complaint := w.wrong("services", got, w.memory.named); complaint != "" {
				w.fail("the account: %s", complaint)
			}
		}
		if _, err := client.CoreV1().Secrets(shop).Get(ctx, "s0", metav1.GetOptions{}); err == nil {
			w.fail("the account gets a Secret")
		}
	}
}

// pod is the pod with a UID that the node was told of last, or nil.
func (w *world) pod(uid types.UID) *corev1.Pod {
	for _, o := range w.truth("pods", w.until) {
		if o.GetUID() == uid {
			return o.(*corev1.Pod)
		}
	}
	return nil
}
