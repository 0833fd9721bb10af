package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/application-grid/application-grid/pkg/storage/snapshot"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	mirror   = "mirror.example.org/superedge/"
	registry = "registry.example.org/"
	shop     = "shop"
	late     = "late"
	theirs   = "edge-system"

	wrapperReady = "http://127.0.0.1:51006/readyz"
	daemonReady  = "http://127.0.0.1:51007/readyz"
)

// lateGrid is a grid that does not exist yet when the new controller takes over.
const lateGrid = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: late, namespace: late}
spec:
  gridUniqKey: zone1
  template:
    replicas: 1
    selector: {matchLabels: {appGrid: late}}
    template:
      metadata: {labels: {appGrid: late}}
      spec:
        automountServiceAccountToken: false
        containers: [{name: echo, image: echo}]
`

// edges are the nodes with a wrapper, each a site of its own.
var edges = map[string]string{"node0": "east", "node1": "west"}

// site is a cluster that SuperEdge's installation made.
type site struct {
	*operator
	kubelets *kubelets
	dynamic  dynamic.Interface
	traffic  *workload.Traffic
}

// TestFromSuperEdge follows docs/migrate.md: there, back, and there again, and removes what is left. All the time
// every node asks a ServiceGrid's Service; a request that is lost or answered by a foreign site fails the test, and so
// does a pod that is replaced.
func TestFromSuperEdge(t *testing.T) {
	s := newSite(t)
	s.imagesAlone()
	before := s.identities()
	s.startTraffic()

	step := func(name string, do func()) {
		t.Helper()
		if !s.Step(name, func() { do(); s.expectIdentities(before) }) {
			t.FailNow()
		}
	}
	step("there", func() { s.goThere(); s.expectOurs() })
	step("a grid that is created meanwhile", s.createLate)
	step("back", func() { s.follow("## The way back to SuperEdge", nil); s.expectTheirs(); s.expectLateIsTheirs() })
	step("there again", func() { s.goThere(); s.expectOurs() })
	step("remove what is left", func() {
		s.follow("## Removing what is left of SuperEdge", nil)
		s.expectOurs()
		s.expectNothingOfTheirs()
	})
	tried, failed := s.traffic.End()
	if len(failed) > 0 {
		t.Errorf("%d of %d requests went wrong, the first: %s", len(failed), tried, failed[0])
	}
	t.Logf("%d requests, none failed", tried)
	s.expectOwned()
}

// createLate creates a grid whose workloads the new controller makes, so that they select their sites.
func (s *site) createLate() {
	s.Helper()
	s.Shell("kubectl create namespace " + late + " && kubectl create -f - <<'END'\n" + lateGrid + "END")
	s.expectLate("with the site's label", true)
}

// expectLateIsTheirs waits until SuperEdge's controller has created these workloads again, as it makes them.
func (s *site) expectLateIsTheirs() {
	s.Helper()
	s.expectLate("without the site's label", false)
}

func (s *site) expectLate(how string, selects bool) {
	s.Helper()
	s.Eventually("the workload runs "+how, func() error {
		d, err := s.client.AppsV1().Deployments(late).Get(s.ctx, "late-"+edges["node0"], metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := d.Spec.Selector.MatchLabels["superedge.io/grid-site"]; (got != "") != selects ||
			d.Status.ReadyReplicas != 1 || d.Status.UpdatedReplicas != 1 ||
			d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("it selects site %q, and its status is %+v", got, d.Status)
		}
		pods, err := s.client.CoreV1().Pods(late).List(s.ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) != len(edges) {
			err = fmt.Errorf("there are %d pods", len(pods.Items))
		}
		return err
	})
}

// goThere follows the steps, and looks between them.
func (s *site) goThere() {
	s.Helper()
	// A line that is nobody's, which SuperEdge's daemon would drop.
	for node := range edges {
		s.appendHosts(node, "192.0.2.7 printer.site printer\n")
	}
	theirPods := s.uids(theirs)
	s.follow("### The steps", map[string]func(){
		"away.yaml": func() {
			if now := s.uids(theirs); !maps.Equal(now, theirPods) {
				s.Errorf("SuperEdge's pods were replaced: %v, then %v", theirPods, now)
			}
		},
		"kubectl apply -k edge": func() {
			s.expectTheirRights()
			if pods := s.uids(metav1.NamespaceSystem); len(pods) != 2 {
				s.Errorf("not the controller alone was started: %v", pods)
			}
		},
		"kubectl label node node0": func() {
			s.expectOn("kube-system", "application-grid-wrapper", "node0")
			s.expectOn(theirs, "application-grid-wrapper", "node1")
			s.expectOurNode("node0")
		},
	})
}

// newSite makes what SuperEdge leaves in a cluster.
func newSite(t *testing.T) *site {
	t.Helper()
	var nodes []cluster.NodeSpec
	for _, name := range slices.Sorted(maps.Keys(edges)) {
		nodes = append(nodes, cluster.NodeSpec{Name: name,
			Labels: map[string]string{"zone1": edges[name], "superedge.io/node-edge": "enable"}})
	}
	nodes = append(nodes, cluster.NodeSpec{Name: "cloud0",
		Labels: map[string]string{"node-role.kubernetes.io/master": "", "node-role.kubernetes.io/control-plane": ""}})
	s := &site{operator: newOperator(t, "migrate.md", cluster.Options{Nodes: nodes})}
	s.dynamic = suite.Dynamic(t, s.Cluster.RESTConfig())
	s.kubelets = startKubelets(t, s.Cluster, s.images())
	for _, node := range s.Cluster.Nodes() {
		if _, edge := edges[node.Name()]; edge {
			s.serveLite(node)
		}
	}
	root := suite.Repository(s)
	directory := filepath.Join(root, "test", "takeover")
	s.Shell("kubectl apply -f " + filepath.Join(directory, "superedge.yaml"))
	for _, node := range s.Cluster.Nodes() {
		if _, edge := edges[node.Name()]; edge {
			s.says(node.Name(), wrapperReady, "endpointslices: ok")
			s.askWrapper(node)
		}
	}
	s.Eventually("SuperEdge's controller has made its CRDs", func() error {
		_, err := s.crds().Get(s.ctx, "servicegrids.superedge.io", metav1.GetOptions{})
		return err
	})
	s.storeUnpruned("deploymentgrids.superedge.io")
	s.Shell("kubectl wait --for=condition=Established crd/deploymentgrids.superedge.io crd/statefulsetgrids.superedge.io crd/servicegrids.superedge.io\n" +
		"kubectl create namespace " + shop + "\nkubectl apply -f " + filepath.Join(directory, "grids.yaml"))
	s.Eventually("the sites' pods run", func() error { return s.running(8) })
	for node := range edges {
		s.expectHosts(node)
	}
	return s
}

// images are those of SuperEdge's release, with this project's wrapper in its image, and this project's.
func (s *site) images() map[string]*image {
	s.Helper()
	root := suite.Repository(s)
	ours := func(name string) *image {
		i, err := ourImage(filepath.Join(root, "build", name+".Dockerfile"), suite.Binary(s.T, name))
		s.Must(err)
		return i
	}
	their := func(name string) *image {
		path := "/usr/local/bin/" + name
		return &image{files: map[string]string{path: suite.Binary(s.T, "superedge/"+name)}, entrypoint: []string{path}}
	}
	controller := their("application-grid-controller")
	module, err := exec.CommandContext(s.ctx, "go", "-C", filepath.Join(root, "test", "takeover", "superedge"),
		"list", "-m", "-f", "{{.Dir}}", "github.com/superedge/superedge").Output()
	s.Must(err)
	controller.files["/etc/superedge/application-grid-controller/manifests"] =
		filepath.Join(strings.TrimSpace(string(module)), "pkg", "application-grid-controller", "manifests")
	return map[string]*image{
		mirror + "application-grid-controller:v0.9.0": controller,
		mirror + "statefulset-grid-daemon:v0.9.0":     their("statefulset-grid-daemon"),
		mirror + "application-grid-wrapper:v0.9.0":    ours("application-grid-wrapper"),
		registry + "application-grid-controller:v1":   ours("application-grid-controller"),
		registry + "application-grid-wrapper:v1":      ours("application-grid-wrapper"),
		registry + "statefulset-grid-daemon:v1":       ours("statefulset-grid-daemon"),
	}
}

// imagesAlone: in SuperEdge's DaemonSets the images work, too, and say what is missing.
func (s *site) imagesAlone() {
	s.Helper()
	s.says("node0", wrapperReady, "state-dir: no snapshot can be kept")
	s.Shell("kubectl -n " + theirs + " set image daemonset/statefulset-grid-daemon statefulset-grid-daemon=" +
		registry + "statefulset-grid-daemon:v1\n" +
		"kubectl -n " + theirs + " rollout status daemonset/statefulset-grid-daemon --timeout=2m")
	for node := range edges {
		s.says(node, daemonReady, "endpointslices") // which it may not read
		s.expectHosts(node)
	}
	s.Shell("kubectl -n " + theirs + " rollout undo daemonset/statefulset-grid-daemon\n" +
		"kubectl -n " + theirs + " rollout status daemonset/statefulset-grid-daemon --timeout=2m")
}

// startTraffic has every edge node ask the Service, closed in its site.
func (s *site) startTraffic() {
	s.Helper()
	service, err := s.client.CoreV1().Services(shop).Get(s.ctx, "echo-svc", metav1.GetOptions{})
	s.Must(err)
	s.traffic = workload.StartTraffic(s.ctx, workload.URL(service), 5*time.Millisecond)
	s.Cleanup(func() { s.traffic.End() })
	for name := range edges {
		s.ExpectReach(name+" reaches its own site", service, map[string]string{name: name})
		s.traffic.From(s.Node(name), []string{name})
	}
}

func (s *site) crds() dynamic.ResourceInterface {
	return s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
}

// storeUnpruned makes a CRD what v1beta1 made of it, which kept unknown fields. kube-apiserver refuses to, so it is
// written past it.
func (s *site) storeUnpruned(crd string) {
	s.Helper()
	key := []byte("/registry/apiextensions.k8s.io/customresourcedefinitions/" + crd)
	var stored struct{ Kvs []struct{ Value []byte } }
	s.Must(s.Cluster.AskEtcd(s.ctx, "kv/range", map[string]any{"key": key}, &stored))
	var object map[string]any
	s.Must(json.Unmarshal(stored.Kvs[0].Value, &object))
	s.Must(unstructured.SetNestedField(object, true, "spec", "preserveUnknownFields"))
	value, err := json.Marshal(object)
	s.Must(err)
	s.Must(s.Cluster.AskEtcd(s.ctx, "kv/put", map[string]any{"key": key, "value": value}, nil))
	s.Eventually("the CRD "+crd+" keeps unknown fields", func() error { return s.keepsUnknown(crd, true) })
}

// keepsUnknown is nil if a CRD keeps unknown fields, or does not.
func (s *site) keepsUnknown(name string, want bool) error {
	crd, err := s.crds().Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if keeps, _, _ := unstructured.NestedBool(crd.Object, "spec", "preserveUnknownFields"); keeps != want {
		return fmt.Errorf("%s keeps unknown fields: %v", name, keeps)
	}
	return nil
}

// expectOwned looks whether any field of the children is still owned by the old controller's updates: it would never
// leave them. Drift is reverted, and a change of the templates carried out, with what is gone from them.
func (s *site) expectOwned() {
	s.Helper()
	if left := s.Shell("kubectl -n " + shop + " get deployments,statefulsets,services --show-managed-fields -o jsonpath='" +
		`{range .items[*].metadata.managedFields[?(@.operation=="Update")]}{.manager}{"\n"}{end}` +
		"' | grep application-grid-controller || true"); left != "" {
		s.Errorf("fields are owned by updates of\n%s", left)
	}
	s.Shell("kubectl -n " + shop + " scale deployment echo-east --replicas=5\n" +
		"kubectl -n " + shop + " annotate service echo-svc topologyKeys-\n" +
		"kubectl -n " + shop + ` patch deploymentgrid echo --type=json -p '[
			{"op": "replace", "path": "/spec/template/template/spec/containers/0/image", "value": "db"},
			{"op": "remove", "path": "/spec/template/template/spec/containers/0/ports"}]'` + "\n" +
		"for site in east west; do kubectl -n " + shop + ` wait deployment echo-$site --timeout=2m \
			--for=jsonpath='{.spec.template.spec.containers[0].image}'=db; done`)
	s.Eventually("drift is reverted, and what is gone from the templates goes", func() error {
		service, err := s.client.CoreV1().Services(shop).Get(s.ctx, "echo-svc", metav1.GetOptions{})
		if err != nil {
			return err
		}
		east, err := s.client.AppsV1().Deployments(shop).Get(s.ctx, "echo-east", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ports := east.Spec.Template.Spec.Containers[0].Ports
		if keys := service.Annotations["topologyKeys"]; keys != `["zone1"]` || *east.Spec.Replicas != 2 || len(ports) > 0 {
			return fmt.Errorf("topologyKeys %s, %d replicas, ports %v", keys, *east.Spec.Replicas, ports)
		}
		return nil
	})
}

// hasStatus reports whether a CRD has the status subresource, which only ours have.
func (s *site) hasStatus(name string) bool {
	s.Helper()
	crd, err := s.crds().Get(s.ctx, name, metav1.GetOptions{})
	s.Must(err)
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	s.Must(err)
	if len(versions) != 1 {
		s.Fatalf("%s has %d versions", name, len(versions))
	}
	version, ok := versions[0].(map[string]any)
	_, found, _ := unstructured.NestedMap(version, "subresources", "status")
	return ok && found
}

var gridCRDs = []string{"deploymentgrids.superedge.io", "statefulsetgrids.superedge.io", "servicegrids.superedge.io"}

// expectOurs waits until the new programs do everything, and SuperEdge's nothing.
func (s *site) expectOurs() {
	s.Helper()
	for _, crd := range gridCRDs {
		if !s.hasStatus(crd) {
			s.Errorf("the CRD %s is SuperEdge's", crd)
		}
		s.Must(s.keepsUnknown(crd, false))
	}
	for node := range edges {
		s.expectOurNode(node)
	}
	s.expectOn(theirs, "application-grid-wrapper")
	s.expectOn("kube-system", "application-grid-wrapper", "node0", "node1")
	s.Shell("kubectl grid status -A")
}

// expectOurNode waits until a node has the new wrapper and daemon, and that these work.
func (s *site) expectOurNode(node string) {
	s.Helper()
	s.says(node, wrapperReady, "endpointslices: ok")
	s.says(node, daemonReady, "ok")
	s.removeTheirNames(node)
	s.expectHosts(node)
	if file := s.hosts(node); !strings.Contains(file, "statefulset-grid-daemon") ||
		!strings.Contains(file, "192.0.2.7 printer.site printer\n") {
		s.Errorf("the hosts file of %s is\n%s", node, file)
	}
	s.Eventually(node+" keeps a snapshot", func() error {
		pods, err := s.client.CoreV1().Pods(metav1.NamespaceSystem).List(s.ctx, metav1.ListOptions{
			LabelSelector: "app=application-grid-wrapper", FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("it has %d wrappers", len(pods.Items))
		}
		kept, err := snapshot.Read(s.kubelets.volumeOf(&pods.Items[0], "state"))
		if err == nil && kept == nil {
			err = errors.New("there is none")
		}
		return err
	})
}

// expectTheirs waits until SuperEdge's programs do everything again, and nothing but the CRD that it does not know is
// left.
func (s *site) expectTheirs() {
	s.Helper()
	s.Eventually("the CRDs are SuperEdge's", func() error {
		for _, crd := range gridCRDs {
			if s.hasStatus(crd) {
				return fmt.Errorf("%s is not", crd)
			}
		}
		return nil
	})
	// The pods that were made meanwhile are replaced.
	s.Shell("kubectl -n " + theirs + " rollout status daemonset --timeout=2m")
	s.expectOn(theirs, "application-grid-wrapper", "node0", "node1")
	s.expectOn(theirs, "statefulset-grid-daemon", "cloud0", "node0", "node1")
	s.expectTheirRights()
	for node := range edges {
		s.says(node, wrapperReady, "endpointslices: ok")
		s.expectHosts(node)
	}
	s.Eventually("the new programs have gone", func() error {
		if pods := s.uids(metav1.NamespaceSystem); len(pods) > 0 {
			return fmt.Errorf("there are still %v", pods)
		}
		return nil
	})
	// SuperEdge's controller works: a new grid gets its child.
	s.Shell("kubectl -n " + shop + " get servicegrid echo -o json | sed 's/\"name\": \"echo\"/\"name\": \"new\"/' | kubectl create -f -")
	s.Eventually("SuperEdge's controller makes a child", func() error {
		_, err := s.client.CoreV1().Services(shop).Get(s.ctx, "new-svc", metav1.GetOptions{})
		return err
	})
	s.Shell("kubectl -n " + shop + " delete servicegrid new --cascade=foreground")
}

// expectTheirRights looks whether SuperEdge's programs may still do what they did.
func (s *site) expectTheirRights() {
	s.Helper()
	for _, can := range []string{
		"list endpointslices.discovery.k8s.io application-grid-wrapper", "watch nodes application-grid-wrapper",
		"update configmaps application-grid-wrapper",
		"list pods statefulset-grid-daemon", "list statefulsetgrids.superedge.io statefulset-grid-daemon",
		"update deployments.apps application-grid-controller",
		"update customresourcedefinitions.apiextensions.k8s.io application-grid-controller",
	} {
		words := strings.Fields(can)
		s.Shell("kubectl auth can-i " + words[0] + " " + words[1] + " -A --as=system:serviceaccount:" + theirs + ":" +
			words[2])
	}
}

func (s *site) expectNothingOfTheirs() {
	s.Helper()
	s.Eventually("SuperEdge's pods have gone", func() error {
		if pods := s.uids(theirs); len(pods) > 0 {
			return fmt.Errorf("there are %v", pods)
		}
		return nil
	})
	out := s.Shell("kubectl -n " + theirs +
		" get daemonsets,deployments,configmaps,serviceaccounts -o name | grep -v -e kube-root-ca.crt -e serviceaccount/default || true")
	if out != "" {
		s.Errorf("left are %s", out)
	}
	out = s.Shell("kubectl get clusterroles,clusterrolebindings -o name | grep grid || true")
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "/application-grid:") && !strings.Contains(line, "/application-grid-view") &&
			!strings.Contains(line, "/application-grid-edit") {
			s.Errorf("left is %s", line)
		}
	}
}

// expectOn waits until the pods of a namespace whose names begin so run on exactly these nodes.
func (s *site) expectOn(namespace, prefix string, nodes ...string) {
	s.Helper()
	s.Eventually(fmt.Sprintf("%s of %s on %v", prefix, namespace, nodes), func() error {
		pods, err := s.client.CoreV1().Pods(namespace).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var on []string
		for _, pod := range pods.Items {
			if !strings.HasPrefix(pod.Name, prefix) {
				continue
			}
			if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
			on = append(on, pod.Spec.NodeName)
		}
		slices.Sort(on)
		if !slices.Equal(on, nodes) {
			return fmt.Errorf("they are on %v", on)
		}
		return nil
	})
}

// uids are the uids of the pods of a namespace, by name.
func (s *site) uids(namespace string) map[string]string {
	s.Helper()
	pods, err := s.client.CoreV1().Pods(namespace).List(s.ctx, metav1.ListOptions{})
	s.Must(err)
	found := map[string]string{}
	for _, pod := range pods.Items {
		found[pod.Name] = string(pod.UID)
	}
	return found
}

// running says why not exactly this many pods of the grids are there and run.
func (s *site) running(count int) error {
	pods, err := s.client.CoreV1().Pods(shop).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	running := 0
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" {
			running++
		}
	}
	if running != count || len(pods.Items) != count {
		return fmt.Errorf("%d of %d pods run, want %d", running, len(pods.Items), count)
	}
	return nil
}

// identities are the UIDs of all of the grids that must survive, and the Services' addresses.
func (s *site) identities() map[string]string {
	s.Helper()
	grids := schema.GroupVersion{Group: "superedge.io", Version: "v1"}
	identities := s.Identities(s.dynamic, shop, grids.WithResource("deploymentgrids"),
		grids.WithResource("statefulsetgrids"), grids.WithResource("servicegrids"))
	if len(identities) < 20 {
		s.Fatalf("only %d objects: %v", len(identities), identities)
	}
	return identities
}

// expectIdentities looks, for a while, whether something was replaced.
func (s *site) expectIdentities(before map[string]string) {
	s.Helper()
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		after := s.identities()
		if maps.Equal(before, after) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if after[name] != before[name] {
				s.Errorf("%s was %s and is %q", name, before[name], after[name])
			}
		}
		s.Fatalf("before there were %d objects, now %d", len(before), len(after))
	}
}

// hosts is a node's hosts file.
func (s *site) hosts(node string) string {
	s.Helper()
	data, err := os.ReadFile(s.kubelets.hostPath(node, "/data/edge/hosts"))
	s.Must(err)
	return string(data)
}

func (s *site) appendHosts(node, line string) {
	s.Helper()
	file, err := os.OpenFile(s.kubelets.hostPath(node, "/data/edge/hosts"), os.O_APPEND|os.O_WRONLY, 0)
	s.Must(err)
	_, err = file.WriteString(line)
	s.Must(err)
	s.Must(file.Close())
}

// removeTheirNames removes from a node's hosts file what SuperEdge's daemon has left there, by the page's command.
func (s *site) removeTheirNames(node string) {
	s.Helper()
	const command, file = `sed -i '/\.svc\.cluster\.local$/d' `, "/data/edge/hosts"
	text, err := os.ReadFile("../../docs/migrate.md")
	s.Must(err)
	if !strings.Contains(string(text), command+file) {
		s.Errorf("docs/migrate.md does not have the command %s%s", command, file)
	}
	s.Shell(command + s.kubelets.hostPath(node, file))
}

// expectHosts waits until a node's hosts file has the names of its site, with its pods' addresses, and no others.
func (s *site) expectHosts(node string) {
	s.Helper()
	s.Eventually("the hosts file of "+node, func() error {
		var want []string
		for ordinal := range 2 {
			pod, err := s.client.CoreV1().Pods(shop).Get(s.ctx, fmt.Sprintf("db-%s-%d", edges[node], ordinal),
				metav1.GetOptions{})
			if err != nil {
				return err
			}
			want = append(want, fmt.Sprintf("%s db-%d.db-svc.%s.svc.cluster.local", pod.Status.PodIP, ordinal, shop))
		}
		data, err := os.ReadFile(s.kubelets.hostPath(node, "/data/edge/hosts"))
		if err != nil {
			return err
		}
		var got []string
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); len(fields) == 2 && !strings.HasPrefix(line, "#") {
				got = append(got, strings.Join(fields, " "))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("it has %q, want %q", got, want)
		}
		return nil
	})
}
