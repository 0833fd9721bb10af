package lite

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/pkg/program/store"
)

// TestAbsentOptionalSecret: a pod starts without its optional Secret, also with a kubelet that gets each Secret
// (configMapAndSecretChangeDetectionStrategy Cache or Get), as kube-apiserver has said that the Secret does not exist.
func TestAbsentOptionalSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	pod := podOf("shop/till", "u1")
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: "extra", Optional: ptr.To(true)}}})
	f.cloud.lists["/api/v1/pods"] = list("PodList", "v1", pod)
	f.cloud.lists["/api/v1/namespaces/shop/secrets"] = list("SecretList", "v1")
	f.start()
	in := objectScope(secrets, "shop", "extra")
	patience.Until(t, "it is known that the Secret does not exist", func() error {
		if _, objects, ok := f.server.store.readScope(in); !ok || len(objects) > 0 {
			return fmt.Errorf("%v", objects)
		}
		return nil
	})
	f.rebootWithoutTheCloud()
	explained := f.server.updateExplanation()
	_, err := f.clientFor(f.kubelet()).CoreV1().Secrets("shop").Get(t.Context(), "extra", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("explain says %+v, and the kubelet is answered %v, with which it does not start the pod",
			explained.Pods, err)
	}
}

// TestKeysThatContainersName: a container does not start if its ConfigMap or Secret exists without the key that the
// container's environment names (pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables).
func TestKeysThatContainersName(t *testing.T) {
	t.Parallel()
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "c", ResourceVersion: "2"}
	s := kept(objects{
		objectScope(configMaps, "shop", "c"): &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"b": "1"}},
		objectScope(secrets, "shop", "c"):    &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"b": {1}}},
	})
	ref := corev1.LocalObjectReference{Name: "c"}
	for name, change := range map[string]func(*corev1.PodSpec){
		"the environment": func(spec *corev1.PodSpec) {
			spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{
				ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: "a"}}}}
		},
		"a volume": func(spec *corev1.PodSpec) {
			spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				Secret: &corev1.SecretVolumeSource{SecretName: "c", Items: []corev1.KeyToPath{{Key: "a", Path: "a"}}}}}}
		},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "till"},
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ImageID: "sha256:1"}}}}
		change(&pod.Spec)
		if missing := missingOf(s, pod); len(missing) == 0 {
			t.Errorf("%s names a key that is not there, and the pod is said to start", name)
		}
	}
}

// TestServerWithAPath: what accounts read is kept also where kube-apiserver is behind a path.
func TestServerWithAPath(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	const prefix = "/k8s/clusters/c-1"
	inner := f.cloud.Config.Handler
	f.cloud.Config.Handler = http.StripPrefix(prefix, inner)
	config, err := clientcmd.LoadFromFile(f.config.Kubeconfig)
	f.must(err)
	config.Clusters["c"].Server += prefix
	f.must(clientcmd.WriteToFile(*config, f.config.Kubeconfig))
	f.start()
	patience.Until(t, "CoreDNS' Namespaces are kept", func() error {
		if code, body := f.ask(f.tokenOf(dnsName), "/api/v1/namespaces"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		f.server.store.mu.Lock()
		defer f.server.store.mu.Unlock()
		for in := range f.server.store.sets {
			if in.kind.account == dnsName {
				return nil
			}
		}
		return fmt.Errorf("nothing is kept for it")
	})
}

// TestCertificateOfTheLastMinutes: kube-apiserver answered, the kubelet got a new certificate, and the power failed
// before the next contact was on the disk. The clock is lost. The kubelet is answered.
func TestCertificateOfTheLastMinutes(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.setLastContact(time.Now()) // which is 10 minutes before the power failed
	f.stop()
	f.cloud.end()
	truth := time.Now().Add(9 * time.Minute)
	begins := truth.Add(-5 * time.Minute) // kube-controller-manager dates them back
	f.writeKubeconfig(f.issueUntil(f.authority, node0, begins.Add(2*time.Hour)))
	f.start()
	if pods, err := f.podsOfNode0(f.clientFor(f.kubelet())); err != nil || len(pods) != 1 {
		t.Errorf("got %v, %v", pods, err)
	}
}

// TestSlowReadersOfAnAccount: a holder of an account's token, who lists again and again and reads nothing of the
// answers, takes no more memory than the unit's MemoryMax allows.
func TestSlowReadersOfAnAccount(t *testing.T) {
	const requests, most = 250, 64 << 20
	f := newAccountsFixture(t)
	noise := make([]byte, 768<<10)
	_, _ = rand.Read(noise)
	f.cloud.lists["/api/v1/namespaces"] = list("NamespaceList", "v1", corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", ResourceVersion: "1", Annotations: map[string]string{
			"a": base64.StdEncoding.EncodeToString(noise)}}})
	f.start()
	f.readAll()
	f.away()
	token := f.tokenOf(dnsName)
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(f.config.Dir, trustFile))
	f.must(err)
	pool.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		// The client is in this process too, and keeps little of the answers.
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream: 64 << 10},
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	var held sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	request := func() {
		url := "https://" + f.config.Address + "/api/v1/namespaces"
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(r)
		if err != nil {
			return
		}
		held.Go(func() {
			<-ctx.Done()
			_ = response.Body.Close()
		})
	}
	request() // without a connection the client would make one for each request, and their keys take tens of MiB
	before := liveheap.Size()
	for range requests {
		held.Go(request)
	}
	peak := 0
	for range 20 {
		time.Sleep(100 * time.Millisecond)
		peak = max(peak, liveheap.Size()-before)
	}
	cancel()
	held.Wait()
	t.Logf("%d requests for a list of 1 MiB take %d MiB", requests, peak>>20)
	if peak > most {
		t.Errorf("%d requests of one account take %d MiB", requests, peak>>20)
	}
}

// TestGatewayWithoutAServer: something in kube-apiserver's place answers everything with 404, or with a page of its
// own. The kubelet gets what is kept.
func TestGatewayWithoutAServer(t *testing.T) {
	for name, page := range map[string]http.HandlerFunc{
		"404": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "default backend - 404", http.StatusNotFound)
		},
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, "<html><body>We are down for maintenance.</body></html>")
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://login.example.com/", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			var mu sync.Mutex
			gateway := false
			inner := f.cloud.Config.Handler
			f.cloud.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				down := gateway
				mu.Unlock()
				if down {
					page(w, r)
					return
				}
				inner.ServeHTTP(w, r)
			})
			f.start()
			f.followed()
			mu.Lock()
			gateway = true
			mu.Unlock()
			f.cloud.CloseClientConnections()
			f.stop()
			f.start()
			time.Sleep(3 * time.Second)
			pods, err := f.podsOfNode0(f.clientFor(f.kubelet()))
			if err != nil || len(pods) != 1 {
				t.Errorf("the kubelet gets %d pods, %v", len(pods), err)
			}
		})
	}
}

// TestDirectoryGoesInAnOutage: somebody removes the directory of the store while kube-apiserver is away. What is called
// safe is on the disk soon.
func TestDirectoryGoesInAnOutage(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.away()
	dir := filepath.Join(f.config.Dir, storeDir)
	f.must(os.RemoveAll(dir))
	time.Sleep(5 * time.Second)
	f.server.updateExplanation()
	if state, _ := store.Read(dir, nil); len(state) == 0 {
		t.Errorf("nothing is on the disk, and it says %q, %v", f.server.explained.Load().Summary(),
			f.report().Details)
	}
}

// TestUnit: callers on this machine are told apart by their users, which the kernel says over netlink.
func TestUnit(t *testing.T) {
	unit, err := os.ReadFile("../../manifests/systemd/lite-apiserver.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		families, ok := strings.CutPrefix(line, "RestrictAddressFamilies=")
		if ok && !strings.Contains(families, "AF_NETLINK") {
			t.Errorf("the unit allows %s", families)
		}
	}
}
