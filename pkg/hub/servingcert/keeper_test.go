package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

const name = "hub.kube-system.svc"

// world is an API server with the Secret and the APIService, and a clock.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	now     time.Time
}

func newWorld(t *testing.T, data map[string][]byte) *world {
	t.Helper()
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.hub"},
		"spec": map[string]any{"group": "hub"},
	}}
	kinds := map[schema.GroupVersionResource]string{apiServices: "APIServiceList"}
	return &world{
		t: t,
		client: fake.NewClientset(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "tls"}, Data: data,
		}),
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, service),
		now:     time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

func (w *world) keeper() *Keeper { return w.keeperAt(func() time.Time { return w.now }) }

func (w *world) keeperAt(now func() time.Time) *Keeper {
	return &Keeper{client: w.client, dynamic: w.dynamic, now: now, options: Options{
		Secret: types.NamespacedName{Namespace: "kube-system", Name: "tls"}, FieldManager: "hub", APIService: "v1.hub",
		Names: []string{name},
	}}
}

func (w *world) look(k *Keeper) {
	w.t.Helper()
	if err := k.advance(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) bundle() []byte {
	w.t.Helper()
	bundle, err := w.keeper().readBundle(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return bundle
}

// verify says whether who trusts the bundle connects to who serves what the Keeper has.
func (w *world) verify(bundle []byte, k *Keeper) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	certificate, _ := k.CurrentCertKeyContent()
	parsed, err := cert.ParseCertsPEM(certificate)
	if err != nil {
		return err
	}
	_, err = parsed[0].Verify(x509.VerifyOptions{DNSName: name, Roots: roots, CurrentTime: w.now})
	return err
}

// listener counts certificates.
type listener struct{ heard int }

func (l *listener) Enqueue() { l.heard++ }

// TestRotation: over 130 days, with replicas that look at times of their own and an API server that hears of the bundle
// minutes later, what is served is trusted.
func TestRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	replicas := []*Keeper{w.keeper(), w.keeper()}
	heard := &listener{}
	replicas[0].AddListener(heard)
	w.look(replicas[0])
	w.look(replicas[1])
	if first, _ := replicas[0].CurrentCertKeyContent(); first == nil {
		t.Fatal("there is no certificate")
	} else if second, _ := replicas[1].CurrentCertKeyContent(); !bytes.Equal(first, second) {
		t.Error("the replicas have certificates of their own")
	}
	believed := []([]byte){w.bundle()} // minute by minute
	const late = 4
	served := map[string]bool{}
	for minute := range 130 * 24 * 60 {
		// Far from a renewal nothing happens, which is not looked at minute by minute.
		w.now = w.now.Add(time.Minute)
		if day := minute / (24 * 60); day%60 > 0 && day%60 < 59 && minute%600 != 0 {
			continue
		}
		w.look(replicas[minute%2])
		believed = append(believed, w.bundle())
		if len(believed) > late {
			believed = believed[1:]
		}
		for i, k := range replicas {
			if err := w.verify(believed[0], k); err != nil {
				t.Fatalf("%s: replica %d: %v", w.now, i, err)
			}
		}
		certificate, _ := replicas[0].CurrentCertKeyContent()
		served[string(certificate)] = true
	}
	if len(served) != 3 {
		t.Errorf("%d certificates were served", len(served))
	}
	if heard.heard != len(served) {
		t.Errorf("a listener heard of %d certificates of %d", heard.heard, len(served))
	}
	writes := 0
	for _, action := range w.client.Actions() {
		if action.GetVerb() != "get" {
			writes++
		}
	}
	if writes > 3*len(served) {
		t.Errorf("the Secret was written %d times", writes)
	}
	trusted, err := cert.ParseCertsPEM(w.bundle())
	if err != nil || len(trusted) > 3 {
		t.Errorf("%d certificates are trusted: %v", len(trusted), err)
	}
	for _, c := range trusted {
		if w.now.After(c.NotAfter) {
			t.Errorf("a certificate is trusted that was valid until %s", c.NotAfter)
		}
	}
}

// TestAWrongClock: a replica whose own clock is a hundred days off takes the time of the API server, so the replicas do
// not replace each other's certificates. While it does not know that time they do, and the bundle does not grow.
func TestAWrongClock(t *testing.T) {
	t.Parallel()
	const looks = 60
	for _, answered := range []bool{true, false} {
		w := newWorld(t, nil)
		server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
			response.Header().Set("Date", w.now.Format(http.TimeFormat))
		}))
		t.Cleanup(server.Close)
		var replicas []*Keeper
		for _, off := range []time.Duration{0, 100 * 24 * time.Hour} {
			c := &clock{own: func() time.Time { return w.now.Add(off) }}
			if answered {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := c.wrap(http.DefaultTransport).RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
			}
			replicas = append(replicas, w.keeperAt(c.now))
		}
		served := make(map[string]bool)
		for range looks {
			w.now = w.now.Add(time.Minute)
			for _, replica := range replicas {
				w.look(replica)
				certificate, _ := replica.CurrentCertKeyContent()
				served[string(certificate)] = true
			}
			if n := bytes.Count(w.bundle(), []byte("BEGIN CERTIFICATE")); n > maxOthers+2 {
				t.Fatalf("answered %t: %d certificates are trusted", answered, n)
			}
		}
		if answered && len(served) != 1 {
			t.Errorf("%d certificates were made", len(served))
		}
		if !answered && len(served) < 2 {
			t.Error("a wrong clock that nobody corrects makes no difference, so this test shows nothing")
		}
	}
}

// TestBadSecret: what cannot be used is recreated.
func TestBadSecret(t *testing.T) {
	t.Parallel()
	other, err := newPair([]string{"another.svc"}, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	expired, err := newPair([]string{name}, time.Date(2029, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	for what, data := range map[string]map[string][]byte{
		"garbage":        {keyCertificate: []byte("x"), keyPrivate: []byte("y")},
		"another's name": {keyCertificate: other.certificate, keyPrivate: other.key},
		"expired":        {keyCertificate: expired.certificate, keyPrivate: expired.key},
		"another's key":  {keyCertificate: expired.certificate, keyPrivate: other.key},
		"a next that is expired": {
			keyCertificate: expired.certificate, keyPrivate: expired.key, keyNextCertificate: expired.certificate,
			keyNextPrivate: expired.key,
		},
	} {
		w := newWorld(t, data)
		k := w.keeper()
		w.look(k)
		if err := w.verify(w.bundle(), k); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTheSecretIsDeleted: it is made again, by all replicas with the certificate that they serve, so that no connection
// notices.
func TestTheSecretIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	secrets := w.client.CoreV1().Secrets("kube-system")
	replicas := []*Keeper{w.keeper(), w.keeper()}
	w.look(replicas[0])
	w.look(replicas[1])
	certificate, _ := replicas[0].CurrentCertKeyContent()
	bundle := w.bundle()
	heard := &listener{}
	replicas[1].AddListener(heard)
	for _, lose := range []struct {
		what string
		do   func() error
	}{
		{"deleted", func() error { return secrets.Delete(t.Context(), "tls", metav1.DeleteOptions{}) }},
		{"emptied", func() error {
			secret, err := secrets.Get(t.Context(), "tls", metav1.GetOptions{})
			if err != nil {
				return err
			}
			secret.Data = nil
			_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
			return err
		}},
	} {
		if err := lose.do(); err != nil {
			t.Fatal(err)
		}
		w.look(replicas[1])
		w.look(replicas[0])
		secret, err := secrets.Get(t.Context(), "tls", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", lose.what, err)
		}
		if !bytes.Equal(secret.Data[keyCertificate], certificate) {
			t.Errorf("%s: the Secret has another certificate", lose.what)
		}
		for i, k := range replicas {
			if now, _ := k.CurrentCertKeyContent(); !bytes.Equal(now, certificate) {
				t.Errorf("%s: replica %d serves another certificate", lose.what, i)
			}
		}
		if !bytes.Equal(w.bundle(), bundle) || heard.heard > 0 {
			t.Errorf("%s: the API server trusts another bundle, or a listener heard of %d certificates", lose.what,
				heard.heard)
		}
	}
	// Who begins now serves the same one.
	late := w.keeper()
	w.look(late)
	if now, _ := late.CurrentCertKeyContent(); !bytes.Equal(now, certificate) {
		t.Error("a replica that begins now serves another certificate")
	}
}

// TestNoSecretMayBeKept: who cannot keep a certificate has none, and says why.
func TestNoSecretMayBeKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.client.PrependReactor("*", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "tls", nil)
	})
	k := w.keeper()
	if err := k.advance(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
	if certificate, key := k.CurrentCertKeyContent(); certificate != nil || key != nil {
		t.Error("there is a certificate")
	}
}

// TestRun: a caBundle that somebody has reset is back within seconds. In an outage the log has an error a minute, and
// one that comes in place of another is not missing.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		k := w.keeper()
		var mu sync.Mutex
		var logged []string // guarded by mu, as reason is
		reason := ""
		logger := funcr.New(func(_, line string) {
			mu.Lock()
			defer mu.Unlock()
			logged = append(logged, line)
		}, funcr.Options{})
		w.client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return reason != "", nil, errors.New(reason)
		})
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			k.Run(ctx, 1)
		}()
		defer func() {
			stop()
			<-ended
		}()
		synctest.Wait()
		want := w.bundle()
		if err := k.writeBundle(ctx, want, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(interval + time.Second)
		if !bytes.Equal(w.bundle(), want) || len(want) == 0 {
			t.Errorf("%d bytes of the caBundle are back", len(w.bundle()))
		}
		for _, why := range []string{"nobody listens", "it is forbidden"} {
			mu.Lock()
			reason, logged = why, nil
			mu.Unlock()
			time.Sleep(10 * time.Minute)
			mu.Lock()
			if said := strings.Join(logged, "\n"); !strings.Contains(said, why) || len(logged) > 11 {
				t.Errorf("%s: in 10 minutes the log has %d lines: %s", why, len(logged), said)
			}
			mu.Unlock()
		}
	})
}
