package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	heartbeat "sigs.k8s.io/kwok/kustomize/stage/node/heartbeat-with-lease"
	podstage "sigs.k8s.io/kwok/kustomize/stage/pod/fast"

	"github.com/application-grid/application-grid/internal/testkit/freeport"
)

const (
	serviceCIDR  = "10.96.0.0/16"
	serviceCIDR6 = "fd00:10:96::/112"
	// kubernetesServiceIP is the address that kube-apiserver gives to the Service default/kubernetes.
	kubernetesServiceIP = "10.96.0.1"
	// KwokAnnotation marks the nodes that kwok takes care of, with the value "fake".
	KwokAnnotation = "kwok.x-k8s.io/node"

	auditPolicy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"
)

// controlPlanePorts are the ports of the control plane. In a namespace of its own these are constants, on the
// host's loopback whatever is free.
type controlPlanePorts struct {
	etcd, etcdPeer, apiserver, controllerManager, scheduler, kwok, hub int
}

var namespacePorts = controlPlanePorts{
	etcd: 2379, etcdPeer: 2380, apiserver: 6443, controllerManager: 10257, scheduler: 10259, kwok: 10247, hub: 8443,
}

// freePorts finds free loopback ports.
func freePorts(ctx context.Context) (controlPlanePorts, error) {
	var ports controlPlanePorts
	for _, port := range []*int{
		&ports.etcd, &ports.etcdPeer, &ports.apiserver, &ports.controllerManager, &ports.scheduler, &ports.kwok,
		&ports.hub,
	} {
		var err error
		if *port, err = freeport.Find(ctx); err != nil {
			return ports, err
		}
	}
	return ports, nil
}

// local is host:port on the loopback of the control plane.
func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

// startControlPlane starts everything that is not on a node and waits until pods can be created.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if err := c.grantRoles(ctx); err != nil {
		return err
	}
	if err := c.startControllers(ctx); err != nil {
		return err
	}
	if c.options.Hub != "" && !c.options.HubLater {
		if err := c.StartHub(ctx); err != nil {
			return err
		}
	}
	return c.step("default service account", func() error {
		// Without it kube-apiserver refuses every pod.
		return c.poll(ctx, func(ctx context.Context) error {
			_, err := c.client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
			return err
		})
	})
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	clientURL, peerURL := "http://"+local(c.ports.etcd), "http://"+local(c.ports.etcdPeer)
	c.Etcd = c.component("etcd", c.thread, c.httpReady(clientURL+"/readyz"),
		"--name=default", "--data-dir="+c.etcdDir(),
		"--listen-client-urls="+clientURL, "--advertise-client-urls="+clientURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=default="+peerURL,
		"--unsafe-no-fsync", // the data need not survive the machine
		"--log-level=warn",
	)
	return c.startStep(ctx, c.Etcd)
}

func (c *Cluster) startAPIServer(ctx context.Context) error {
	args := []string{
		"--etcd-servers=http://" + local(c.ports.etcd),
		fmt.Sprintf("--secure-port=%d", c.ports.apiserver),
		"--cert-dir=" + c.credentials.dir,
		"--tls-cert-file=" + c.credentials.file("apiserver.crt"),
		"--tls-private-key-file=" + c.credentials.file("apiserver.key"),
		"--token-auth-file=" + c.credentials.file("tokens.csv"),
		"--authorization-mode=RBAC",
		"--allow-privileged=true", // as kubeadm has it; its kube-proxy is
		// As some distributions have it: who names an owner that waits must be allowed to make it wait.
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.credentials.file("service-account.key"),
		"--service-account-signing-key-file=" + c.credentials.file("service-account.key"),
		"--service-cluster-ip-range=" + strings.Join(c.families(serviceCIDR, serviceCIDR6), ","),
	}
	if c.options.Kubelets {
		args = append(args, "--client-ca-file="+c.credentials.file("ca.crt"), "--authorization-mode=Node",
			"--enable-admission-plugins=NodeRestriction") // beside those above
	}
	if c.options.APIViewOnly {
		// The Service default/kubernetes cannot have a loopback address as its endpoint.
		args = append(args, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
			"--endpoint-reconciler-type=none")
	} else {
		args = append(args, "--bind-address=0.0.0.0", "--advertise-address="+bridgeAddress,
			"--endpoint-reconciler-type=lease")
	}
	if c.options.AuditLog {
		if err := c.writeAuditPolicy(); err != nil {
			return err
		}
		args = append(args, "--audit-policy-file="+c.auditPolicyFile(), "--audit-log-path="+c.AuditLogFile())
	}
	if c.options.Hub != "" {
		aggregation, err := c.aggregationArgs()
		if err != nil {
			return err
		}
		args = append(args, aggregation...)
	}
	c.APIServer = c.component("kube-apiserver", c.thread, c.apiServerReady, args...)
	return c.startStep(ctx, c.APIServer)
}

// apiServerReady asks with a connection of its own: a pooled one may be to the process before a restart.
func (c *Cluster) apiServerReady(ctx context.Context) error {
	return c.httpsReady(c.ports.apiserver)(ctx)
}

// startControllers starts what only needs kube-apiserver, all at once.
func (c *Cluster) startControllers(ctx context.Context) error {
	adminConfig := c.credentials.file(controlPlaneKubeconfig)
	c.ControllerManager = c.component("kube-controller-manager", c.thread, c.httpsReady(c.ports.controllerManager),
		append([]string{
			"--kubeconfig=" + adminConfig, "--bind-address=127.0.0.1",
			fmt.Sprintf("--secure-port=%d", c.ports.controllerManager),
			"--leader-elect=false", "--allocate-node-cidrs=false", "--cluster-cidr=" + podNetwork,
			"--root-ca-file=" + c.credentials.file("ca.crt"),
			"--cluster-signing-cert-file=" + c.credentials.file("ca.crt"),
			"--cluster-signing-key-file=" + c.credentials.file("ca.key"),
			"--service-account-private-key-file=" + c.credentials.file("service-account.key"),
			"--cert-dir=" + c.credentials.dir,
		}, c.options.ControllerManagerArgs...)...)
	components := []*Component{c.ControllerManager}
	if !c.options.NoScheduler {
		config, err := c.credentials.writeKubeconfig("kube-scheduler.kubeconfig", RoleScheduler,
			"https://"+local(c.ports.apiserver))
		if err != nil {
			return err
		}
		c.Scheduler = c.component("kube-scheduler", c.thread, c.httpsReady(c.ports.scheduler),
			"--kubeconfig="+config, "--authentication-kubeconfig="+adminConfig,
			"--authorization-kubeconfig="+adminConfig,
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.scheduler),
			"--leader-elect=false", "--cert-dir="+c.credentials.dir,
		)
		components = append(components, c.Scheduler)
	}
	if !c.options.NoKwok {
		stages := filepath.Join(c.dir, "kwok-stages.yaml")
		content := strings.Join([]string{
			// Not kwok's stage that initialises nodes: whoever creates a Node writes its status, and kwok would
			// sometimes be faster and take the addresses away, for which kube-proxy waits 30 s.
			heartbeat.DefaultNodeHeartbeatWithLease,
			podstage.DefaultPodReady, podstage.DefaultPodComplete, podstage.DefaultPodDelete,
		}, "\n---\n")
		if err := os.WriteFile(stages, []byte(content), 0o600); err != nil {
			return fmt.Errorf("writing kwok's stages: %w", err)
		}
		c.Kwok = c.component("kwok", c.thread, c.httpReady("http://"+local(c.ports.kwok)+"/healthz"),
			"--kubeconfig="+adminConfig, "--config="+stages,
			"--manage-nodes-with-annotation-selector="+KwokAnnotation+"=fake",
			"--node-lease-duration-seconds=40", "--cidr="+podNetwork,
			"--server-address="+local(c.ports.kwok),
		)
		components = append(components, c.Kwok)
	}
	return concurrently(components, func(component *Component) error { return c.startStep(ctx, component) })
}

// httpReady asks an URL inside the cluster's namespace for status 200.
func (c *Cluster) httpReady(url string) func(context.Context) error {
	client := c.freshClient(nil)
	return func(ctx context.Context) error { return expectOK(ctx, client, url) }
}

// httpsReady asks /healthz (kube-apiserver: /readyz) of a component that serves TLS on the control plane's loopback.
func (c *Cluster) httpsReady(port int) func(context.Context) error {
	client := c.freshClient(c.tlsConfig(port == c.ports.apiserver))
	path := "/healthz"
	if port == c.ports.apiserver {
		path = "/readyz"
	}
	url := "https://" + local(port) + path
	return func(ctx context.Context) error { return expectOK(ctx, client, url) }
}

func expectOK(ctx context.Context, client *http.Client, url string) error {
	reply, err := get(ctx, client, url)
	if err != nil {
		return err
	}
	if reply.Status != http.StatusOK {
		return fmt.Errorf("GET %s: status %d: %s", url, reply.Status, firstLines(reply.Body, 400))
	}
	return nil
}

// AuditLogFile is where kube-apiserver writes its audit log if Options.AuditLog is set.
func (c *Cluster) AuditLogFile() string { return filepath.Join(c.dir, "audit.log") }

// RotateServingCertificate gives kube-apiserver a new serving certificate of the same authority. It picks the
// files up within a minute, or at once with a restart.
func (c *Cluster) RotateServingCertificate() error {
	if err := c.credentials.issueServingCertificate(); err != nil {
		return fmt.Errorf("issuing a new serving certificate: %w", err)
	}
	return nil
}
