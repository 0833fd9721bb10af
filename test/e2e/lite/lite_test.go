package lite

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	node    = "n1"
	shop    = "shop"
	wrapper = "application-grid-wrapper"
)

// site is a node without a kubelet: the test is the kubelet, and starts what its pods would be.
type site struct {
	suite.Test
	ctx    context.Context
	client kubernetes.Interface
	// dir has lite-apiserver's state, and what the pods have.
	dir string
	// port, health, dns and wrapper are ports of the loopback.
	port, health, dns, wrapper int
}

func newSite(t *testing.T) *site {
	t.Helper()
	c := suite.Start(t, controlPlane)
	s := &site{
		Test: suite.Test{T: t, Cluster: c, Patience: patience},
		ctx:  t.Context(), client: c.Client(), dir: t.TempDir(),
		port: suite.FreePort(t), health: suite.FreePort(t), dns: suite.FreePort(t), wrapper: suite.FreePort(t),
	}
	s.populate()
	return s
}

// populate makes the node, a Service, and ServiceAccounts with a pod each: CoreDNS' own rights, flannel's, and those of
// a guest, who may read what CoreDNS reads.
func (s *site) populate() {
	s.Helper()
	s.apply(`
{apiVersion: v1, kind: Node, metadata: {name: ` + node + `}, spec: {podCIDR: 10.244.1.0/24}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: ` + shop + `}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: flannel}, rules: [
  {apiGroups: [""], resources: [pods], verbs: [get]}, {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]},
  {apiGroups: [""], resources: [nodes/status], verbs: [patch]}]}`)
	s.Must(s.Cluster.CreateCSINode(s.ctx, node))
	for name, role := range map[string]string{"coredns": "coredns", "flannel": "flannel", "guest": "coredns"} {
		s.apply(fmt.Sprintf(`
{apiVersion: v1, kind: ServiceAccount, metadata: {name: %[1]s, namespace: %[3]s}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %[3]s-%[1]s},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[2]s},
 subjects: [{kind: ServiceAccount, namespace: %[3]s, name: %[1]s}]}`, name, role, shop))
		s.createPod(shop, name)
	}
	s.createPod(metav1.NamespaceSystem, wrapper)
	s.createService("till")
}

// apply applies a manifest.
func (s *site) apply(manifest string) {
	s.Helper()
	command := s.Kubectl(s.ctx, "apply", "-f", "-")
	command.Stdin = strings.NewReader(manifest)
	_, err := suite.Output(command)
	s.Must(err)
}

func (s *site) createPod(namespace, account string) {
	s.Helper()
	s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: %[2]s},
 spec: {nodeName: %[3]s, serviceAccountName: %[1]s, hostNetwork: true, containers: [{name: c, image: none}]}}`,
		account, namespace, node))
}

func (s *site) createService(name string) {
	s.Helper()
	s.apply(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {ports: [{port: 80}]}}`,
		name, shop))
}

// run starts a program, and returns what takes its power.
func (s *site) run(name, program string, args ...string) (kill func()) {
	s.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	s.Must(err)
	command := exec.CommandContext(context.WithoutCancel(s.ctx), program, args...)
	command.Stdout, command.Stderr = log, log
	s.Must(command.Start())
	ended := false
	kill = func() {
		if !ended {
			ended = true
			_ = command.Process.Kill() // it may have ended by itself
			_ = command.Wait()         // killed
			_ = log.Close()            // it was written by the process
		}
	}
	s.Cleanup(func() {
		kill()
		if content, err := os.ReadFile(log.Name()); err == nil && s.Failed() {
			s.Logf("%s:\n%s", name, content[max(0, len(content)-8000):])
		}
	})
	return kill
}

// startLite starts lite-apiserver, as at a boot.
func (s *site) startLite(kubeconfig string) (kill func()) {
	s.Helper()
	kill = s.run("lite-apiserver", suite.Binary(s, "lite-apiserver"), "--kubeconfig="+kubeconfig,
		"--file-cache-path="+s.dir, "--unsealed", fmt.Sprintf("--port=%d", s.port),
		fmt.Sprintf("--health-bind-address=127.0.0.1:%d", s.health),
		"--allow-service-accounts=shop/coredns,shop/flannel,kube-system/"+wrapper)
	s.Eventually("lite-apiserver is ready", func() error { return s.healthy(s.health, "/readyz") })
	return kill
}

// healthy reports what a page says, unless it is 200 with all the parts.
func (s *site) healthy(port int, path string, parts ...string) error {
	return healthy(s.ctx, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), parts...)
}

func healthy(ctx context.Context, url string, parts ...string) error {
	reply, err := cluster.Get(ctx, new(net.Dialer).DialContext, url)
	if err != nil {
		return err
	}
	missing := func(part string) bool { return !strings.Contains(reply.Body, part) }
	if reply.Status != http.StatusOK || slices.ContainsFunc(parts, missing) {
		return fmt.Errorf("%d: it says %s", reply.Status, reply.Body)
	}
	return nil
}

// token gets a pod's token as the kubelet does, from lite-apiserver with the node's certificate.
func (s *site) token(namespace, account string) string {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(s.dir, "kubelet.conf"))
	s.Must(err)
	client, err := kubernetes.NewForConfig(config)
	s.Must(err)
	pods, err := client.CoreV1().Pods("").List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	s.Must(err)
	seconds := int64(3607)
	for _, pod := range pods.Items {
		if pod.Namespace != namespace || pod.Name != account {
			continue
		}
		granted, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(s.ctx, account,
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds,
				BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
					UID: pod.UID}}}, metav1.CreateOptions{})
		s.Must(err)
		return granted.Status.Token
	}
	s.Fatalf("there is no pod %s/%s", namespace, account)
	return ""
}

func (s *site) config(token string) *rest.Config {
	return &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(s.dir, "ca.crt")}}
}

// kubeconfig writes one that leads to lite-apiserver, with the token in a file.
func (s *site) kubeconfig(account, token string) string {
	s.Helper()
	tokenFile := filepath.Join(s.dir, account+".token")
	s.Must(os.WriteFile(tokenFile, []byte(token), 0o600))
	config := clientcmdapi.NewConfig()
	config.Clusters["lite"] = &clientcmdapi.Cluster{Server: s.config("").Host,
		CertificateAuthority: filepath.Join(s.dir, "ca.crt")}
	config.AuthInfos[account] = &clientcmdapi.AuthInfo{TokenFile: tokenFile}
	config.Contexts["lite"] = &clientcmdapi.Context{Cluster: "lite", AuthInfo: account}
	config.CurrentContext = "lite"
	path := filepath.Join(s.dir, account+".kubeconfig")
	s.Must(clientcmd.WriteToFile(*config, path))
	return path
}

// startCoreDNS starts CoreDNS, as its pod would.
func (s *site) startCoreDNS() (kill func()) {
	s.Helper()
	corefile := filepath.Join(s.dir, "Corefile")
	s.Must(os.WriteFile(corefile, fmt.Appendf(nil, ".:%d {\n bind 127.0.0.1\n errors\n kubernetes cluster.local {\n"+
		"  kubeconfig %s\n ttl 0\n }\n}\n", s.dns, s.kubeconfig("coredns", s.token(shop, "coredns"))), 0o600))
	return s.run("coredns", suite.Binary(s, "components"), "coredns", "--conf="+corefile)
}

// resolves asks CoreDNS for a Service.
func (s *site) resolves(service string) error {
	client := &dns.Client{Timeout: time.Second}
	answer, _, err := client.Exchange(new(dns.Msg).SetQuestion(service+"."+shop+".svc.cluster.local.", dns.TypeA),
		fmt.Sprintf("127.0.0.1:%d", s.dns))
	if err == nil && (answer.Rcode != dns.RcodeSuccess || len(answer.Answer) == 0) {
		err = fmt.Errorf("CoreDNS answers %s", dns.RcodeToString[answer.Rcode])
	}
	return err
}

// startWrapper starts the wrapper, without anything from before.
func (s *site) startWrapper() (kill func()) {
	s.Helper()
	return s.run(wrapper, suite.Binary(s, wrapper), "--hostname="+node, "--state-dir=",
		fmt.Sprintf("--bind-address=127.0.0.1:%d", s.wrapper),
		"--kubeconfig="+s.kubeconfig(wrapper, s.token(metav1.NamespaceSystem, wrapper)))
}

// flannel does what flannel does at its start: it gets its pod and its Node, and lists and watches all Nodes, in JSON.
func (s *site) flannel(token string) error {
	client, err := kubernetes.NewForConfig(s.config(token))
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Pods(shop).Get(s.ctx, "flannel", metav1.GetOptions{}); err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Nodes()
	synced := informer.Informer().HasSynced
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return fmt.Errorf("the informer of Nodes does not sync")
	}
	if got, err := informer.Lister().Get(node); err != nil || got.Spec.PodCIDR == "" {
		return fmt.Errorf("the informer has %v, %w", got, err)
	}
	return nil
}

// code asks for a path, and returns the code of the answer.
func (s *site) code(token, path string) int {
	s.Helper()
	pem, err := os.ReadFile(filepath.Join(s.dir, "ca.crt"))
	s.Must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	r, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.config("").Host+path, nil)
	s.Must(err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(r)
	s.Must(err)
	s.Must(response.Body.Close())
	return response.StatusCode
}

// TestClientsAlone: power and link fail together. CoreDNS, a client like flannel, and a wrapper without a snapshot
// start through lite-apiserver with their tokens, and go on when the link is back. Nobody else is answered.
func TestClientsAlone(t *testing.T) {
	s := newSite(t)
	kubeconfig, err := s.Cluster.KubeletKubeconfig(node, s.Cluster.RESTConfig().Host)
	s.Must(err)
	killLite := s.startLite(kubeconfig)
	killDNS, killWrapper := s.startCoreDNS(), s.startWrapper()
	s.Eventually("CoreDNS answers", func() error { return s.resolves("till") })
	s.Eventually("the wrapper is ready", func() error { return s.healthy(s.wrapper, "/readyz") })
	s.Must(s.flannel(s.token(shop, "flannel")))
	const slices = "/apis/discovery.k8s.io/v1/endpointslices"
	if code := s.code(s.token(shop, "guest"), slices); code != http.StatusOK {
		t.Fatalf("the guest is answered %d with the link", code)
	}
	s.Eventually("all is kept", func() error {
		// CoreDNS reads Services, EndpointSlices and Namespaces; flannel a pod, a Node, and all Nodes.
		for _, kind := range []string{"services, list by shop/coredns", "endpointslices, list by shop/coredns",
			"namespaces, list by shop/coredns", "pods, get by shop/flannel", "nodes, get by shop/flannel",
			"nodes, list by shop/flannel", "services, list by kube-system/" + wrapper} {
			if !s.storeHas(kind) {
				return fmt.Errorf("%s is not kept", kind)
			}
		}
		return nil
	})
	time.Sleep(2 * time.Second) // the promise is for what was recorded 2 s before

	s.Cluster.APIServer.Kill()
	for _, kill := range []func(){killLite, killDNS, killWrapper} {
		kill()
	}
	begin := time.Now()
	s.startLite(kubeconfig)
	s.startCoreDNS()
	s.startWrapper()
	s.Eventually("CoreDNS answers without the cloud", func() error { return s.resolves("till") })
	s.Logf("CoreDNS answers %.1f s after the power is back", time.Since(begin).Seconds())
	flannel := s.token(shop, "flannel")
	s.Must(s.flannel(flannel))
	s.Eventually("the wrapper answers without the cloud", func() error {
		return s.healthy(s.wrapper, "/api/v1/services", `"till"`)
	})
	dnsToken := s.token(shop, "coredns")
	for what, asked := range map[string]struct{ token, path string }{
		"the guest":                    {s.token(shop, "guest"), slices},
		"CoreDNS, what flannel reads":  {dnsToken, "/api/v1/nodes"},
		"flannel, what CoreDNS reads":  {flannel, slices},
		"CoreDNS, the kubelet's pods":  {dnsToken, "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node},
		"CoreDNS, with a changed end":  {dnsToken[:len(dnsToken)-8] + "AAAAAAAA", slices},
		"a token that kubectl may use": {s.Cluster.Token(cluster.RoleAdmin), slices},
	} {
		if code := s.code(asked.token, asked.path); code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", what, code)
		}
	}
	if code := s.code("", slices); code != http.StatusUnauthorized {
		t.Errorf("nobody: %d", code)
	}
	if code := s.code(dnsToken, slices); code != http.StatusOK {
		t.Errorf("CoreDNS: %d", code)
	}

	s.Must(s.Cluster.APIServer.Start(s.ctx))
	s.createService("later")
	took := s.Eventually("CoreDNS goes on with the cloud", func() error { return s.resolves("later") })
	s.Logf("CoreDNS knows a new Service %.1f s after the API server has it", took.Seconds())
	s.Eventually("the wrapper goes on with the cloud", func() error {
		return s.healthy(s.wrapper, "/api/v1/services", `"later"`)
	})
	s.Must(s.flannel(s.token(shop, "flannel")))
}

// storeHas reports whether a kind of an account is on the disk, which is not sealed here.
func (s *site) storeHas(kind string) bool {
	state, _ := store.Read(filepath.Join(s.dir, "store"), nil) // a file may have been removed meanwhile
	for key := range state {
		if strings.Contains(key, kind) {
			return true
		}
	}
	return false
}
