package lite

import (
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// change is something that happens in the cloud.
func (w *world) change() {
	name := fmt.Sprint("p", w.random.IntN(7))
	k := key{"pods", shop, name}
	pod, _ := w.cloud.get(k).(*corev1.Pod)
	switch w.random.IntN(10) {
	case 0, 1, 2:
		switch {
		case pod == nil:
			w.cloud.put("pods", w.newPod(name, pick(w, node, node, node, "", "n2"), w.chance(25)))
			w.note("pod %s is made", name)
		case pod.Spec.NodeName == "":
			pod = pod.DeepCopy()
			pod.Spec.NodeName = node
			w.cloud.put("pods", pod)
			w.note("pod %s is bound", name)
		case w.chance(50):
			pod = pod.DeepCopy()
			pod.Annotations = map[string]string{"changed": fmt.Sprint(w.random.Uint64())}
			w.cloud.put("pods", pod)
			w.note("pod %s is changed", name)
		default:
			w.deletePod(k)
		}
	case 3:
		w.deletePod(k)
	case 4:
		if pod != nil && pod.Spec.NodeName == node && w.chance(40) {
			w.cloud.remove(k)
			w.note("pod %s is removed by force", name)
		}
	case 5, 6, 7:
		named := key{pick(w, "secrets", "configmaps"), shop, ""}
		named.name = fmt.Sprint(named.resource[:1], w.random.IntN(4))
		if w.chance(20) {
			w.cloud.remove(named)
			w.note("%v is removed", named)
		} else {
			w.changeNamed(named)
			w.note("%v is changed", named)
		}
	case 8:
		number := w.random.IntN(5)
		if service := (key{"services", shop, fmt.Sprint("svc", number)}); w.chance(25) {
			w.cloud.remove(service)
		} else {
			w.changeService(number)
		}
		w.note("Service %d is changed", number)
	case 9:
		w.changeNode()
		w.note("the Node is changed")
	}
}

func (w *world) changeNode() {
	n := w.cloud.get(key{"nodes", "", node}).DeepCopyObject().(*corev1.Node)
	n.Labels = map[string]string{"changed": fmt.Sprint(w.random.Uint64())}
	w.cloud.put("nodes", n)
}

func (w *world) changes(most int) {
	for range w.random.IntN(most + 1) {
		w.change()
		time.Sleep(time.Duration(w.random.IntN(200)) * time.Millisecond)
	}
}

// deletePod marks a pod for deletion.
func (w *world) deletePod(k key) {
	pod, _ := w.cloud.get(k).(*corev1.Pod)
	switch {
	case pod == nil || pod.DeletionTimestamp != nil:
	case pod.Spec.NodeName != node:
		w.cloud.remove(k)
	default:
		pod = pod.DeepCopy()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr.To(metav1.Now().Rfc3339Copy()), ptr.To[int64](30)
		w.cloud.put("pods", pod)
		w.note("pod %s %s is marked for deletion", k.name, pod.UID)
	}
}

// somePod is a pod of the node that is not being deleted, or nil.
func (w *world) somePod() *corev1.Pod {
	all := w.truth("pods", w.cloud.now())
	for _, k := range slices.SortedFunc(maps.Keys(all), func(a, b key) int { return strings.Compare(a.name, b.name) }) {
		if pod := all[k].(*corev1.Pod); pod.DeletionTimestamp == nil && k.name != account {
			return pod
		}
	}
	return nil
}

// trouble is something that happens while the link is up. lost is set if the link is down afterwards.
func (w *world) trouble() (lost bool) {
	switch w.random.IntN(13) {
	case 0, 1:
		w.note("a kube-apiserver that lags answers")
		w.cloud.lag(uint64(3 + w.random.IntN(12)))
		switch w.random.IntN(4) {
		case 0, 1:
			w.note("its watches end with 410")
			w.cloud.cutWatches(true)
		case 2:
			w.note("lite-apiserver restarts")
			w.machine.kill()
			w.memory = w.disk
			w.machine.start()
		}
		time.Sleep(time.Duration(500+w.random.IntN(3000)) * time.Millisecond)
		if w.chance(50) {
			w.cloud.lag(0)
			w.note("the lag is over")
		}
	case 2:
		w.note("all watches end with 410")
		w.cloud.cutWatches(true)
	case 3:
		w.note("the link is slow")
		w.link.set(slow)
	case 4:
		mode := pick(w, statuses...)
		w.note("kube-apiserver answers %s", mode.name)
		w.cloud.setMode(mode)
		time.Sleep(time.Duration(500+w.random.IntN(4000)) * time.Millisecond)
		if w.chance(60) {
			w.cloud.setMode(answer{})
		}
	case 5, 6, 7:
		return w.loseDelete()
	case 8:
		w.refuseDelete()
	case 9:
		w.otherKubelet()
	case 10:
		w.note("the store is removed")
		must(os.RemoveAll(w.machine.store()))
		w.disk = floor{}
		w.changeRootCA() // nothing is written otherwise
		if w.chance(50) {
			time.Sleep(time.Duration(w.random.IntN(3000)) * time.Millisecond)
		} else {
			w.cloud.setMode(answer{}) // ends the watches
			w.settle(45 * time.Second)
		}
	case 11:
		w.note("the link is down for a moment")
		w.link.set(refused)
		time.Sleep(time.Duration(w.random.IntN(3000)) * time.Millisecond)
		w.link.set(up)
		w.back = time.Now()
	case 12:
		back := w.cloud.now()
		for range 20 { // more than is written after the restore: what docs/operate.md asks for
			w.changeNode()
		}
		time.Sleep(2 * time.Second) // all watches are told of the version
		w.note("etcd is restored to version %d", back)
		w.restore(back)
	}
	return false
}

// restore restores etcd. The node knows that only when it is connected again, so nothing is promised before. A kubelet
// has to be restarted then, as with kube-apiserver itself.
func (w *world) restore(version uint64) {
	w.cloud.restore(version)
	w.mu.Lock()
	for _, o := range w.cloud.list("pods") { // it is back for kube-apiserver, too
		delete(w.gone, o.GetUID())
		delete(w.applied, o.GetUID())
		delete(w.deleted, o.GetUID())
	}
	w.mu.Unlock()
	w.memory, w.disk, w.restored = floor{}, floor{}, true
	time.Sleep(30 * time.Second) // docs/operate.md asks for that before a kubelet is restarted
	w.kubelet.stop()
	w.kubelet = w.newKubelet()
	for range 3 {
		w.change()
	}
	w.settle(90 * time.Second)
}

// awaitDelete marks a pod for deletion, and waits until its last DELETE has had this verdict.
func (w *world) awaitDelete(v verdict) bool {
	pod := w.somePod()
	if pod == nil {
		return false
	}
	heard := make(chan struct{})
	w.cloud.mu.Lock()
	w.cloud.onDelete = func(p *corev1.Pod) verdict {
		if p.UID != pod.UID {
			return verdict{}
		}
		w.cloud.onDelete = nil
		close(heard)
		return v
	}
	w.cloud.mu.Unlock()
	w.deletePod(key{"pods", shop, pod.Name})
	select {
	case <-heard:
	case <-time.After(45 * time.Second):
		w.fail("pod %s is marked for deletion, and the DELETE does not come", pod.Name)
	}
	if v.applied {
		w.set(w.applied, pod.UID, true)
	}
	return true
}

func (w *world) loseDelete() (lost bool) {
	if page := pick(w, gateways...); w.chance(25) && !slices.Contains(strings.Split(*without, ","), "DELETE") {
		if lost = w.awaitDelete(verdict{page: &page}); lost {
			time.Sleep(200 * time.Millisecond) // the answer comes
			w.note("a DELETE was answered by %s", page.name)
			w.link.set(refused)
			w.kubelet.stop() // it does not repeat what was answered
			w.kubelet = w.newKubelet()
		}
		return lost
	}
	state, applied := pick[int32](w, refused, hole, silent), w.chance(50)
	lost = w.awaitDelete(verdict{applied: applied, lost: func() { w.link.set(state) }})
	w.note("the answer to a DELETE is lost: %v, it was applied: %v", lost, applied)
	return lost
}

func (w *world) refuseDelete() {
	code := pick(w, 403, 409)
	if w.awaitDelete(verdict{code: code}) {
		w.note("a DELETE was refused with %d", code)
	}
	time.Sleep(time.Duration(w.random.IntN(400)) * time.Millisecond)
}

// otherKubelet is a second client with the node's certificate, that deletes nothing.
func (w *world) otherKubelet() {
	pod := w.somePod()
	if pod == nil {
		return
	}
	client, err := kubernetes.NewForConfig(w.machine.config())
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), DryRun: []string{metav1.DryRunAll},
		Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}}
	err = client.CoreV1().Pods(shop).Delete(ctx, pod.Name, options)
	w.note("a DELETE of %s as a dry run: %v", pod.Name, err)
	options.DryRun, options.Preconditions.UID = nil, ptr.To[types.UID]("00000000-0000-4000-8000-999999999999")
	err = client.CoreV1().Pods(shop).Delete(ctx, pod.Name, options)
	w.note("a DELETE of %s with another UID: %v", pod.Name, err)
}

// cutOff takes kube-apiserver away, unless the link is down already.
func (w *world) cutOff(already bool) {
	switch {
	case already:
	case w.chance(40) && w.gateway():
		if w.chance(50) {
			break
		}
		time.Sleep(time.Duration(w.random.IntN(5000)) * time.Millisecond)
		fallthrough
	default:
		state := pick[int32](w, refused, hole, silent)
		w.link.set(state)
		w.note("the link is down: %s", []string{"", "refused", "black hole", "silent"}[state])
	}
	time.Sleep(50 * time.Millisecond) // what was under way
	w.until = w.cloud.now()
}

// gateway puts something in kube-apiserver's place, which may break connections. It returns false if a flag leaves out
// all of them.
func (w *world) gateway() bool {
	all := slices.DeleteFunc(slices.Clone(gateways), func(a answer) bool {
		return slices.Contains(strings.Split(*without, ","), a.name)
	})
	if len(all) == 0 {
		return false
	}
	mode, breaks := pick(w, all...), w.chance(50)
	w.cloud.setMode(mode)
	if breaks {
		w.link.set(refused)
		w.link.set(up)
	}
	w.note("in kube-apiserver's place there is %s; connections are broken: %v", mode.name, breaks)
	return true
}

// powerCut ends lite-apiserver and the kubelet at once, or only the former, and starts them.
func (w *world) powerCut() {
	both := w.chance(70)
	w.note("a power cut; also of the kubelet: %v", both)
	if both {
		w.kubelet.stop()
	}
	w.machine.kill()
	w.memory = w.disk
	if w.chance(40) && !w.restored { // an older generation has versions from before the restore, as a backup has
		w.tear()
	}
	w.machine.start()
	w.note("lite-apiserver serves")
	if both {
		w.kubelet = w.newKubelet()
	}
}

// outage is a time without kube-apiserver.
func (w *world) outage(already bool) {
	w.cutOff(already)
	if w.chance(30) {
		time.Sleep(time.Duration(w.random.IntN(1500)) * time.Millisecond)
		w.powerCut()
	}
	w.changes(3)
	w.judgeAway()
	if w.chance(40) {
		w.powerCut()
		w.judgeAway()
	} else if w.chance(40) {
		w.note("the kubelet restarts")
		w.kubelet.stop()
		w.kubelet = w.newKubelet()
		w.judgeAway()
	}
	if w.chance(25) {
		w.flood()
	}
}

// reconnect ends an outage.
func (w *world) reconnect() {
	w.cloud.setMode(answer{})
	w.cloud.lag(0)
	w.link.set(up)
	w.back = time.Now()
	dead := w.chance(15)
	if dead {
		w.deaf = time.Now().Add(25 * time.Second)
	} else {
		w.link.breakFrozen()
	}
	w.note("kube-apiserver is back; old connections stay silent: %v", dead)
}

// agentClient asks with a token of the account.
func (w *world) agentClient(token string) kubernetes.Interface {
	config := w.machine.config()
	config.BearerToken, config.CertData, config.KeyData, config.CertFile, config.KeyFile = token, nil, nil, "", ""
	client, err := kubernetes.NewForConfig(config)
	must(err)
	return client
}

// flood is many who ask: without a certificate, and with the account's token, reading nothing of the answers.
func (w *world) flood() {
	token := ""
	for uid, t := range w.memory.tokens {
		if w.pod(uid) != nil && t != "" {
			token = t
		}
	}
	var open []net.Conn
	address := fmt.Sprint("127.0.0.1:", w.machine.port)
	for i := range 300 {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			continue
		}
		open = append(open, connection)
		if i%3 == 0 || token == "" {
			continue
		}
		_ = connection.(*net.TCPConn).SetReadBuffer(4096)
		secured := tls.Client(connection, &tls.Config{InsecureSkipVerify: true})
		_ = connection.SetDeadline(time.Now().Add(time.Second))
		fmt.Fprintf(secured, "GET /api/v1/services HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", token)
	}
	client, err := kubernetes.NewForConfig(w.machine.config())
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	began := time.Now()
	_, err = client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0",
		FieldSelector: followed["pods"].field})
	if err != nil && w.memory.version > 0 {
		w.fail("the kubelet is not answered beside %d connections: %v", len(open), err)
	}
	w.note("the kubelet is answered after %s beside %d connections", time.Since(began), len(open))
	time.Sleep(time.Second)
	for _, connection := range open {
		_ = connection.Close() // nobody reads
	}
}

// fileState is how a file of the store was.
type fileState struct {
	info fs.FileInfo
	size int64
}

func (m *machine) files() map[string]fileState {
	all := map[string]fileState{}
	_ = filepath.WalkDir(m.store(), func(path string, entry fs.DirEntry, err error) error { // it may be removed
		if err == nil && !entry.IsDir() {
			if info, err := entry.Info(); err == nil {
				all[path] = fileState{info, info.Size()}
			}
		}
		return nil
	})
	return all
}

// tear damages the end of the file that was written last, but nothing that was there when everything was called saved.
func (w *world) tear() {
	last := ""
	files := w.machine.files()
	for path, file := range files {
		if last == "" || file.info.ModTime().After(files[last].info.ModTime()) {
			last = path
		}
	}
	if last == "" {
		return
	}
	content, err := os.ReadFile(last)
	must(err)
	before, known := w.disk.files[last]
	switch {
	case w.deletes() > w.disk.deletes || !known || !os.SameFile(before.info, files[last].info) ||
		before.size >= int64(len(content)):
		content = append(content, make([]byte, 1+w.random.IntN(100))...)
		w.note("half a record is at the end of %s", filepath.Base(last))
	case w.chance(50):
		content = content[:before.size+w.random.Int64N(int64(len(content))-before.size)]
		w.note("%s is cut to %d bytes", filepath.Base(last), len(content))
	default:
		content[before.size+w.random.Int64N(int64(len(content))-before.size)] ^= 1
		w.note("a bit of %s has changed after %d bytes", filepath.Base(last), before.size)
	}
	must(os.WriteFile(last, content, 0o600))
}

// churn changes a large ConfigMap of a pod more than flash bears.
func (w *world) churn() {
	w.note("a large ConfigMap changes all the time")
	config := &corev1.ConfigMap{ObjectMeta: meta(shop, "kube-root-ca.crt"), Data: map[string]string{"ca.crt": "x"}}
	for range 120 {
		text := make([]byte, 600_000)
		for j := range text {
			text[j] = byte(' ' + w.random.IntN(90)) // it cannot be compressed much
		}
		config.Data["text"] = string(text)
		w.cloud.put("configmaps", config)
		time.Sleep(100 * time.Millisecond)
	}
	w.within(30*time.Second, "the kubelet follows", w.unsettled)
}
