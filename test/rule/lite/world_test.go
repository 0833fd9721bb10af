package lite

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// world is a node, its cloud, and what has happened.
type world struct {
	t       *testing.T
	name    string
	random  *rand.Rand
	cloud   *cloud
	link    *link
	machine *machine
	kubelet *kubelet
	began   time.Time

	mu sync.Mutex
	// deleted are pods whose last DELETE was sent, gone those of which the kubelet was answered that they are removed,
	// applied those that only kube-apiserver has removed.
	deleted, gone, applied map[types.UID]bool
	log                    strings.Builder

	// memory is what lite-apiserver has to know, disk what it has to know after a loss of power, until is the last
	// version that it may know while kube-apiserver is away.
	memory, disk floor
	until        uint64
	// large is set if the cluster has Services of 5 MB.
	large bool
	// deaf is until when lite-apiserver may not have noticed that its connections are dead.
	deaf time.Time
	// back is when kube-apiserver was back last.
	back time.Time
	// diskBroken is set while the disk takes nothing.
	diskBroken bool
	// restored is set once etcd was restored to a lower version.
	restored bool
}

func newWorld(t *testing.T, number int, random *rand.Rand) *world {
	t.Helper()
	k := newKeys(number)
	w := &world{t: t, name: fmt.Sprint("world ", number), random: random, cloud: newCloud(k), began: time.Now(),
		deleted: map[types.UID]bool{}, gone: map[types.UID]bool{},
		applied: map[types.UID]bool{}}
	server := httptest.NewUnstartedServer(w.cloud)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // broken connections
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: []tls.Certificate{k.server}, ClientCAs: k.pool(),
		ClientAuth: tls.VerifyClientCertIfGiven}
	server.StartTLS()
	w.link = newLink(t, server.Listener.Addr().String())
	t.Cleanup(server.CloseClientConnections)
	w.machine = newMachine(t, k, "https://"+w.link.listener.Addr().String())
	w.populate()
	return w
}

func (w *world) chance(percent int) bool { return w.random.IntN(100) < percent }

func pick[T any](w *world, from ...T) T { return from[w.random.IntN(len(from))] }

// note adds a line to what has happened.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(&w.log, "%6.1f s, version %d: %s\n", time.Since(w.began).Seconds(), w.cloud.now(),
		fmt.Sprintf(format, args...))
}

// set notes something about a pod in deleted or gone.
func (w *world) set(in map[types.UID]bool, uid types.UID, value bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in[uid] = value
}

func (w *world) is(in map[types.UID]bool, uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return in[uid]
}

// deletes counts the pods whose last DELETE was sent.
func (w *world) deletes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.deleted)
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// populate makes what every cluster has, and some pods.
func (w *world) populate() {
	w.cloud.put("nodes", &corev1.Node{ObjectMeta: meta("", node), Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24"}})
	w.cloud.put("namespaces", &corev1.Namespace{ObjectMeta: meta("", shop)})
	w.cloud.put("csinodes", &storagev1.CSINode{ObjectMeta: meta("", node)})
	w.cloud.put("csidrivers", &storagev1.CSIDriver{ObjectMeta: meta("", "disk.example.com")})
	w.cloud.put("runtimeclasses", &nodev1.RuntimeClass{ObjectMeta: meta("", "runc"), Handler: "runc"})
	w.cloud.put("serviceaccounts", &corev1.ServiceAccount{ObjectMeta: meta(shop, account)})
	w.changeRootCA()
	w.large = w.cloud.keys.number%4 == 3
	for i := range 3 {
		w.changeService(i)
		w.changeNamed(key{"secrets", shop, fmt.Sprint("s", i)})
		w.changeNamed(key{"configmaps", shop, fmt.Sprint("c", i)})
	}
	w.cloud.put("pods", w.newPod("agent", node, true))
	for i := range 3 {
		w.cloud.put("pods", w.newPod(fmt.Sprint("p", i), node, false))
	}
	if w.large {
		for i := range 500 {
			service := &corev1.Service{ObjectMeta: meta(shop, fmt.Sprint("large", i)), Spec: corev1.ServiceSpec{
				ClusterIP: fmt.Sprintf("10.97.%d.%d", i/250, i%250+1)}}
			service.Annotations = map[string]string{"text": strings.Repeat("0123456789", 1000)}
			w.cloud.put("services", service)
		}
	}
}

// changeRootCA changes a ConfigMap that the agent's pod needs.
func (w *world) changeRootCA() {
	w.cloud.put("configmaps", &corev1.ConfigMap{ObjectMeta: meta(shop, "kube-root-ca.crt"),
		Data: map[string]string{"ca.crt": string(w.cloud.keys.caPEM), "changed": fmt.Sprint(w.random.Uint64())}})
}

func (w *world) changeService(number int) {
	address := fmt.Sprintf("10.96.0.%d", 10+number)
	w.cloud.put("services", &corev1.Service{ObjectMeta: meta(shop, fmt.Sprint("svc", number)),
		Spec: corev1.ServiceSpec{ClusterIP: address, ClusterIPs: []string{address},
			Ports: []corev1.ServicePort{{Port: int32(80 + w.random.IntN(9))}}}})
}

// changeNamed makes or changes a Secret or a ConfigMap, which may lack the key that containers name.
func (w *world) changeNamed(k key) {
	data := map[string]string{"other": fmt.Sprint(w.random.Uint64())}
	if w.chance(85) {
		data["k"] = fmt.Sprint(w.random.Uint64())
	}
	if k.resource == "configmaps" {
		w.cloud.put(k.resource, &corev1.ConfigMap{ObjectMeta: meta(k.namespace, k.name), Data: data})
		return
	}
	encoded := map[string][]byte{}
	for name, value := range data {
		encoded[name] = []byte(value)
	}
	w.cloud.put(k.resource, &corev1.Secret{ObjectMeta: meta(k.namespace, k.name), Data: encoded})
}

// newPod makes a pod that names some Secrets and ConfigMaps, which may not exist.
func (w *world) newPod(name, on string, token bool) *corev1.Pod {
	secret, config := fmt.Sprint("s", w.random.IntN(4)), fmt.Sprint("c", w.random.IntN(4))
	container := corev1.Container{Name: "c", Image: "i"}
	pod := &corev1.Pod{ObjectMeta: meta(shop, name), Spec: corev1.PodSpec{NodeName: on,
		AutomountServiceAccountToken: ptr.To(false), RestartPolicy: corev1.RestartPolicyAlways}}
	add := func(source corev1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", len(pod.Spec.Volumes)),
			VolumeSource: source})
	}
	optional := ptr.To(w.chance(50))
	if w.chance(50) {
		add(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret, Optional: optional}})
	}
	if w.chance(50) {
		add(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: config}, Optional: optional}})
	}
	if w.chance(40) {
		container.Env = []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: fmt.Sprint("s", w.random.IntN(4))}, Key: "k",
			Optional: ptr.To(w.chance(50))}}}}
	}
	if w.chance(30) {
		container.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: config}, Optional: optional}}}
	}
	if token {
		pod.Spec.ServiceAccountName = account
		add(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
				ExpirationSeconds: ptr.To[int64](3607)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}}}}})
	}
	pod.Spec.Containers = []corev1.Container{container}
	return pod
}
