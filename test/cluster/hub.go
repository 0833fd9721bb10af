package cluster

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	hubName = "application-grid-hub"
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

// startHub registers the hub's API and starts it beside kube-apiserver.
func (c *Cluster) startHub(ctx context.Context) error {
	err := c.credentials.issue(hubName, &x509.Certificate{
		Subject: pkix.Name{CommonName: hubName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{hubName + ".kube-system.svc"},
	})
	if err != nil {
		return fmt.Errorf("issuing the hub's certificate: %w", err)
	}
	if err := c.registerHub(ctx); err != nil {
		return err
	}
	kubeconfig, err := c.credentials.writeKubeconfig("hub.kubeconfig", RoleHub, "https://"+local(c.ports.apiserver))
	if err != nil {
		return err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.hub),
		"--tls-cert-file=" + c.credentials.file(hubName+".crt"), "--tls-private-key-file=" + c.credentials.file(hubName+".key"),
	}
	if c.options.AuditLog {
		args = append(args, "--audit-policy-file="+c.auditPolicyFile(), "--audit-log-path="+c.HubAuditLogFile())
	}
	c.Hub = c.program(hubName, c.options.Hub, c.thread, c.hubReady, args...)
	return c.startStep(ctx, c.Hub)
}

// hubReady asks for the hub's API through kube-apiserver, which finds out at its own pace that the hub is there.
func (c *Cluster) hubReady(ctx context.Context) error {
	_, err := c.client.Discovery().RESTClient().Get().AbsPath("/apis/hub.superedge.io/v1alpha1").DoRaw(ctx)
	return err
}

// registerHub creates the Service of the hub, which leads to the control plane's loopback, and the APIService.
func (c *Cluster) registerHub(ctx context.Context) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: hubName}}
	service.Spec.Type, service.Spec.ExternalName = corev1.ServiceTypeExternalName, "localhost"
	err := poll(ctx, func(ctx context.Context) error {
		_, err := c.client.CoreV1().Services("kube-system").Create(ctx, service, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("creating the hub's Service: %w", err)
	}
	registered, err := json.Marshal(map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1alpha1.hub.superedge.io"},
		"spec": map[string]any{
			"group": "hub.superedge.io", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
			"service":  map[string]any{"namespace": "kube-system", "name": hubName, "port": c.ports.hub},
			"caBundle": base64.StdEncoding.EncodeToString(c.credentials.caPEM),
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

// HubAuditLogFile is where the hub writes its audit log if Options.AuditLog is set.
func (c *Cluster) HubAuditLogFile() string { return filepath.Join(c.dir, "hub-audit.log") }

func (c *Cluster) auditPolicyFile() string { return filepath.Join(c.dir, "audit-policy.yaml") }

// writeAuditPolicy writes the policy of all audit logs.
func (c *Cluster) writeAuditPolicy() error {
	if err := os.WriteFile(c.auditPolicyFile(), []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}
	return nil
}
