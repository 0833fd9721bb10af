package install

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/verdict"
	"github.com/application-grid/application-grid/test/workload"
)

// runsAsInstalled has the API server know what an installation has, as pods of kwok beside the real wrappers and
// kube-proxies, which are no pods, and starts a controller.
func (f *fixture) runsAsInstalled() {
	f.Helper()
	f.kubectl("-n", "kube-system", "create", "configmap", "kubeadm-config")
	f.writeKubeadmsKubeProxy("apply")
	f.kubectl("apply", "-k", filepath.Join(manifests, "crds"))
	f.kubectl("apply", "-k", f.overlay("kubeadm"), "--validate=strict")
	f.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--patch-file",
		filepath.Join(manifests, "kubeadm", "kube-proxy-away.yaml"))
	controller, err := f.Cluster.NewController(f.ctx, "verdicts", suite.Binary(f.T, "application-grid-controller"))
	f.Must(err)
	f.Must(controller.Start(f.ctx))
	f.Cleanup(controller.Kill)
	f.expectPods("kube-proxy", "k8s-app", "cloud")
	for _, app := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
		f.expectPods(app, "app", "n0 n1 n2")
	}
}

// judge has all commands of kubectl grid speak.
func (f *fixture) judge() *verdict.Judge {
	return &verdict.Judge{Test: &f.Test, Key: "zone1",
		Plugin: func(args ...string) *exec.Cmd { return f.Plugin(f.ctx, args...) },
		Node:   func(name string) workload.Source { return f.Node(name) }}
}

// serviceGrid makes a ServiceGrid of the echo pods, and returns its Service.
func (f *fixture) serviceGrid(name, spec string) *corev1.Service {
	f.Helper()
	_, err := f.tryKubectl(fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: %s, namespace: default},
spec: {gridUniqKey: zone1, template: {selector: {app: echo}, ports: [{port: %d}]%s}}}`, name, workload.Port, spec),
		"apply", "-f", "-")
	f.Must(err)
	var service *corev1.Service
	f.Eventually("the Service of ServiceGrid "+name+" is there", func() (err error) {
		service, err = f.client.CoreV1().Services("default").Get(f.ctx, name+"-svc", metav1.GetOptions{})
		return err
	})
	return service
}

// giveIPv6 gives the echo pod of a node an address of both families, as a kubelet does.
func (f *fixture) giveIPv6(nodes ...string) {
	f.Helper()
	for _, name := range nodes {
		pods, err := workload.In(f.client, "default").PodsOn(f.ctx, "echo", name)
		f.Must(err)
		pod, err := f.client.CoreV1().Pods("default").Get(f.ctx, pods[0], metav1.GetOptions{})
		f.Must(err)
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"podIPs": []corev1.PodIP{
			{IP: pod.Status.PodIP}, {IP: f.Node(name).PodAddress6()}}}})
		f.Must(err)
		_, err = f.client.CoreV1().Pods("default").Patch(f.ctx, pod.Name, types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}, "status")
		f.Must(err)
	}
}

const (
	closed  = "Closed"
	nobody  = "Closed the site has no ready endpoint, and connections are refused"
	bySite  = "n1 n2"
	n0v4    = "n0 IPv4"
	n0v6    = "n0 IPv6"
	n1v4    = "n1 IPv4"
	n1v6    = "n1 IPv6"
	n2v4    = "n2 IPv4"
	n2v6    = "n2 IPv6"
	wellOwn = "own ok"
)

// verdicts has all commands speak of a Service with sessionAffinity, of one that lacks a family in a site, and of a
// node that has lost the label of its site.
func (f *fixture) verdicts() {
	f.Helper()
	j := f.judge()
	well := map[string]string{"east": wellOwn, "west": wellOwn}
	const kept = "Unproved sessionAffinity keeps one client at one endpoint"
	j.Expect(verdict.Case{Name: "sessionAffinity", Grid: "sticky",
		Service: f.serviceGrid("sticky", ", sessionAffinity: ClientIP"),
		Reach:   map[string]string{n0v4: "n0", n1v4: "n1 or n2", n2v4: "n1 or n2"}, Cells: well,
		Proof: 1, Rows: map[string]string{n0v4: kept, n1v4: kept, n2v4: kept}})

	f.giveIPv6("n1", "n2")
	dual := verdict.Case{Name: "a site without an endpoint of IPv6", Grid: "dual",
		Service: f.serviceGrid("dual", ", ipFamilyPolicy: RequireDualStack"),
		Reach:   map[string]string{n0v4: "n0", n0v6: "", n1v4: bySite, n1v6: bySite, n2v4: bySite, n2v6: bySite},
		Code:    3, Says: "1 of 2 sites have no ready endpoint (TCP over IPv6): east",
		Cells: map[string]string{"east": "none failure", "west": wellOwn},
		Proof: 3, Rows: map[string]string{n0v4: closed, n0v6: nobody, n1v4: closed, n1v6: closed, n2v4: closed,
			n2v6: closed}}
	j.Expect(dual)

	f.giveIPv6("n0")
	dual.Name, dual.Code, dual.Proof, dual.Says, dual.Cells = "both families in both sites", 0, 0, "", well
	dual.Reach[n0v6], dual.Rows[n0v6] = "n0", closed
	j.Expect(dual)

	// Every node has the key of another Service.
	_, err := workload.In(f.client, "default").CreateService(f.ctx, "own",
		workload.ServiceOptions{TopologyKeys: []string{corev1.LabelHostname}, Workload: "echo"})
	f.Must(err)
	f.Must(f.Cluster.RelabelNode(f.ctx, "n2", "zone1", ""))
	lost := dual
	lost.Name, lost.Code, lost.Proof, lost.Says = "a node without the label of its site", 3, 3, "Node n2: "
	lost.Reach = map[string]string{n0v4: "n0", n0v6: "n0", n1v4: "n1", n1v6: "n1", n2v4: "", n2v6: ""}
	lost.Rows = map[string]string{n0v4: closed, n0v6: closed, n1v4: closed, n1v6: closed}
	j.Expect(lost)
	f.Must(f.Cluster.RelabelNode(f.ctx, "n2", "zone1", "west")) // as the action says
	dual.Name = "the node has it again"
	j.Expect(dual)
	f.kubectl("delete", "service", "own")
}

// verdictsWithoutHub has the wrappers use a hub, whose process then dies: connections stay in their sites, and of a
// Service that is made since, no edge node knows.
func (f *fixture) verdictsWithoutHub() {
	f.Helper()
	f.kubectl("delete", "service", "echo", "lone")
	text, err := os.ReadFile(filepath.Join(manifests, "application-grid-hub", "deployment.yaml"))
	f.Must(err)
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(document, "\nkind: Deployment\n") { // the cluster brings the hub's other objects
			_, err := f.tryKubectl(document, "apply", "-f", "-")
			f.Must(err)
		}
	}
	f.Must(f.Cluster.StartHub(f.ctx))
	f.kubectl("-n", "kube-system", "patch", "daemonset", "application-grid-wrapper", "--type=json",
		`-p=[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--hub"}]`)
	for _, name := range []string{"n0", "n1", "n2"} {
		wrapper := f.Node(name).Wrapper
		f.Must(wrapper.Stop())
		wrapper.SetArgs(append(wrapper.Args(), "--hub"))
		f.Must(wrapper.Start(f.ctx))
	}
	f.kubectl("-n", "kube-system", "rollout", "status", "daemonset", "application-grid-wrapper", "--timeout=60s")

	j := f.judge()
	through := verdict.Case{Name: "through a hub", Grid: "plain", Service: f.serviceGrid("plain", ""),
		Reach: map[string]string{n0v4: "n0", n1v4: bySite, n2v4: bySite},
		Cells: map[string]string{"east": wellOwn, "west": wellOwn},
		Rows:  map[string]string{n0v4: closed, n1v4: closed, n2v4: closed}}
	j.Expect(through)

	f.Cluster.Hubs[0].Kill()
	away := through
	away.Name, away.Code, away.Proof, away.Says = "the hub is dead", 3, 3, "it is not available ("
	away.Cells = map[string]string{"east": verdict.Unknown, "west": verdict.Unknown}
	j.Expect(away)
	since := away
	since.Name, since.Grid, since.Service = "a Service since then", "since", f.serviceGrid("since", "")
	since.Reach = map[string]string{n0v4: "", n1v4: "", n2v4: "", "cloud IPv4": "cloud n0 n1 n2"}
	since.Rows = map[string]string{n0v4: "Unproved *", n1v4: "Unproved *", n2v4: "Unproved *"}
	j.Expect(since)
}
