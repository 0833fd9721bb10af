package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	deadline = 90 * time.Second
	// namespacePrefix is that of the tests' namespaces.
	namespacePrefix = "hub-"
)

// fixture is a namespace of the shared cluster with an echo pod on every node.
type fixture struct {
	suite.Test
	ctx       context.Context
	client    kubernetes.Interface
	namespace string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{Test: suite.NewTest(t, shared, deadline, 20*time.Millisecond), ctx: t.Context(),
		client: shared.Client(), namespace: suite.Namespace(t, shared, namespacePrefix)}
}

// service makes a Service of echo pods that are on every node.
func (f *fixture) service(name string, keys ...string) *corev1.Service {
	f.Helper()
	f.Must(workload.In(f.client, f.namespace).CreateDaemonSet(f.ctx, name))
	service, err := workload.In(f.client, f.namespace).CreateService(f.ctx, name,
		workload.ServiceOptions{TopologyKeys: keys})
	f.Must(err)
	return service
}

// siteLocal makes a Service that is governed, and waits until every node reaches its own site.
func (f *fixture) siteLocal() *corev1.Service {
	f.Helper()
	governed := f.service("governed", siteLabel)
	f.ExpectReach("the site-local Service", governed, siteLocal)
	return governed
}

var siteLocal = map[string]string{"a1": "a1 a2", "a2": "a1 a2", "b1": "b1"}

// TestSiteLocal: kube-proxies reach their own site through the share, and a node that moves reaches its new one.
func TestSiteLocal(t *testing.T) {
	f := newFixture(t)
	governed, free := f.service("governed", siteLabel), f.service("free")
	f.ExpectReach("the site-local Service", governed, siteLocal)
	f.ExpectReach("a Service that is not governed", free, map[string]string{"a1": "a1 a2 b1", "b1": "a1 a2 b1"})

	f.Cleanup(func() {
		if err := shared.RelabelNode(context.Background(), "b1", siteLabel, siteB); err != nil {
			f.Error(err)
		}
	})
	f.Must(shared.RelabelNode(f.ctx, "b1", siteLabel, siteA))
	f.ExpectReach("b1 moves to site a", governed,
		map[string]string{"a1": "a1 a2 b1", "a2": "a1 a2 b1", "b1": "a1 a2 b1"})
	f.Must(shared.RelabelNode(f.ctx, "b1", siteLabel, siteB))
	f.ExpectReach("b1 moves back", governed, siteLocal)
}

// TestTheDirectWayShowsTheSame: a wrapper shows kube-proxy, of all that it makes its rules of, the same through the hub
// and without it.
func TestTheDirectWayShowsTheSame(t *testing.T) {
	f := newFixture(t)
	governed, free, own := f.service("governed", siteLabel), f.service("free"), f.service("own",
		"kubernetes.io/hostname", siteLabel, "*")
	f.ExpectReach("the site-local Service", governed, siteLocal)
	f.ExpectReach("a Service that is not governed", free, map[string]string{"a1": "a1 a2 b1", "a2": "a1 a2 b1"})
	f.ExpectReach("a Service that prefers the own node", own, map[string]string{"a1": "a1", "a2": "a2"})
	for _, name := range []string{"a1", "a2"} {
		f.Step(name, func() {
			node, through := f.Node(name), ""
			f.Eventually("what it shows is of this test", func() error {
				through = f.shown(node)
				const key = `"namespace":"`
				all, own := strings.Count(through, key+namespacePrefix), strings.Count(through, key+f.namespace+`"`)
				if own == 0 || own < all {
					return fmt.Errorf("of %d objects %d are", all, own)
				}
				return nil
			})
			before := node.Wrapper.Args()
			defer func() {
				node.Wrapper.SetArgs(before)
				f.Must(node.Wrapper.Restart(f.ctx))
			}()
			node.Wrapper.SetArgs(slices.DeleteFunc(slices.Clone(before), func(arg string) bool { return arg == "--hub" }))
			f.Must(node.Wrapper.Restart(f.ctx))
			f.Eventually("it shows the same without the hub", suite.Is(through, func() string { return f.shown(node) }))
		})
	}
}

// shown are the Services and EndpointSlices that a wrapper shows, and the labels of its node, an object a line.
func (f *fixture) shown(node *cluster.Node) string {
	f.Helper()
	client, err := kubernetes.NewForConfig(node.WrapperConfig(cluster.RoleKubeProxy))
	f.Must(err)
	services, err := client.CoreV1().Services("").List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	endpoints, err := client.DiscoveryV1().EndpointSlices("").List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	own, err := client.CoreV1().Nodes().Get(f.ctx, node.Name(), metav1.GetOptions{})
	f.Must(err)
	lines := []string{fmt.Sprint(own.Labels)}
	add := func(object metav1.Object) {
		object.SetResourceVersion("") // the wrapper's own
		line, err := json.Marshal(object)
		f.Must(err)
		lines = append(lines, string(line))
	}
	for i := range services.Items {
		add(&services.Items[i])
	}
	for i := range endpoints.Items {
		add(&endpoints.Items[i])
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// boundToken is a token of the wrapper's ServiceAccount that is bound to a node.
func (f *fixture) boundToken(node string) string {
	f.Helper()
	object, err := f.client.CoreV1().Nodes().Get(f.ctx, node, metav1.GetOptions{})
	f.Must(err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node,
			UID: object.UID},
	}}
	request, err = f.client.CoreV1().ServiceAccounts("kube-system").CreateToken(f.ctx, "application-grid-wrapper",
		request, metav1.CreateOptions{})
	f.Must(err)
	return request.Status.Token
}

// shareClient asks kube-apiserver with a token.
func (f *fixture) shareClient(token string) rest.Interface {
	f.Helper()
	config := shared.RESTConfig()
	config.BearerToken, config.BearerTokenFile = token, ""
	config.UserAgent = "share-test"
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
	return client.Discovery().RESTClient()
}

// askShare asks for a node's share with a token, through kube-apiserver. path is what follows the name of the resource.
func (f *fixture) askShare(token, path string) ([]byte, error) {
	f.Helper()
	return f.shareClient(token).Get().RequestURI("/apis/hub.superedge.io/v1alpha1/shares" + path).DoRaw(f.ctx)
}

// TestNothingLeaks: a ServiceAccount token that is bound to a node gets that node's share and no other, and both API
// servers have that in their audit logs.
func TestNothingLeaks(t *testing.T) {
	f := newFixture(t)
	f.siteLocal()
	token := f.boundToken("a2")
	share, err := f.askShare(token, "/a2?kind=EndpointSlice&labelSelector=kubernetes.io/service-name%3Dgoverned")
	f.Must(err)
	for _, name := range []string{"a1", "a2", "b1"} {
		if has := strings.Contains(string(share), fmt.Sprintf(`"nodeName":"%s"`, name)); has != (name != "b1") {
			t.Errorf("the share of a2 has endpoints on %s: %t\n%s", name, has, share)
		}
	}
	for _, path := range []string{
		"/b1", "/b1?kind=Node", "?watch=true&fieldSelector=metadata.name%3Db1", "?watch=true", "", "/b1/status",
	} {
		if got, err := f.askShare(token, path); !apierrors.IsForbidden(err) {
			t.Errorf("%s with a2's token: %v %s", path, err, got)
		}
	}
	if got, err := f.askShare(shared.Token(cluster.RoleNobody), "/a2"); !apierrors.IsForbidden(err) {
		t.Errorf("somebody without the permission: %v %s", err, got)
	}
	// A Service of another test, which may be on its way out, may have endpoints on b1 for everybody.
	f.Eventually("the share of a2 does not name b1", func() error {
		got, err := f.askShare(token, "/a2?kind=Node")
		if strings.Contains(string(got), `"name":"b1"`) {
			return fmt.Errorf("got %s", got)
		}
		return err
	})
	refused := func(r cluster.Request) bool {
		return r.UserAgent == "share-test" && r.ObjectRef.Resource == "shares" && r.ObjectRef.Name == "b1" &&
			r.ResponseStatus.Code == http.StatusForbidden
	}
	expectAudited := func(what string, logs ...string) {
		f.Eventually("the refusals are in the log of "+what, func() error {
			found := 0
			for _, log := range logs {
				requests, err := cluster.AuditedIn(log, 0, refused)
				if err != nil {
					return err
				}
				found += len(requests)
			}
			if found < 3 {
				return fmt.Errorf("there are %d", found)
			}
			return nil
		})
	}
	expectAudited("kube-apiserver", shared.AuditLogFile())
	expectAudited("the hub", shared.HubAuditLogFile(0), shared.HubAuditLogFile(1))
}

// TestAWrapperWithABoundToken works with that of its node, and is told when it has another one's.
func TestAWrapperWithABoundToken(t *testing.T) {
	f := newFixture(t)
	node := f.Node("a2")
	f.Cleanup(func() {
		err := errors.Join(node.GiveWrapperToken(shared.Token(cluster.RoleWrapper)),
			node.Wrapper.Restart(context.Background()))
		if err != nil {
			f.Error(err)
		}
	})
	f.Must(node.GiveWrapperToken(f.boundToken("a2")))
	f.Must(node.Wrapper.Restart(f.ctx))
	governed := f.service("governed", siteLabel)
	f.ExpectReach("with a token that is bound to its node", governed, siteLocal)

	f.Must(node.GiveWrapperToken(f.boundToken("b1")))
	f.Must(node.Wrapper.Stop())
	f.Must(node.Wrapper.Launch())
	f.Eventually("the wrapper says that it is refused", func() error {
		reply, err := node.Get(f.ctx, node.WrapperURL()+"/readyz")
		if err == nil && !strings.Contains(reply.Body, `bound to the node "b1"`) {
			err = errors.New(reply.Body)
		}
		return err
	})
	// Its kube-proxy keeps the rules that it has.
	f.ExpectReach("with a token that is bound to another node", governed, siteLocal)
}

// takeRights leaves wrappers the rights that manifests/hub-require leaves them, until the test ends.
func (f *fixture) takeRights() {
	f.Helper()
	roles := f.client.RbacV1().ClusterRoles()
	before, err := roles.Get(f.ctx, "application-grid:wrapper", metav1.GetOptions{})
	f.Must(err)
	after := before.DeepCopy()
	// The patch of the component tests that these two rules are what it takes away.
	after.Rules = slices.Concat([]rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"endpoints"}, ResourceNames: []string{"kubernetes"},
		Verbs: []string{"list", "watch"},
	}, {
		APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"list", "watch"},
	}}, before.Rules[2:])
	_, err = roles.Update(f.ctx, after, metav1.UpdateOptions{})
	f.Must(err)
	f.Cleanup(func() {
		before.ResourceVersion = ""
		if _, err := roles.Update(context.Background(), before, metav1.UpdateOptions{}); err != nil {
			f.Error(err)
		}
	})
}

// TestAWrapperAsksForNothingElse: of what a hub has it takes nothing from kube-apiserver, and needs no right to.
func TestAWrapperAsksForNothingElse(t *testing.T) {
	f := newFixture(t)
	f.takeRights()
	node := f.Node("b1") // whose wrapper is never without --hub
	f.Must(node.Wrapper.Restart(f.ctx))
	governed := f.service("governed", siteLabel)
	f.ExpectReach("without a right to list what the cluster has", governed, map[string]string{"b1": "b1"})
	asked := map[string]int{}
	f.Eventually("b1's wrapper watches its share", func() error {
		clear(asked)
		requests, err := shared.Audited(0, func(r cluster.Request) bool {
			return strings.HasPrefix(r.UserAgent, "application-grid-wrapper") &&
				slices.Contains(r.SourceIPs, node.Address)
		})
		for _, r := range requests {
			resource := r.ObjectRef.Resource
			if r.ObjectRef.APIGroup == "hub.superedge.io" {
				resource = "share: " + resource
			}
			asked[resource]++
			if r.ResponseStatus.Code == http.StatusForbidden {
				t.Errorf("refused: %s", r)
			}
		}
		if err == nil && asked["share: shares"] == 0 {
			err = fmt.Errorf("%v", asked)
		}
		return err
	})
	t.Logf("requests of the wrapper: %v", asked)
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		if asked[resource] > 0 {
			t.Errorf("it asked kube-apiserver for %s %d times", resource, asked[resource])
		}
	}
}

// TestASiteComesBackAlone: wrappers that may list nothing of the cluster find their neighbours by the hub, and when the
// site has lost power and link, each node reaches the pods of both at their new addresses.
func TestASiteComesBackAlone(t *testing.T) {
	// A pod that was started again when others were ready already is shown after 10 s.
	const answersAgain, observed = 5 * time.Second, 12 * time.Second
	f := newFixture(t)
	f.takeRights()
	keys, err := cluster.WriteSiteKey(t.TempDir())
	f.Must(err)
	names := []string{"h1", "h2"}
	nodes := make([]*cluster.Node, len(names))
	for i, name := range names {
		nodes[i] = f.AddNode(cluster.NodeSpec{
			Name: name, Labels: map[string]string{siteLabel: "site-alone"}, ProxyMode: cluster.NFTables,
			Protocol: cluster.WatchList, Runtime: true, WrapperArgs: []string{
				"--state-write-delay=200ms", "--site-exchange=on", "--site-exchange-key-file=" + keys,
			},
		})
		f.Must(workload.In(f.client, f.namespace).CreatePod(f.ctx, "echo-"+name, "echo", name))
	}
	service, err := workload.In(f.client, f.namespace).CreateService(f.ctx, "echo",
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	f.Must(err)
	for _, node := range nodes {
		f.Must(workload.AwaitReach(f.ctx, node, service, "h1 h2", workload.Tries))
		f.Says(node, "/readyz", "site-exchange: ok, 1 of 1 neighbours take part")
	}
	f.Kept(time.Second, nodes...)

	for _, act := range []func(*cluster.Node) error{
		func(n *cluster.Node) error { return n.CutLink(f.ctx) },
		func(n *cluster.Node) error { return n.PowerOff(f.ctx) },
		func(n *cluster.Node) error { return n.PowerOn(f.ctx) },
		func(n *cluster.Node) error { return n.Wrapper.WaitReady(f.ctx) },
		func(n *cluster.Node) error { return n.KubeProxy.WaitReady(f.ctx) },
	} {
		for _, node := range nodes {
			f.Must(act(node))
		}
	}
	report, err := workload.SiteRecovers(f.ctx, nodes, workload.URL(service), answersAgain, observed)
	t.Logf("all processes are up:\n%s", report)
	if err != nil {
		t.Error(err)
	}
	for _, node := range nodes {
		f.Must(node.RestoreLink(f.ctx))
		f.Must(node.KubeletReports(f.ctx))
		f.Must(workload.AwaitReach(f.ctx, node, service, "h1 h2", workload.Tries))
	}
}

// TestPermissions: the hub is refused nothing, and uses all that its role permits.
func TestPermissions(t *testing.T) {
	f := newFixture(t)
	used := map[string]bool{}
	requests, err := shared.Audited(0, func(r cluster.Request) bool {
		return r.User.Username == string(cluster.RoleHub)
	})
	f.Must(err)
	for _, r := range requests {
		if r.ResponseStatus.Code == http.StatusForbidden || r.ResponseStatus.Code == http.StatusUnauthorized {
			t.Errorf("refused: %s", r)
		}
		used[r.Verb+" "+r.ObjectRef.Resource] = true
	}
	for _, resource := range []string{"nodes", "services", "endpointslices"} {
		if !used["list "+resource] || !used["watch "+resource] {
			t.Errorf("it does not follow %s: %v", resource, used)
		}
	}
	for _, use := range []string{"get secrets", "update secrets", "get apiservices", "patch apiservices"} {
		if !used[use] {
			t.Errorf("it does not %s for its certificate: %v", use, used)
		}
	}
}

// TestKubectlShowsAShare: to kubectl, a share is a list.
func TestKubectlShowsAShare(t *testing.T) {
	f := newFixture(t)
	f.siteLocal()
	kubectl := func(args ...string) string {
		f.Helper()
		out, err := suite.Output(f.Kubectl(f.ctx, args...))
		f.Must(err)
		return out
	}
	for node, sees := range map[string]string{"a1": "a1 a2", "b1": "b1"} {
		// Those of an earlier test may still be there, in their namespace.
		nodes := strings.Fields(kubectl("get", "shares", node, "-o", `jsonpath={.items[?(@.metadata.namespace=="`+
			f.namespace+`")].endpoints[*].nodeName}`))
		slices.Sort(nodes)
		if got := strings.Join(nodes, " "); got != sees {
			t.Errorf("the share of %s has endpoints on %s, not on %s", node, got, sees)
		}
		yaml := kubectl("get", "shares", node, "-o", "yaml")
		for _, want := range []string{"kind: Service", "name: governed", "kind: EndpointSlice", "name: " + node} {
			if !strings.Contains(yaml, want) {
				t.Errorf("kubectl get shares %s -o yaml has no %q:\n%s", node, want, yaml)
			}
		}
		raw := kubectl("get", "--raw", "/apis/hub.superedge.io/v1alpha1/shares/"+node+"?kind=Node")
		if !strings.Contains(raw, `"kind":"NodeList"`) || !strings.Contains(raw, `"name":"`+node+`"`) {
			t.Errorf("kubectl get --raw of %s:\n%s", node, raw)
		}
	}
}

// TestAReplicaThatComesLater gets streams, though the API server has connections to the other one: they end by chance.
func TestAReplicaThatComesLater(t *testing.T) {
	f := newFixture(t)
	streams := func(replica int) float64 {
		f.Helper()
		n, err := shared.Hubs[replica].Metric(f.ctx, "application_grid_hub_streams")
		f.Must(err)
		return n
	}
	f.Must(shared.Hubs[1].Stop())
	f.Eventually("one replica has all streams", func() error {
		if n := streams(0); n < 3 {
			return fmt.Errorf("it has %v", n)
		}
		return nil
	})
	f.Must(shared.Hubs[1].Start(f.ctx))
	client, asked := f.shareClient(f.boundToken("a1")), 0
	took := f.Eventually("a stream comes to the other one", func() error {
		asked++
		stream, err := client.Get().AbsPath("/apis/hub.superedge.io/v1alpha1/shares").
			Param("watch", "true").Param("fieldSelector", "metadata.name=a1").
			SetHeader("Accept", "application/vnd.kubernetes.protobuf;stream=watch").SetHeader("Accept-Encoding", "gzip").
			Stream(f.ctx)
		if err != nil {
			return err
		}
		defer stream.Close()
		if streams(1) == 0 {
			return errors.New("all streams come to the first")
		}
		return nil
	})
	t.Logf("the other replica had a stream after %d others, and %s", asked-1, took.Round(time.Millisecond))
	f.siteLocal()
}

// TestTheCertificatesSecretIsDeleted: a replica makes it again, with the certificate that is served, by the rights that
// the shipped role gives. No stream notices, and a replica that starts later serves the same.
func TestTheCertificatesSecretIsDeleted(t *testing.T) {
	f := newFixture(t)
	governed := f.siteLocal()
	secrets := f.client.CoreV1().Secrets("kube-system")
	const name, certificate = "application-grid-hub-tls", "tls.crt"
	before, err := secrets.Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	f.Must(secrets.Delete(f.ctx, name, metav1.DeleteOptions{}))
	f.Eventually("the Secret is there again", func() error {
		after, err := secrets.Get(f.ctx, name, metav1.GetOptions{})
		if err == nil && string(after.Data[certificate]) != string(before.Data[certificate]) {
			err = errors.New("it has another certificate")
		}
		return err
	})
	f.Eventually("it was made by a patch that created it", func() error {
		made, err := shared.Audited(0, func(r cluster.Request) bool {
			return r.User.Username == string(cluster.RoleHub) && r.ObjectRef.Name == name && r.Verb == "patch" &&
				r.ResponseStatus.Code == http.StatusCreated
		})
		if err == nil && len(made) == 0 {
			err = errors.New("there is no such request")
		}
		return err
	})
	f.Must(workload.In(f.client, f.namespace).SetReadyOn(f.ctx, "governed", "a1", corev1.ConditionFalse))
	f.ExpectReach("what changes arrives", governed, map[string]string{"a1": "a2", "a2": "a2", "b1": "b1"})
	f.Must(shared.Hubs[1].Restart(f.ctx))
	after, err := secrets.Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	if string(after.Data[certificate]) != string(before.Data[certificate]) {
		t.Error("a replica that started later has made another certificate")
	}
}

// TestAResetBundleIsMended: somebody resets the caBundle, as a tool does that applies its own manifest again.
func TestAResetBundleIsMended(t *testing.T) {
	f := newFixture(t)
	governed := f.siteLocal()
	service := func() *rest.Request {
		return f.client.Discovery().RESTClient().Verb("PATCH").
			AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.hub.superedge.io").
			SetHeader("Content-Type", "application/merge-patch+json")
	}
	f.Must(service().Body([]byte(`{"spec":{"caBundle":null,"insecureSkipTLSVerify":false}}`)).Do(f.ctx).Error())
	took := suite.Unhindered(func() {
		f.Eventually("the bundle is there again", func() error {
			got, err := service().Body([]byte(`{}`)).Do(f.ctx).Raw()
			if err == nil && !strings.Contains(string(got), "caBundle") {
				err = errors.New("it is not")
			}
			return err
		})
	})
	if took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	f.Must(workload.In(f.client, f.namespace).SetReadyOn(f.ctx, "governed", "a1", corev1.ConditionFalse))
	f.ExpectReach("what changes arrives", governed, map[string]string{"a1": "a2", "a2": "a2", "b1": "b1"})
}
