package servingcert

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Options configure a Keeper.
type Options struct {
	// Secret is the Secret in which the replicas keep the certificate. A Keeper makes it if it does not exist.
	Secret types.NamespacedName
	// FieldManager is the field manager of the Secret.
	FieldManager string
	// APIService is the name of the object whose caBundle is written.
	APIService string
	// Names are the DNS names of the certificate.
	Names []string
}

const (
	// interval is the pause between two checks: somebody may have reset the caBundle, or deleted the Secret.
	// retryInterval is the pause between two attempts to get the first certificate.
	interval      = 5 * time.Second
	retryInterval = 2 * time.Second
	// logInterval is the shortest time between two logged failures: an outage may take days, and its cause may change.
	logInterval = time.Minute
	// lookTimeout is how long a check may take.
	lookTimeout = 20 * time.Second
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// Keeper keeps a certificate. It implements dynamiccertificates.CertKeyContentProvider and ControllerRunner.
type Keeper struct {
	options Options
	client  kubernetes.Interface
	dynamic dynamic.Interface
	now     func() time.Time

	// current is the certificate that is served; nil before the first check.
	current atomic.Pointer[pair]

	mu sync.Mutex
	// listeners are notified of a new certificate. Guarded by mu.
	listeners []dynamiccertificates.Listener
}

// New makes a Keeper without a certificate, for the API server of config. It uses the time of that server's answers.
func New(config *rest.Config, options Options) (*Keeper, error) {
	c := &clock{own: time.Now}
	config = rest.CopyConfig(config)
	config.Wrap(c.wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the Secret %s: %w", options.Secret, err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for the APIService: %w", err)
	}
	return &Keeper{options: options, client: client, dynamic: objects, now: c.now}, nil
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (k *Keeper) Name() string { return "secret " + k.options.Secret.String() }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (k *Keeper) CurrentCertKeyContent() (certificate, key []byte) {
	current := k.current.Load()
	if current == nil {
		return nil, nil
	}
	return current.certificate, current.key
}

// AddListener implements dynamiccertificates.Notifier.
func (k *Keeper) AddListener(listener dynamiccertificates.Listener) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.listeners = append(k.listeners, listener)
}

// RunOnce implements dynamiccertificates.ControllerRunner: it returns when a certificate exists. The error is that of
// ctx.
func (k *Keeper) RunOnce(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, retryInterval, true, func(ctx context.Context) (bool, error) {
		err := k.advance(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot get a serving certificate yet")
		}
		return err == nil, nil
	})
}

// Run implements dynamiccertificates.ControllerRunner.
func (k *Keeper) Run(ctx context.Context, _ int) {
	var logged time.Time
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := k.advance(ctx)
		if err != nil && ctx.Err() == nil && time.Since(logged) >= logInterval {
			logged = time.Now()
			klog.FromContext(ctx).Error(err, "Cannot look after the serving certificate, trying again")
		}
	}, interval)
}

// advance advances the Secret and the APIService to the next state, and serves the Secret's certificate.
func (k *Keeper) advance(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	secrets := k.client.CoreV1().Secrets(k.options.Secret.Namespace)
	secret, err := secrets.Get(ctx, k.options.Secret.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// It is applied without data, so that several replicas may make it at the same time. An apply names the object,
		// so a role can permit it for this name alone.
		secret, err = secrets.Apply(ctx, applycorev1.Secret(k.options.Secret.Name, k.options.Secret.Namespace),
			metav1.ApplyOptions{FieldManager: k.options.FieldManager, Force: true})
	}
	if err != nil {
		return fmt.Errorf("reading the Secret %s: %w", k.options.Secret, err)
	}
	bundle, err := k.readBundle(ctx)
	if err != nil {
		return err
	}
	known := parseState(secret.Data, bundle)
	if known.current == nil {
		// An emptied Secret does not change the certificate that is served.
		known.current = k.current.Load()
	}
	next, err := known.advance(k.options.Names, k.now())
	if err != nil {
		return err
	}
	if err := k.writeSecret(ctx, secret, next); err != nil {
		return err
	}
	// A certificate that is not trusted is not served; only the first one needs no waiting time.
	if err := k.writeBundle(ctx, bundle, next.bundle); err != nil {
		return err
	}
	k.use(next.current)
	return nil
}

// writeSecret writes the Secret. If several replicas write at the same time, one succeeds, and the others check again.
func (k *Keeper) writeSecret(ctx context.Context, secret *corev1.Secret, next state) error {
	data := next.data()
	if maps.EqualFunc(secret.Data, data, bytes.Equal) {
		return nil
	}
	secret = secret.DeepCopy()
	secret.Data = data
	_, err := k.client.CoreV1().Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("writing the Secret %s: %w", k.options.Secret, err)
	}
	return nil
}

func (k *Keeper) readBundle(ctx context.Context) ([]byte, error) {
	o, err := k.dynamic.Resource(apiServices).Get(ctx, k.options.APIService, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the APIService %s: %w", k.options.APIService, err)
	}
	encoded, _, err := unstructured.NestedString(o.Object, "spec", "caBundle")
	if err != nil {
		return nil, fmt.Errorf("reading the caBundle of the APIService %s: %w", k.options.APIService, err)
	}
	return base64.StdEncoding.DecodeString(encoded)
}

// writeBundle writes the caBundle of the APIService, if it differs.
func (k *Keeper) writeBundle(ctx context.Context, before, after []byte) error {
	if bytes.Equal(before, after) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string][]byte{"caBundle": after}})
	if err != nil {
		return fmt.Errorf("encoding the caBundle: %w", err)
	}
	_, err = k.dynamic.Resource(apiServices).Patch(ctx, k.options.APIService, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("writing the caBundle of the APIService %s: %w", k.options.APIService, err)
	}
	return nil
}

// use starts to serve a certificate.
func (k *Keeper) use(p *pair) {
	if before := k.current.Swap(p); before != nil && bytes.Equal(before.certificate, p.certificate) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, listener := range k.listeners {
		listener.Enqueue()
	}
}
