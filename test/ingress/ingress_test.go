package ingress

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	siteLabel = "zone1"
	siteA     = "site-a"
	siteB     = "site-b"
	// account is that of the controller, and listen where it listens on its node.
	account = "traefik"
	listen  = "127.0.0.1:8000"
	// deadline is how long a change may take to get to the controller, its longest backoffs included.
	deadline = 2 * time.Minute
	// tries is how many requests a look makes: with four pods by turns each answers ten of them.
	tries = 40
)

// shared is the cluster of all tests.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	site := func(name string) map[string]string { return map[string]string{siteLabel: name} }
	suite.Suite{
		Name: "ingress", Cluster: &shared, Programs: []string{"application-grid-wrapper"},
		Options: cluster.Options{WrapperTLS: true, Nodes: []cluster.NodeSpec{
			{Name: "a1", Labels: site(siteA)}, {Name: "a2", Labels: site(siteA)},
			{Name: "b1", Labels: site(siteB)}, {Name: "b2", Labels: site(siteB)},
		}},
	}.Main(m)
}

// fixture is an edge node with Ingresses for a Service of its site, /site, and for an ordinary one, /open.
type fixture struct {
	*testing.T
	node *cluster.Node
	// dir has the certificate authority's file and the token's.
	dir        string
	controller *exec.Cmd
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	node, err := shared.Node("a1")
	suite.Must(t, err)
	f := &fixture{T: t, node: node, dir: t.TempDir()}
	_, err = node.Run(t.Context(), suite.Binary(t, "components"), "kubectl", "--kubeconfig="+shared.Kubeconfig(),
		"--server="+node.APIServerURL(), "apply", "--server-side", "-f", "role.yaml")
	suite.Must(t, err)
	client := shared.Client()
	token, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	suite.Must(t, err)
	suite.Must(t, os.WriteFile(f.file("token"), []byte(token.Status.Token), 0o600))
	suite.Must(t, os.WriteFile(f.file("ca.crt"), node.WrapperConfig(cluster.RoleNobody).CAData, 0o600))

	namespace := suite.Namespace(t, shared, "ingress-")
	var paths []networkingv1.HTTPIngressPath
	for name, keys := range map[string][]string{"site": {siteLabel}, "open": nil} {
		suite.Must(t, workload.In(client, namespace).CreateDaemonSet(t.Context(), name))
		_, err := workload.In(client, namespace).CreateService(t.Context(), name,
			workload.ServiceOptions{TopologyKeys: keys})
		suite.Must(t, err)
		paths = append(paths, networkingv1.HTTPIngressPath{
			Path: "/" + name, PathType: new(networkingv1.PathTypePrefix),
			Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
				Name: name, Port: networkingv1.ServiceBackendPort{Number: workload.Port}}},
		})
	}
	_, err = client.NetworkingV1().Ingresses(namespace).Create(t.Context(), &networkingv1.Ingress{
		ObjectMeta: metav1.ObjectMeta{Name: "both"},
		Spec: networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{IngressRuleValue: networkingv1.IngressRuleValue{
			HTTP: &networkingv1.HTTPIngressRuleValue{Paths: paths}}}}},
	}, metav1.CreateOptions{})
	suite.Must(t, err)
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) file(name string) string { return filepath.Join(f.dir, name) }

// start starts the controller on the node, with its service account, at an API server.
func (f *fixture) start(url string) {
	f.Helper()
	f.controller = exec.Command(suite.Binary(f, "traefik"), listen, url, f.file("ca.crt"), f.file("token"))
	log, err := os.Create(filepath.Join(shared.Dir(), "traefik.log"))
	suite.Must(f.T, err)
	defer log.Close() // the controller has its own descriptor
	f.controller.Stdout, f.controller.Stderr = log, log
	suite.Must(f.T, f.node.Start(f.controller))
}

func (f *fixture) stop() {
	if f.controller != nil {
		_ = f.controller.Process.Kill() // it has nothing to do at its end
		_ = f.controller.Wait()
	}
	f.controller = nil
}

// reaches waits until requests to the controller for a path are answered by pods on exactly these nodes.
func (f *fixture) reaches(what, path, want string) {
	f.Helper()
	begin := time.Now()
	await.Patience{Within: deadline, Between: 10 * time.Millisecond}.Until(f.T, what, func() error {
		var nodes []string
		for range tries {
			answer, err := workload.Ask(f.Context(), f.node, "http://"+listen+path)
			if err != nil {
				return err
			}
			nodes = append(nodes, answer.Node)
		}
		slices.Sort(nodes)
		if got := strings.Join(slices.Compact(nodes), " "); got != want {
			return fmt.Errorf("want %s, got %s", want, got)
		}
		return nil
	})
	f.Logf("%-60s %6d ms", what, time.Since(begin).Milliseconds())
}

func (f *fixture) relabel(site string) {
	f.Helper()
	suite.Must(f.T, shared.RelabelNode(f.Context(), "b1", siteLabel, site))
}

// TestIngress: what comes in at a site through the controller stays there, and follows a node that is relabelled.
func TestIngress(t *testing.T) {
	f := newFixture(t)
	f.start(f.node.APIServerURL())
	f.reaches("at kube-apiserver: all sites", "/site", "a1 a2 b1 b2")
	f.stop()

	f.start(f.node.WrapperURL())
	f.reaches("at the wrapper: the own site", "/site", "a1 a2")
	f.reaches("a Service that is not site-local", "/open", "a1 a2 b1 b2")
	f.relabel(siteA)
	f.reaches("a node joins the site", "/site", "a1 a2 b1")
	f.relabel(siteB)
	f.reaches("it leaves", "/site", "a1 a2")

	suite.Must(t, f.node.Wrapper.Restart(t.Context()))
	f.relabel(siteA)
	f.reaches("a node joins after the wrapper was restarted", "/site", "a1 a2 b1")

	suite.Must(t, f.node.CutLink(t.Context()))
	f.relabel(siteB)
	f.reaches("while the link is cut: the site of before", "/site", "a1 a2 b1")
	suite.Must(t, f.node.RestoreLink(t.Context()))
	f.reaches("the link is back", "/site", "a1 a2")
}
