package lite

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
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

// TestCertificateThatIsReplaced in its file, while the clock is behind: the kubelet is answered with it.
func TestCertificateThatIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	file := f.issue(f.authority, node0.CommonName, nodesGroup)
	f.writeKubeconfig(file)
	f.start()
	begins := time.Now().Add(time.Hour)
	f.must(os.WriteFile(file, f.authority.IssueClient(t, node0, begins.Add(2*time.Hour)), 0o600))
	f.server.writeKubeletFiles(klog.Background()) // as it does from time to time
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
	var asked, held sync.WaitGroup
	var kept, refused atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer held.Wait()
	defer cancel()
	request := func() {
		url := "https://" + f.config.Address + "/api/v1/namespaces"
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		switch response.StatusCode {
		case http.StatusOK:
			kept.Add(1)
		case http.StatusTooManyRequests:
			refused.Add(1)
		}
		held.Go(func() {
			<-ctx.Done()
			_ = response.Body.Close()
		})
	}
	request() // without a connection the client would make one for each request, and their keys take tens of MiB
	before := liveheap.Size()
	for range requests {
		asked.Go(request)
	}
	answered := make(chan struct{})
	go func() {
		asked.Wait()
		close(answered)
	}()
	peak := 0
	for all := false; !all; {
		select {
		case <-answered:
			all = true
		case <-time.After(100 * time.Millisecond):
		}
		peak = max(peak, liveheap.Size()-before)
	}
	t.Logf("of %d requests for a list of 1 MiB %d are answered, and take %d MiB", requests, kept.Load(), peak>>20)
	if peak > most || kept.Load() < 2 || refused.Load() != requests+1-kept.Load() {
		t.Errorf("%d requests of one account take %d MiB; %d are refused", requests, peak>>20, refused.Load())
	}
}

// TestSlowReaderIsCutOff: an account whose answer takes all that there is for answers, and who reads nothing of it,
// does not keep other accounts from theirs.
func TestSlowReaderIsCutOff(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.prepare = func(s *Server) { s.writeTimeout = time.Second }
	f.cloud.lists["/api/v1/namespaces"] = list("NamespaceList", "v1", corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop", ResourceVersion: "1", Annotations: map[string]string{"a": strings.Repeat("x", answersBytes)}}})
	f.start()
	f.readAll()
	f.away()
	config := f.withToken(f.tokenOf(dnsName))
	transport, err := rest.TransportFor(config)
	f.must(err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+"/api/v1/namespaces", nil)
	f.must(err)
	slow, err := transport.RoundTrip(r)
	f.must(err)
	defer slow.Body.Close()
	const node = "/api/v1/nodes/node0"
	if code, body := f.ask(f.tokenOf("shop/till"), node); code != http.StatusTooManyRequests {
		t.Errorf("at first it is answered %d %s", code, body)
	}
	patience.Until(t, "another account is answered", func() error {
		if code, body := f.ask(f.tokenOf("shop/till"), node); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	// A watch may be silent for longer.
	began := time.Now()
	code, body, err := f.get(config, "/api/v1/services?watch=true&timeoutSeconds=3")
	if took := time.Since(began); err != nil || code != http.StatusOK || took < 3*time.Second {
		t.Errorf("after %s a watch ends: %d %s, %v", took, code, body, err)
	}
}

// TestGatewayWithoutAServer: a gateway before kube-apiserver loses it, and answers everything with 404, or with a page
// of its own. The kubelet soon gets what is kept, and after a reboot at once.
func TestGatewayWithoutAServer(t *testing.T) {
	says := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, page := range map[string]http.HandlerFunc{
		"404": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "default backend - 404", http.StatusNotFound)
		},
		"404 in Go": http.NotFound,
		"a page": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprint(w, "<html><body>We are down for maintenance.</body></html>")
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://login.example.com/", http.StatusFound)
		},
		"JSON":            says(http.StatusOK, `{"error":"x"}`),
		"404 in JSON":     says(http.StatusNotFound, `{"error":"x"}`),
		"an empty object": says(http.StatusOK, `{"kind":"List","apiVersion":"v1","items":null}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			lost, lose := context.WithCancel(t.Context())
			inner := f.cloud.Config.Handler
			f.cloud.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if lost.Err() != nil {
					page(w, r)
					return
				}
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				defer context.AfterFunc(lost, cancel)() // watches end, and the connection of the gateway stays
				inner.ServeHTTP(w, r.WithContext(ctx))
			})
			f.start()
			f.followed()
			lose()
			client := f.clientFor(f.kubelet())
			patience.Until(t, "the kubelet gets what is kept", func() error {
				_, notFound := client.CoreV1().Secrets("shop").Get(t.Context(), "password", metav1.GetOptions{})
				pods, err := f.podsOfNode0(client)
				if err == nil && len(pods) != 1 || apierrors.IsNotFound(err) || apierrors.IsNotFound(notFound) {
					t.Fatalf("the kubelet gets %d pods, %v, and of a Secret %v", len(pods), err, notFound)
				}
				return errors.Join(err, notFound)
			})
			f.stop()
			f.start()
			if pods, err := f.podsOfNode0(f.clientFor(f.kubelet())); err != nil || len(pods) != 1 {
				t.Errorf("after a reboot the kubelet gets %d pods, %v", len(pods), err)
			}
		})
	}
}

// TestAnswersOfAnAPIServer: what kube-apiserver 1.37 answers reaches the kubelet as it is, and does not make it away,
// be it no object in JSON.
func TestAnswersOfAnAPIServer(t *testing.T) {
	t.Parallel()
	const text = "text/plain; charset=utf-8"
	f := newFixture(t)
	inner := f.cloud.Config.Handler
	type answer struct {
		code       int
		media      string
		body, path string
	}
	answers := map[string]answer{}
	for _, a := range []answer{
		{200, text, "ok", "/healthz"},
		{200, "text/plain; version=0.0.4; charset=utf-8", "# HELP a_total [ALPHA] A.", "/metrics"},
		{200, text, `{"paths":{}}`, "/openapi/v3"},
		{200, "application/com.github.proto-openapi.spec.v2.v1.0+protobuf", "\n\x032.0", "/openapi/v2"},
		{304, "", "", "/openapi/v3/api/v1"},
		{404, text, "404 page not found\n", "/apis/x.example/v1/y"},
		{200, "application/vnd.kubernetes.protobuf", "k8s\x00\n\r\n\x02v1\x12\aPodList", "/api/v1/pods"},
		{200, "application/vnd.kubernetes.protobuf;stream=watch", "", "/api/v1/secrets"},
		{200, "application/cbor", "\xd9\xd9\xf7\xa0", "/api/v1/configmaps"},
		{200, text, "a line of a log\n", "/api/v1/namespaces/a/pods/b/log"},
		{200, "text/html; charset=utf-8", "<html>", "/debug/pprof/"},
		{200, "text/html; charset=utf-8", "<html>", "/api/v1/namespaces/a/services/b/proxy/"},
		{302, "text/html; charset=utf-8", "<a>", "/api/v1/namespaces/a/pods/b/proxy/"},
		{401, "application/json", `{"kind":"Status"}`, "/api/v1/nodes"},
		{403, "application/json", `{"kind":"Status"}`, "/api/v1/namespaces"},
		{429, text, "Too many requests, please try again later.", "/api/v1/events"},
		{503, text, "error trying to reach service", "/api/v1/namespaces/a/services/c/proxy/"},
	} {
		answers[a.path] = a
	}
	const upgrade = "/api/v1/namespaces/a/pods/b/portforward"
	f.cloud.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := answers[r.URL.Path]
		switch {
		case r.URL.Path == upgrade:
			connection, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			_, _ = io.WriteString(connection, "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
			_ = connection.Close()
		case ok && r.Header.Get("User-Agent") == t.Name():
			w.Header().Set("Content-Type", a.media)
			w.WriteHeader(a.code)
			_, _ = io.WriteString(w, a.body)
		default:
			inner.ServeHTTP(w, r)
		}
	})
	f.start()
	f.followed()
	for path, want := range answers {
		code, body, err := f.get(f.kubelet(), path, "User-Agent", t.Name())
		if err != nil || code != want.code || body != want.body {
			t.Errorf("%s: %d %q, %v", path, code, body, err)
		}
		before := f.server.link.AwayUntil()
		f.server.link.ProbeOnce(t.Context())
		if before != nil || f.server.link.AwayUntil() != nil {
			t.Errorf("%s: it is away", path)
		}
	}
	config := f.kubelet()
	config.NextProtos = []string{"http/1.1"}
	code, _, err := f.get(config, upgrade, "Connection", "Upgrade", "Upgrade", "SPDY/3.1")
	if err != nil || code != http.StatusSwitchingProtocols || f.server.link.AwayUntil() != nil {
		t.Errorf("an upgrade: %d, %v", code, err)
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
	patience.Until(t, "the whole state is on the disk", func() error {
		f.server.updateExplanation()
		if state, _ := store.Read(dir, nil); len(state) == 0 {
			return fmt.Errorf("nothing is on the disk, and it says %q, %v", f.server.explained.Load().Summary(),
				f.report().Details)
		}
		return nil
	})
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

// TestWatchOverHTTP1 of an account lasts longer than an answer may take to be read, and the connection is used again.
func TestWatchOverHTTP1(t *testing.T) {
	t.Parallel()
	f := newAccountsFixture(t)
	f.prepare = func(s *Server) { s.writeTimeout = time.Second }
	f.start()
	f.readAll()
	f.away()
	config := f.withToken(f.tokenOf(dnsName))
	config.NextProtos = []string{"http/1.1"}
	for range 2 {
		began := time.Now()
		code, body, err := f.get(config, "/api/v1/services?watch=true&timeoutSeconds=3")
		if took := time.Since(began); err != nil || code != http.StatusOK || took < 3*time.Second {
			t.Errorf("after %s a watch ends: %d %s, %v", took, code, body, err)
		}
		if code, body, err := f.get(config, "/api/v1/services"); err != nil || code != http.StatusOK {
			t.Errorf("a list after it: %d %s, %v", code, body, err)
		}
	}
}
