package plugin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kubernetes/pkg/proxy/apis"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/clustertest"
	"github.com/application-grid/application-grid/test/suite"
)

// Labels and the names of what runs on nodes.
const (
	edgeLabel = "superedge.io/application-grid"
	hostname  = "kubernetes.io/hostname"
	wrapper   = "application-grid-wrapper"
	system    = "/api/v1/namespaces/kube-system/"
)

// machine is a node as it is, which the API server shows in part.
type machine struct {
	labels map[string]string
	// kind is "true" for an edge node with pods, systemd, static, k3s, or cloud.
	kind string
	// What is wrong: kube-proxy asks the API server; it gets no answer at all; the wrapper is one of another node.
	past, frozen bool
	as           string
	// master is the server of k3s' kube-proxy, if it is not the wrapper's.
	master string
	// unready is that its wrapper is said not to be ready, and one that it is in the pod of kube-proxy.
	unready, one bool
	// lost is that it has lost the label of its site.
	lost bool
	// cut is that its link is down. It goes on with what it was last shown.
	cut bool
	// plane is what sends connections to Services on there before kube-proxy: Cilium or Calico's eBPF, which ask the
	// API server, or Antrea, of which nobody can see whether it does; "calico" leaves it to kube-proxy.
	plane string
	// cached is that NodeLocal DNSCache answers its pods.
	cached bool
}

// The data planes of a machine.
const (
	ebpf   = "ebpf"
	cilium = "cilium"
	antrea = "antrea"
	// ciliumAsks is a Cilium that asks the wrapper, and ciliumTLS one that asks it over TLS, and gets no answer.
	ciliumAsks = "cilium-asks"
	ciliumTLS  = "cilium-tls"
)

// bypassed reports whether connections to Services do not follow what the wrapper shows.
func (m *machine) bypassed() bool {
	return m.past || m.plane == ebpf || m.plane == cilium || m.plane == antrea
}

func (m *machine) edge() bool { return m.labels[edgeLabel] != "" }

// place is an endpoint of a Service.
type place struct {
	node        string
	terminating bool
	// without are the families or ports that it lacks.
	without string
	// evicted is that its pod is to be deleted, and that the node, whose link is down, has not heard of it.
	evicted bool
}

// world is a cluster with a truth.
type world struct {
	*testing.T

	machines map[string]*machine
	services []*corev1.Service
	places   map[string][]place
	// extra are further objects as YAML; remove takes pods away, spoil changes the API's objects at last.
	extra   []string
	spoil   []func(*clustertest.API)
	defects []string
	// away is that a hub that is required is away, and unanswered that the controller does not answer a change of a
	// grid. No connection shows either.
	away, unanswered bool
	// warned are the checks that have to warn of something, which no connection from a node shows.
	warned []string
	// nameless is that pods on some node of a site find no CoreDNS, which concerns every Service there.
	nameless bool
	// unread is the answer of check to somebody who may not read all.
	unread *answer
	// resolvers are the Services of CoreDNS: kube-dns, and the one that NodeLocal DNSCache asks. Without CoreDNS there
	// are none.
	resolvers []*corev1.Service
}

// shape is a kind of Service.
type shape struct {
	name, keys string
	local      bool
	families   []corev1.IPFamily
	ports      []string
	// headless is that it has no address. proxy is the program that its label leaves it to.
	headless bool
	proxy    string
}

// severalShapes have several keys, of which each port and family has its own.
var severalShapes = []shape{
	{"ports-fallback", `["zone","region"]`, false, nil, []string{"a", "b"}, false, ""},
	{"ports-any", `["kubernetes.io/hostname","zone","*"]`, false, nil, []string{"a", "b"}, false, ""},
	{"dual-fallback", `["zone","region"]`, false, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		[]string{"a", "b"}, false, ""},
}

var shapes = []shape{
	{"plain", `["zone"]`, false, nil, []string{""}, false, ""},
	{"fallback", `["zone","*"]`, false, nil, []string{""}, false, ""},
	{"own", `["kubernetes.io/hostname","zone"]`, false, nil, []string{""}, false, ""},
	{"region", `["zone","region"]`, false, nil, []string{""}, false, ""},
	{"dual", `["zone"]`, false, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, []string{""}, false, ""},
	{"ports", `["zone"]`, false, nil, []string{"a", "b"}, false, ""},
	{"local", `["zone"]`, true, nil, []string{""}, false, ""},
	{"node", `["kubernetes.io/hostname"]`, false, nil, []string{""}, false, ""},
	{"prefers-node", `["kubernetes.io/hostname","*"]`, false, nil, []string{""}, false, ""},
	{"pool", `["pool"]`, false, nil, []string{""}, false, ""},
	{"sticky", `["zone"]`, false, nil, []string{""}, false, ""},
	{"any", `["*"]`, false, nil, []string{""}, false, ""},
	{"names", `["zone"]`, false, nil, []string{""}, true, ""},
	{"names-region", `["zone","region"]`, false, nil, []string{""}, true, "other"}, // CoreDNS heeds no such label
	{"names-any", `["zone","*"]`, false, nil, []string{""}, true, ""},
	{"left", `["zone"]`, false, nil, []string{""}, false, "other"},
	{"left-any", `["zone","*"]`, false, nil, []string{""}, false, "other"},
	{"typo", `["zon"]`, false, nil, []string{""}, false, ""},
}

func keysOf(s *corev1.Service) (keys []string) {
	_ = json.Unmarshal([]byte(s.Annotations["topologyKeys"]), &keys) // the test's own
	return keys
}

// newWorld makes a cluster of two fleets, with some Services and, among them, some defects. The worlds take turns with
// a defect that they have for certain, and one of each turn has none for certain.
func newWorld(t *testing.T, r *rand.Rand, turn int) *world {
	t.Helper()
	certain := turn % (len(defects) + 1)
	for {
		w := newMachines(t, r)
		for _, i := range r.Perm(len(shapes) - 1)[:1+r.IntN(4)] {
			w.addService(shapes[i])
		}
		if certain < len(defects) && !w.spoilBy(certain, r) {
			continue // it has no room for that defect
		}
		for range []int{0, 0, 0, 1, 1, 2}[r.IntN(6)] {
			w.spoilBy(r.IntN(len(defects)), r)
		}
		return w
	}
}

// spoilBy adds a defect, and reports whether there is room for it.
func (w *world) spoilBy(defect int, r *rand.Rand) bool {
	if !defects[defect].spoil(w, r) {
		return false
	}
	w.defects = append(w.defects, defects[defect].name)
	return true
}

// newWorldOfPorts makes a cluster whose Services lack ports and families here and there.
func newWorldOfPorts(t *testing.T, r *rand.Rand) *world {
	t.Helper()
	w := newMachines(t, r)
	for _, shape := range severalShapes {
		w.addService(shape)
		places := w.places[shape.name]
		for i := range places {
			switch r.IntN(4) {
			case 0:
				places[i].without = []string{"a", "b", string(corev1.IPv6Protocol)}[r.IntN(3)]
			case 1:
				places[i].terminating = true
			}
		}
	}
	if r.IntN(3) == 0 {
		linkDown(w, r)
	}
	return w
}

// newMachines makes a cluster of two fleets without Services.
func newMachines(t *testing.T, r *rand.Rand) *world {
	t.Helper()
	w := &world{T: t, machines: map[string]*machine{}, places: map[string][]place{}}
	kinds := []string{"true", "true", "true", "systemd", "static", "k3s"}
	for i := range 3 + r.IntN(4) {
		kind := kinds[r.IntN(len(kinds))]
		if i < 2 {
			kind = "true"
		}
		name := fmt.Sprint("e", i)
		m := &machine{kind: kind, labels: map[string]string{hostname: name, edgeLabel: kind, "zone": string(rune('a' + i%3)),
			"region": string(rune('r' + i%2))}}
		if kind == "k3s" {
			m.labels[edgeLabel] = "true"
		}
		if r.IntN(5) == 0 && i > 1 { // of another fleet
			delete(m.labels, "zone")
			m.labels["pool"] = string(rune('p' + i%2))
		}
		w.machines[name] = m
	}
	for i := range 1 + r.IntN(3) {
		name := fmt.Sprint("c", i)
		m := &machine{kind: "cloud", labels: map[string]string{hostname: name}}
		if r.IntN(2) == 0 {
			m.labels["zone"] = "cloud"
		}
		w.machines[name] = m
	}
	return w
}

// addService adds a Service with an endpoint for each of its sites.
func (w *world) addService(shape shape) {
	i := len(w.services)
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: shape.name,
		Annotations: map[string]string{"topologyKeys": shape.keys}}}
	s.Spec = corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), IPFamilies: shape.families}
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	if len(shape.families) > 1 {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, fmt.Sprintf("fd00::%d", i+1))
	}
	for j, port := range shape.ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: port,
			Port: int32(80 + j), Protocol: corev1.ProtocolTCP})
	}
	if shape.headless {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	}
	if shape.proxy != "" {
		s.Labels = map[string]string{apis.LabelServiceProxyName: shape.proxy}
	}
	if shape.local {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if shape.name == "sticky" {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10800)}}
	}
	w.services = append(w.services, s)
	keys := keysOf(s)
	if shape.name == "typo" {
		w.places[s.Name] = []place{{node: "e0"}}
		return
	}
	done := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		m := w.machines[name]
		key := keys[0]
		if key == "*" {
			key = hostname
		}
		if key == hostname && len(keys) > 1 && keys[1] != "*" {
			key = keys[1]
		}
		value, in := m.labels[key]
		if !m.edge() || !in || done[value] && !shape.local {
			continue
		}
		done[value] = true
		w.places[s.Name] = append(w.places[s.Name], place{node: name})
	}
}

// reported are the EndpointSlices that the API server has: kube-controller-manager calls no pod ready whose node is
// silent.
func (w *world) reported(s *corev1.Service) []*discoveryv1.EndpointSlice {
	all := w.slicesOf(s)
	for _, slice := range all {
		e := &slice.Endpoints[0]
		if !w.machines[*e.NodeName].cut {
			continue
		}
		evicted := slices.ContainsFunc(w.places[s.Name], func(p place) bool {
			return p.node == *e.NodeName && p.evicted
		})
		e.Conditions.Ready, e.Conditions.Serving = ptr.To(false), ptr.To(false)
		e.Conditions.Terminating = ptr.To(evicted || *e.Conditions.Terminating)
	}
	return all
}

// slicesOf are the EndpointSlices of a Service as its nodes have them: one for each family and endpoint, as a port may
// lack in one.
func (w *world) slicesOf(s *corev1.Service) (all []*discoveryv1.EndpointSlice) {
	families := s.Spec.IPFamilies
	if families == nil {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	for i, p := range w.places[s.Name] {
		for _, family := range families {
			if p.without == string(family) {
				continue
			}
			slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(family),
				ObjectMeta: metav1.ObjectMeta{
					Namespace: s.Namespace, Name: strings.ToLower(fmt.Sprintf("%s-%d-%s", s.Name, i, family)),
					Labels: map[string]string{discoveryv1.LabelServiceName: s.Name}}}
			maps.Copy(slice.Labels, s.Labels) // as the EndpointSlice controller does
			if headless(s) {
				slice.Labels[corev1.IsHeadlessService] = ""
			}
			for j := range s.Spec.Ports {
				if port := s.Spec.Ports[j]; p.without != port.Name || port.Name == "" {
					slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name,
						Port:     ptr.To(int32(8080 + j)),
						Protocol: ptr.To(corev1.ProtocolTCP)})
				}
			}
			address := fmt.Sprintf("10.244.%d.%d", i, len(p.node))
			if family == corev1.IPv6Protocol {
				address = fmt.Sprintf("fd00:244::%d", i+1)
			}
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: ptr.To(p.node),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("%s-%d", s.Name, i)},
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(!p.terminating), Serving: ptr.To(true),
					Terminating: ptr.To(p.terminating)}}}
			all = append(all, slice)
		}
	}
	return all
}

// api is the cluster as an API server has it.
func (w *world) api() *clustertest.API {
	w.Helper()
	edge, err := os.ReadFile(filepath.Join(suite.Repository(w), "pkg/kubectlgrid/check/testdata/edge.yaml"))
	suite.Must(w, err)
	a := clustertest.New(w, string(edge))
	for path := range a.Objects {
		if strings.Contains(path, "/nodes/") || strings.Contains(path, "/shop/") {
			delete(a.Objects, path)
		}
	}
	add := func(o any) {
		data, err := json.Marshal(o)
		suite.Must(w, err)
		a.Add(string(data))
	}
	crds, err := filepath.Glob(filepath.Join(suite.Repository(w), "manifests/crds/superedge.io_*.yaml"))
	suite.Must(w, err)
	for _, file := range crds {
		text, err := os.ReadFile(file)
		suite.Must(w, err)
		a.Add(string(text))
	}
	for path, o := range a.Objects {
		if strings.Contains(path, "/customresourcedefinitions/") {
			o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
		}
	}
	for _, key := range []string{"zone", "pool"} {
		a.Add(fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: echo-%s, namespace: shop, generation: 1},
 spec: {gridUniqKey: %s}, status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", reason: Ready}]}}`, key, key))
	}
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		w.addNode(a, add, name)
	}
	if len(w.resolvers) > 0 {
		w.addCoreDNS(a)
	}
	for _, s := range slices.Concat(w.services, w.resolvers) {
		typed := s.DeepCopy()
		typed.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Service"))
		add(typed)
		for _, slice := range w.reported(s) {
			slice.SetGroupVersionKind(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
			add(slice)
		}
	}
	for _, text := range w.extra {
		a.Add(text)
	}
	for _, spoil := range w.spoil {
		spoil(a)
	}
	return a
}

// addNode adds a node, and what the DaemonSets run there.
func (w *world) addNode(a *clustertest.API, add func(any), name string) {
	m := w.machines[name]
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: maps.Clone(m.labels)}}
	node.Labels["superedge.io/kube-proxy"] = "edge"
	node.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64"}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if m.cut {
		node.Status.Conditions[0].Status = corev1.ConditionUnknown
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}}
	if m.kind == "k3s" {
		node.Status.NodeInfo.KubeletVersion = "v1.37.1+k3s1"
		master := cmp.Or(m.master, "http://localhost:51006")
		if m.past {
			master = apiServer(name)
		}
		node.Annotations = map[string]string{"k3s.io/node-args": fmt.Sprintf(`["agent","--kube-proxy-arg=master=%s"]`, master)}
	}
	if m.plane != "" {
		node.Labels["plane"] = m.plane
	}
	add(node)
	switch edge := m.labels[edgeLabel]; {
	case edge == "true" && m.kind == "k3s":
		run(a, wrapper, name)
		run(a, "statefulset-grid-daemon", name)
	case edge == "true":
		run(a, wrapper, name)
		run(a, "statefulset-grid-daemon", name)
		run(a, "kube-proxy-edge", name)
	case edge == "systemd":
		run(a, "kube-proxy-edge", name)
	case edge == "":
		run(a, "kube-proxy", name)
	}
	for _, o := range a.Objects {
		if on, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName"); m.cut && on == name {
			o.Object["status"] = map[string]any{"phase": "Running", "conditions": []any{
				map[string]any{"type": "Ready", "status": "False"}}}
		}
	}
}

// apiServer is the API server that a node asks past its wrapper. Every other node has one with the wrapper's scheme.
func apiServer(name string) string {
	if strings.ContainsAny(name, "02468") {
		return "https://10.0.0.1:6443"
	}
	return "http://10.0.0.1:8080"
}

// run makes a ready pod of a DaemonSet on a node.
func run(a *clustertest.API, set, node string) {
	owner := a.Objects["/apis/apps/v1/namespaces/kube-system/daemonsets/"+set].DeepCopy()
	spec, _, _ := unstructured.NestedMap(owner.Object, "spec", "template", "spec")
	spec["nodeName"] = node
	a.Objects[system+"pods/"+set+"-"+node] = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": set + "-" + node, "namespace": "kube-system", "ownerReferences": []any{
			map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set, "uid": "u", "controller": true}}},
		"spec": spec, "status": map[string]any{"phase": "Running", "conditions": []any{
			map[string]any{"type": "Ready", "status": "True"}}},
	}}
}

// arguments adds arguments to the first container of a pod.
func arguments(a *clustertest.API, pod string, args ...any) {
	o := a.Objects[system+"pods/"+pod]
	containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "containers")
	container := containers[0].(map[string]any)
	old, _ := container["args"].([]any)
	container["args"] = append(old, args...)
	_ = unstructured.SetNestedSlice(o.Object, containers, "spec", "containers") // it was one
}

// some is one of the machines with a property; "" if there is none.
func (w *world) some(r *rand.Rand, is func(m *machine) bool) string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(w.machines)), func(name string) bool {
		return !is(w.machines[name])
	})
	if len(names) == 0 {
		return ""
	}
	return names[r.IntN(len(names))]
}

func podded(m *machine) bool {
	return m.kind == "true" && !m.past && !m.frozen && !m.one && m.as == "" && m.plane == ""
}

// onPlane is a data plane on some nodes, by a DaemonSet with an agent of this name.
func onPlane(plane, agent string) func(*world, *rand.Rand) bool {
	return func(w *world, r *rand.Rand) bool {
		name := w.some(r, func(m *machine) bool { return podded(m) && !m.cut })
		if name == "" || slices.ContainsFunc(slices.Collect(maps.Values(w.machines)), func(m *machine) bool {
			return m.plane == plane
		}) {
			return false
		}
		w.machines[name].plane = plane
		w.machines[name].frozen = plane == ciliumTLS
		scheme := map[string]string{ciliumAsks: "http", ciliumTLS: "https"}[plane]
		if scheme != "" {
			w.extra = append(w.extra, fmt.Sprintf("{apiVersion: cilium.io/v2, kind: CiliumNodeConfig, metadata: {name: %[1]s, "+
				"namespace: kube-system}, spec: {nodeSelector: {matchLabels: {plane: %[1]s}}, defaults: {k8s-api-server-urls: "+
				"\"%[2]s://localhost:51006\"}}}", plane, scheme))
		} else if r.IntN(2) == 0 { // and on one of the cloud, where it is no defect
			if cloud := w.machines["c1"]; cloud != nil {
				cloud.plane = cmp.Or(cloud.plane, plane)
			}
		}
		felix, env := "", ""
		if plane == ebpf {
			switch r.IntN(3) {
			case 0:
				env = ", env: [{name: FELIX_BPFENABLED, value: \"true\"}]"
			case 1: // a configuration of one node alone
				felix = "node." + name
			default:
				felix = "default"
			}
		}
		if felix != "" {
			w.extra = append(w.extra, fmt.Sprintf("{apiVersion: crd.projectcalico.org/v1, kind: FelixConfiguration, "+
				"metadata: {name: %s}, spec: {bpfEnabled: true}}", felix))
		}
		w.extra = append(w.extra, fmt.Sprintf("{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: %[1]s-here, namespace: "+
			"kube-system}, spec: {template: {spec: {hostNetwork: true, nodeSelector: {plane: %[1]s}, containers: [{name: "+
			"%[2]s, image: \"%[2]s:v1\"%[3]s}]}}}}", plane, agent, env))
		return true
	}
}

// onNode is a defect of a node that runs the programs as pods.
func onNode(what func(w *world, name string)) func(*world, *rand.Rand) bool {
	return func(w *world, r *rand.Rand) bool {
		name := w.some(r, podded)
		if name != "" {
			what(w, name)
		}
		return name != ""
	}
}

// ofService is a defect of a Service with one of these names.
func ofService(what func(w *world, of []place, r *rand.Rand) []place, names ...string) func(*world, *rand.Rand) bool {
	return func(w *world, r *rand.Rand) bool {
		for _, s := range w.services {
			if slices.Contains(names, s.Name) && len(w.places[s.Name]) > 1 {
				w.places[s.Name] = what(w, w.places[s.Name], r)
				return true
			}
		}
		return false
	}
}

// withCoreDNS runs CoreDNS on some nodes, behind a Service for pods and one for NodeLocal DNSCache.
func withCoreDNS(w *world, r *rand.Rand) bool {
	if len(w.resolvers) > 0 {
		return false
	}
	names := slices.Sorted(maps.Keys(w.machines))
	keys := []string{"", `["zone"]`, `["kubernetes.io/hostname","zone"]`, `["kubernetes.io/hostname","zone","pool"]`,
		`["kubernetes.io/hostname","zone","*"]`, `["zone","*"]`, `["pool"]`}
	every := r.IntN(2) == 0
	for i, name := range []string{"kube-dns", "kube-dns-upstream"} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}}
		s.Spec = corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.1.%d", i), Selector: map[string]string{"k8s-app": "kube-dns"},
			Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolTCP}}}
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		if of := keys[r.IntN(len(keys))]; of != "" {
			s.Annotations = map[string]string{"topologyKeys": of}
		}
		w.resolvers = append(w.resolvers, s)
	}
	for i, name := range names {
		if every || i == 0 || r.IntN(3) == 0 {
			w.places["kube-dns"] = append(w.places["kube-dns"], place{node: name})
		}
		w.machines[name].cached = podded(w.machines[name]) && r.IntN(2) == 0
	}
	w.places["kube-dns-upstream"] = w.places["kube-dns"]
	return true
}

// addCoreDNS adds the pods of CoreDNS and of NodeLocal DNSCache.
func (w *world) addCoreDNS(a *clustertest.API) {
	a.Add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: node-local-dns, namespace: kube-system},
 spec: {template: {spec: {hostNetwork: true, nodeSelector: {cached: "true"}, containers: [{name: node-cache,
 image: "registry.k8s.io/dns/k8s-dns-node-cache:1", args: [-localip, 169.254.20.10, -upstreamsvc, kube-dns-upstream]}]}}}}`)
	for name, m := range w.machines {
		if m.cached {
			run(a, "node-local-dns", name)
		}
	}
	for _, p := range w.places["kube-dns"] {
		ready := "True"
		if w.machines[p.node].cut {
			ready = "False"
		}
		a.Add(fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: coredns-%[1]s, namespace: kube-system,
 labels: {k8s-app: kube-dns}}, spec: {nodeName: %[1]s}, status: {phase: Running, conditions: [{type: Ready, status: "%[2]s"}]}}`,
			p.node, ready))
	}
}

// linkDown cuts a node, or all nodes of its site. Their pods may be evicted since.
func linkDown(w *world, r *rand.Rand) bool {
	name, whole := w.some(r, (*machine).edge), r.IntN(2) == 0
	for other, m := range w.machines {
		if m.edge() && (other == name || whole && m.labels["zone"] == w.machines[name].labels["zone"]) {
			m.cut = true
		}
	}
	evicted := r.IntN(2) == 0
	for _, places := range w.places {
		for i := range places {
			places[i].evicted = evicted
		}
	}
	return true
}

// defects are what can be wrong. Each reports whether the world has room for it.
var defects = []struct {
	name  string
	spoil func(w *world, r *rand.Rand) bool
}{
	{"a label is lost", func(w *world, r *rand.Rand) bool {
		name := w.some(r, func(m *machine) bool { return m.edge() && m.labels["zone"] != "" })
		if name == "" {
			return false
		}
		delete(w.machines[name].labels, "zone")
		if r.IntN(2) == 0 {
			delete(w.machines[name].labels, "region")
		}
		w.machines[name].lost = true
		return true
	}},
	{"a link that is down", linkDown},
	{"a cloud node in a site", func(w *world, _ *rand.Rand) bool {
		w.machines["c0"].labels["zone"] = "a"
		return true
	}},
	{"a wrapper that is not ready", onNode(func(w *world, name string) {
		w.machines[name].frozen, w.machines[name].unready = true, true
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			_ = unstructured.SetNestedMap(a.Objects[system+"pods/"+wrapper+"-"+name].Object,
				map[string]any{"phase": "Pending"}, "status")
		})
	})},
	{"no wrapper", onNode(func(w *world, name string) {
		w.machines[name].frozen = true
		w.spoil = append(w.spoil, func(a *clustertest.API) { delete(a.Objects, system+"pods/"+wrapper+"-"+name) })
	})},
	{"kube-proxy past the wrapper", onNode(func(w *world, name string) {
		w.machines[name].past = true
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			arguments(a, "kube-proxy-edge-"+name, "--master="+apiServer(name))
		})
	})},
	{"kube-proxy over TLS", onNode(func(w *world, name string) {
		w.machines[name].frozen = true
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			arguments(a, "kube-proxy-edge-"+name, "--master=https://localhost:51006")
		})
	})},
	{"a wrapper with another's name", onNode(func(w *world, name string) {
		other := "e0"
		if name == other {
			other = "e1"
		}
		w.machines[name].as = other
		w.spoil = append(w.spoil, func(a *clustertest.API) { arguments(a, wrapper+"-"+name, "--hostname="+other) })
	})},
	{"two kube-proxies", onNode(func(w *world, name string) {
		w.machines[name].past = true
		w.spoil = append(w.spoil, func(a *clustertest.API) { run(a, "kube-proxy", name) })
	})},
	{"k3s past the wrapper", func(w *world, r *rand.Rand) bool {
		name := w.some(r, func(m *machine) bool { return m.kind == "k3s" && !m.frozen })
		if name != "" {
			w.machines[name].past = true
		}
		return name != ""
	}},
	{"k3s over TLS, which is its default", func(w *world, r *rand.Rand) bool {
		name := w.some(r, func(m *machine) bool { return m.kind == "k3s" && !m.past })
		if name != "" {
			w.machines[name].frozen = true
			w.machines[name].master = []string{"https://localhost:51006", "localhost:51006"}[r.IntN(2)]
		}
		return name != ""
	}},
	{"a systemd node past the wrapper, which cannot be seen", func(w *world, r *rand.Rand) bool {
		name := w.some(r, func(m *machine) bool { return m.kind == "static" || m.kind == "systemd" })
		if name != "" {
			w.machines[name].past = true
		}
		return name != ""
	}},
	{"k3s that asks a wrapper after a removal", func(w *world, _ *rand.Rand) bool {
		w.machines["c0"].frozen = true
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			node := a.Objects["/api/v1/nodes/c0"]
			node.SetAnnotations(map[string]string{"k3s.io/node-args": `["agent","--kube-proxy-arg=master=http://localhost:51006"]`})
			delete(a.Objects, system+"pods/kube-proxy-c0")
		})
		return true
	}},
	{"a site without an endpoint", ofService(func(_ *world, of []place, r *rand.Rand) []place {
		return slices.Delete(slices.Clone(of), 0, 1+r.IntN(len(of)-1))
	}, "plain", "fallback", "own", "region", "dual", "ports", "local", "node", "prefers-node", "pool", "names", "names-region", "names-any", "left")},
	{"no endpoint at all", ofService(func(*world, []place, *rand.Rand) []place { return nil }, "plain", "dual", "local")},
	{"a site without a family", ofService(func(_ *world, of []place, r *rand.Rand) []place {
		of[r.IntN(len(of))].without = string(corev1.IPv6Protocol)
		return of
	}, "dual")},
	{"a site without a port", ofService(func(_ *world, of []place, r *rand.Rand) []place {
		of[r.IntN(len(of))].without = "b"
		return of
	}, "ports")},
	{"a site whose endpoints are ending", ofService(func(_ *world, of []place, r *rand.Rand) []place {
		of[r.IntN(len(of))].terminating = true
		return of
	}, "plain", "dual", "local", "ports", "names", "names-region")},
	{"a key that no node has", func(w *world, _ *rand.Rand) bool {
		w.addService(shapes[len(shapes)-1])
		return true
	}},
	{"a hub that is away", func(w *world, r *rand.Rand) bool {
		if slices.Contains(w.warned, "ProgramVersions") {
			return false // there is a hub already
		}
		w.away = true
		conditions := []string{`{type: Available, status: "False", reason: FailedDiscoveryCheck, message: no route}`,
			`{type: Available, status: Unknown}`, ""}
		w.extra = append(w.extra, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-hub, namespace: kube-system},
 spec: {replicas: 1, template: {spec: {containers: [{name: application-grid-hub, image: "registry.example.org/application-grid-hub:v1"}]}}},
 status: {availableReplicas: 1}}
---
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1alpha1.hub.superedge.io},
 status: {conditions: [`+conditions[r.IntN(len(conditions))]+`]}}`)
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			set := a.Objects["/apis/apps/v1/namespaces/kube-system/daemonsets/"+wrapper]
			containers, _, _ := unstructured.NestedSlice(set.Object, "spec", "template", "spec", "containers")
			container := containers[0].(map[string]any)
			container["args"] = []any{"--hub"}
			_ = unstructured.SetNestedSlice(set.Object, containers, "spec", "template", "spec", "containers")
		})
		return true
	}},
	{"a grid whose change is not answered", func(w *world, _ *rand.Rand) bool {
		w.unanswered = true
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			grid := a.Objects["/apis/superedge.io/v1/namespaces/shop/deploymentgrids/echo-zone"]
			grid.SetGeneration(7)
			_ = unstructured.SetNestedField(grid.Object, int64(3), "status", "observedGeneration") // it has one
		})
		return true
	}},
	{"an ingress controller that reads endpoints", func(w *world, r *rand.Rand) bool {
		images := []string{"nginx/nginx-ingress:5", "kong/kubernetes-ingress-controller:3", "projectcontour/contour:v1",
			"emissaryingress/emissary:3", "opensource/skipper:v1", "kumahq/kuma-cp:2"}
		w.warned = append(w.warned, "Bypass")
		w.extra = append(w.extra, fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: front, namespace: shop},
 spec: {template: {spec: {containers: [{name: main, image: "docker.io/%s"}]}}}}`, images[r.IntN(len(images))]))
		return true
	}},
	{"a hub of another version", func(w *world, _ *rand.Rand) bool {
		if w.away {
			return false // there is a hub already
		}
		w.warned = append(w.warned, "ProgramVersions")
		w.extra = append(w.extra, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-hub, namespace: kube-system},
 spec: {replicas: 1, template: {spec: {containers: [{name: application-grid-hub, image: "registry.example.org/application-grid-hub:v0"}]}}},
 status: {availableReplicas: 1}}`)
		return true
	}},
	{"Cilium on nodes of the cloud alone, which is no defect", func(w *world, _ *rand.Rand) bool {
		w.extra = append(w.extra, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: cilium, namespace: kube-system},
 spec: {template: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
  {matchExpressions: [{key: superedge.io/application-grid, operator: DoesNotExist}]}]}}},
 containers: [{name: cilium-agent, image: "cilium:v1"}]}}}}`)
		return true
	}},
	{"a ServiceGrid whose Service lost its keys", func(w *world, _ *rand.Rand) bool {
		w.unanswered = true
		w.extra = append(w.extra, `{apiVersion: superedge.io/v1, kind: ServiceGrid,
 metadata: {name: front, namespace: shop, uid: u, generation: 1}, spec: {gridUniqKey: zone},
 status: {observedGeneration: 1, conditions: [{type: Ready, status: "True", reason: Ready}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: front-svc, namespace: shop,
 labels: {superedge.io/grid-selector: front}, ownerReferences: [
 {apiVersion: superedge.io/v1, kind: ServiceGrid, name: front, uid: u, controller: true}]}, spec: {ports: [{port: 80}]}}`)
		return true
	}},
	{"a server without a scheme, which is the wrapper's", onNode(func(w *world, name string) {
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			arguments(a, "kube-proxy-edge-"+name, "--master=127.0.0.1:51006")
		})
	})},
	{"wrapper and kube-proxy in one pod, which is no defect", onNode(func(w *world, name string) {
		w.machines[name].one = true
		w.spoil = append(w.spoil, func(a *clustertest.API) {
			one, other := system+"pods/kube-proxy-edge-"+name, system+"pods/"+wrapper+"-"+name
			containers, _, _ := unstructured.NestedSlice(a.Objects[one].Object, "spec", "containers")
			more, _, _ := unstructured.NestedSlice(a.Objects[other].Object, "spec", "containers")
			_ = unstructured.SetNestedSlice(a.Objects[one].Object, append(containers, more...), "spec", "containers")
			delete(a.Objects, other)
		})
	})},
	{"Calico's eBPF on some nodes", onPlane(ebpf, "calico-node")},
	{"Cilium past the wrapper on some nodes", onPlane(cilium, "cilium-agent")},
	{"Cilium that asks the wrapper on some nodes, which is no defect", onPlane(ciliumAsks, "cilium-agent")},
	{"Cilium that asks the wrapper over TLS on some nodes", onPlane(ciliumTLS, "cilium-agent")},
	{"Antrea on some nodes, of which nobody can see what it does", onPlane(antrea, "antrea-agent")},
	{"Calico without eBPF on some nodes, which is no defect", onPlane("calico", "calico-node")},
	{"CoreDNS, and NodeLocal DNSCache on some nodes", withCoreDNS},
	{"a node without the endpoint that Local requires", func(w *world, _ *rand.Rand) bool {
		places := w.places["local"]
		for i, p := range places {
			if slices.ContainsFunc(places, func(other place) bool {
				return other.node != p.node && w.machines[other.node].labels["zone"] == w.machines[p.node].labels["zone"]
			}) {
				w.places["local"] = slices.Delete(slices.Clone(places), i, i+1)
				return true
			}
		}
		return false
	}},
}
