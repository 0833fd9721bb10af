package cluster

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/transport"

	"github.com/application-grid/application-grid/internal/testkit/freeport"
)

const (
	hubName = "application-grid-hub"
	// hubSecret is where the hub keeps its certificate.
	hubSecret = hubName + "-tls"
	// frontProxy is the name of the certificate by which an aggregated API server knows kube-apiserver.
	frontProxy = "front-proxy-client"
)

// aggregationArgs let kube-apiserver hand requests on to aggregated API servers, with who asked.
func (c *Cluster) aggregationArgs() ([]string, error) {
	err := c.credentials.issue(frontProxy, &x509.Certificate{
		Subject: pkix.Name{CommonName: frontProxy}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return nil, fmt.Errorf("issuing the aggregator's certificate: %w", err)
	}
	return []string{
		"--requestheader-client-ca-file=" + c.credentials.file("ca.crt"),
		"--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.credentials.file(frontProxy+".crt"),
		"--proxy-client-key-file=" + c.credentials.file(frontProxy+".key"),
	}, nil
}

// HubReplica is one replica of the hub.
type HubReplica struct {
	*Component

	// Interposer stands between the replica and kube-apiserver. It is nil without Options.HubInterposed.
	Interposer *Interposer
	port       int
	get        func(ctx context.Context, path string) (*Reply, error)
}

// StartHub registers the hub's API and starts the replicas beside kube-apiserver. With Options.HubLater it is to be
// called once, otherwise Start has done it.
func (c *Cluster) StartHub(ctx context.Context) error {
	if err := c.registerHub(ctx); err != nil {
		return err
	}
	for i := range c.options.HubReplicas {
		replica, err := c.newHubReplica(ctx, i)
		if err != nil {
			return err
		}
		c.Hubs = append(c.Hubs, replica)
	}
	if err := c.startHubFront(ctx); err != nil {
		return err
	}
	if err := concurrently(c.Hubs, func(r *HubReplica) error { return c.startStep(ctx, r.Component) }); err != nil {
		return err
	}
	return c.step("hub's API", func() error { return c.AwaitHub(ctx) })
}

// newHubReplica makes a replica; nothing is started yet.
func (c *Cluster) newHubReplica(ctx context.Context, number int) (*HubReplica, error) {
	r := &HubReplica{port: c.ports.hub + 1 + number}
	server := "https://" + local(c.ports.apiserver)
	var err error
	if c.options.APIViewOnly {
		if r.port, err = freeport.Find(ctx); err != nil {
			return nil, err
		}
	}
	if c.options.HubInterposed {
		if r.Interposer, err = c.Interpose(ctx); err != nil {
			return nil, err
		}
		server = r.Interposer.URL()
	}
	name := fmt.Sprintf("%s-%d", hubName, number)
	kubeconfig, err := c.credentials.writeKubeconfig(name+".kubeconfig", RoleHub, server)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" +
			kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", r.port),
		"--service=kube-system/" + hubName, "--tls-secret=kube-system/" + hubSecret,
		"--allow-unbound-tokens", // wrappers have a static token
	}
	if c.options.AuditLog {
		args = append(args, "--audit-policy-file="+c.auditPolicyFile(), "--audit-log-path="+c.HubAuditLogFile(number))
	}
	url := "https://" + local(r.port)
	client := c.freshClient(c.tlsConfig(false))
	r.Component = c.program(name, c.options.Hub, c.thread,
		func(ctx context.Context) error { return expectOK(ctx, client, url+"/readyz") }, args...)
	admin := c.freshClient(c.tlsConfig(false))
	admin.Transport = transport.NewBearerAuthRoundTripper(c.Token(RoleAdmin), admin.Transport)
	r.get = func(ctx context.Context, path string) (*Reply, error) { return get(ctx, admin, url+path) }
	return r, nil
}

// Metric is a metric of the replica.
func (r *HubReplica) Metric(ctx context.Context, name string) (float64, error) {
	reply, err := r.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	value, _ := Metric(reply.Body, name)
	return value, nil
}

// HubFront hands the connections of kube-apiserver to any of the replicas that run, as kube-proxy does in a cluster.
type HubFront struct {
	relay *Relay
	delay atomic.Int64
}

// SetDelay says how much longer every byte takes, in each direction.
func (f *HubFront) SetDelay(delay time.Duration) { f.delay.Store(int64(delay)) }

func (c *Cluster) startHubFront(ctx context.Context) error {
	listener, err := c.thread.Listen(ctx, local(c.ports.hub))
	if err != nil {
		return fmt.Errorf("listening before the hub: %w", err)
	}
	f := &HubFront{}
	delayed := delayingListener{listener, func() time.Duration { return time.Duration(f.delay.Load()) }}
	f.relay = relayFrom(ctx, delayed, func(ctx context.Context) (net.Conn, error) {
		var conn net.Conn
		err := errors.New("no replica of the hub runs")
		for _, i := range rand.Perm(len(c.Hubs)) { //nolint:gosec // as kube-proxy picks one
			if conn, err = c.dial(ctx, "tcp", local(c.Hubs[i].port)); err == nil {
				break
			}
		}
		return conn, err
	})
	c.HubFront = f
	return nil
}

// AwaitHub waits for the hub's API through kube-apiserver, which finds out at its own pace that the hub is there.
func (c *Cluster) AwaitHub(ctx context.Context) error {
	return c.poll(ctx, func(ctx context.Context) error {
		_, err := c.client.Discovery().RESTClient().Get().AbsPath("/apis/hub.superedge.io/v1alpha1").DoRaw(ctx)
		return err
	})
}

// registerHub creates the Service of the hub, which leads to the control plane's loopback, the Secret, and the
// APIService, whose caBundle the hub writes.
func (c *Cluster) registerHub(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: hubName}}
	service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "localhost"
	err := c.poll(ctx, func(ctx context.Context) error {
		_, err := c.client.CoreV1().Services("kube-system").Create(ctx, service, metav1.CreateOptions{})
		return unlessThere(err)
	})
	if err != nil {
		return fmt.Errorf("creating the hub's Service: %w", err)
	}
	if err := c.createHubSlice(ctx); err != nil {
		return err
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: hubSecret}}
	if _, err := c.client.CoreV1().Secrets("kube-system").Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the hub's Secret: %w", err)
	}
	registered, err := json.Marshal(map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1alpha1.hub.superedge.io"},
		"spec": map[string]any{
			"group": "hub.superedge.io", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
			"service": map[string]any{"namespace": "kube-system", "name": hubName, "port": c.ports.hub},
		},
	})
	if err != nil {
		return fmt.Errorf("encoding the APIService: %w", err)
	}
	_, err = c.client.Discovery().RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").
		SetHeader("Content-Type", "application/json").Body(registered).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("creating the APIService: %w", err)
	}
	return nil
}

// createHubSlice lists the replicas as endpoints of the hub's Service, by which they know how many they are.
func (c *Cluster) createHubSlice(ctx context.Context) error {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: hubName,
			Labels: map[string]string{discoveryv1.LabelServiceName: hubName}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range c.options.HubReplicas {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("192.0.2.%d", i+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "kube-system", Name: hubName,
				UID: types.UID(strconv.Itoa(i))},
		})
	}
	_, err := c.client.DiscoveryV1().EndpointSlices("kube-system").Create(ctx, slice, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the hub's EndpointSlice: %w", err)
	}
	return nil
}

// HubAuditLogFile is where a replica of the hub writes its audit log if Options.AuditLog is set.
func (c *Cluster) HubAuditLogFile(number int) string {
	return filepath.Join(c.dir, fmt.Sprintf("hub-%d-audit.log", number))
}

func (c *Cluster) auditPolicyFile() string { return filepath.Join(c.dir, "audit-policy.yaml") }

// writeAuditPolicy writes the policy of all audit logs.
func (c *Cluster) writeAuditPolicy() error {
	if err := os.WriteFile(c.auditPolicyFile(), []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}
	return nil
}
