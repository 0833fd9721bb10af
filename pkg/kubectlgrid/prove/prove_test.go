package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
	"github.com/application-grid/application-grid/pkg/topology"
)

func echo() *corev1.Service {
	s := wiretest.ServiceOf("shop/echo", `["zone1"]`)
	s.Spec = corev1.ServiceSpec{ClusterIP: "10.96.0.9", Ports: []corev1.ServicePort{{Name: "udp", Port: 53,
		Protocol: corev1.ProtocolUDP}, {Name: "http", Port: 80}}}
	return s
}

// threeNodes are n0 in east, n1 and n2 in west, n2 without a wrapper, and n3 in no site.
func threeNodes() map[string]node {
	of := func(site string, edge bool) node {
		return node{labels: topology.Labels{"zone1": site, v1.LabelEdgeNode: fmt.Sprint(edge)}, ready: true}
	}
	return map[string]node{"n0": of("east", true), "n2": of("west", true), "n1": of("west", false),
		"n3": {labels: topology.Labels{}, ready: true}}
}

// slicesOf is a slice with an endpoint on each of these nodes, 10.244.<i>.1:8080 for n<i>.
func slicesOf(nodes ...string) []discoveryv1.EndpointSlice {
	slice := wiretest.SliceOf("shop/echo-1", "echo")
	slice.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("udp"), Port: ptr.To(int32(53)),
		Protocol: ptr.To(corev1.ProtocolUDP)}, {Name: ptr.To("http"), Port: ptr.To(int32(8080))}}
	for _, node := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{"10.244." + strings.TrimPrefix(node, "n") + ".1"}, NodeName: ptr.To(node),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "echo-" + node},
		})
	}
	return []discoveryv1.EndpointSlice{*slice}
}

// with are the surroundings with endpoints on some nodes.
func with(endpoints ...string) surroundings {
	return surroundings{service: echo(), slices: slicesOf(endpoints...), nodes: threeNodes()}
}

// second gives each node a second, and asks once.
var second = Options{Requests: 1, Timeout: time.Second}

func mustPrepare(t *testing.T, s surroundings, o Options) *plan {
	t.Helper()
	plan, err := prepare(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestPrepare(t *testing.T) {
	from := func(p *plan) (places string) {
		for _, s := range p.samples {
			places += s.site + " " + s.node + " " + s.target.String() + "; "
		}
		return places
	}
	plan := mustPrepare(t, with("n0", "n1"), Options{})
	const at = " 10.96.0.9:80; "
	if from(plan) != "east n0"+at+"west n2"+at {
		t.Errorf("got %v", plan.samples)
	}
	if plan = mustPrepare(t, with("n0"), Options{AllNodes: true}); from(plan) != "east n0"+at+"west n2"+at+"west n1"+at {
		t.Errorf("got %v", plan.samples)
	}
	keys := func(value string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations["topologyKeys"] = value }
	}
	external := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }
	for want, test := range map[string]struct {
		port   string
		change func(s *corev1.Service)
	}{
		"has no topologyKeys":                    {"", func(s *corev1.Service) { s.Annotations = nil }},
		"annotation topologyKeys=zone1":          {"", keys("zone1")},
		"has no cluster IP":                      {"", func(s *corev1.Service) { s.Spec.ClusterIP = "None" }},
		"(ExternalName)":                         {"", external},
		"only TCP can be asked; it has 53/UDP":   {"", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }},
		"has no port 53 of TCP, and only TCP":    {"53", func(*corev1.Service) {}},
		"has no port udp of TCP":                 {"udp", func(*corev1.Service) {}},
		"it has no ports":                        {"", func(s *corev1.Service) { s.Spec.Ports = nil }},
		"no node is in a site by the label rack": {"", keys(`["rack"]`)},
	} {
		s := with("n0")
		test.change(s.service)
		if _, err := prepare(s, Options{Port: test.port}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	s := with("n0")
	s.nodes["n0"] = node{labels: s.nodes["n0"].labels}
	if plan = mustPrepare(t, s, Options{Port: "http"}); plan.samples[0].err == nil {
		t.Errorf("a site without a ready node: %v", plan)
	}
}

// runner answers with what the test says.
type runner map[string]func() (probe.Result, error)

func (r runner) run(_ context.Context, node string, _ netip.AddrPort) (probe.Result, error) {
	return r[node]()
}

// TestConclude: what a probe's result says of whom a node reaches.
func TestConclude(t *testing.T) {
	reached := func(counts map[string]int) probe.Result {
		total := 0
		for _, n := range counts {
			total += n
		}
		return probe.Result{Asked: total, Reached: counts}
	}
	const here, there = "10.244.0.1:8080", "10.244.2.1:8080"
	both := []string{"n0", "n2"}
	for _, test := range []struct {
		name      string
		endpoints []string
		result    probe.Result
		err       error
		after     []string
		verdict   Verdict
		says      string
	}{
		{"closed", both, reached(map[string]int{here: 20}), nil, nil, Closed, ""},
		{"a leak", both, reached(map[string]int{here: 15, there: 5}), nil, nil, Leak,
			"reached pod echo-n2 on node n2, of west, 5 times"},
		{"a leak that nobody answers", both, probe.Result{Asked: 1, Silent: map[string]int{there: 1}}, nil, nil, Leak,
			"reached pod echo-n2 on node n2, of west, 1 time"},
		{"a leak to a node without site", []string{"n0", "n3"}, reached(map[string]int{"10.244.3.1:8080": 1}), nil, nil,
			Leak, "of (n3)"},
		{"a leak, and then an error", both, probe.Result{Asked: 1, Reached: map[string]int{there: 1},
			Error: "interrupted"}, nil, nil, Leak, "reached"},
		{"an endpoint that came meanwhile", []string{"n2"}, reached(map[string]int{here: 1}), nil, both, Closed, ""},
		{"an endpoint that went meanwhile", both, reached(map[string]int{here: 1}), nil, []string{"n2"}, Closed, ""},
		{"some were not answered", []string{"n0"}, probe.Result{Asked: 3, Reached: map[string]int{here: 1},
			Silent: map[string]int{here: 2}}, nil, nil, Closed, "2 of 3 were not answered"},
		{"none were answered", []string{"n0"}, probe.Result{Asked: 2, Silent: map[string]int{here: 2}}, nil, nil,
			Unproved, "no connection was answered; all went to endpoints that may be reached"},
		{"nobody, and there is someone", []string{"n0"}, probe.Result{Asked: 2, Nobody: 2}, nil, nil, Unproved,
			"though the site has a ready endpoint"},
		{"nobody, and there is no one", []string{"n2"}, probe.Result{Asked: 2, Nobody: 2}, nil, nil, Closed,
			"the site has no ready endpoint, and connections are refused"},
		{"stale rules", []string{"n0"}, reached(map[string]int{"10.244.9.9:8080": 1}), nil, nil, Unproved,
			"10.244.9.9:8080, which is not an endpoint of the Service"},
		{"no rules", []string{"n0"}, probe.Result{Asked: 1, Untranslated: 1}, nil, nil, Unproved,
			"1 connection went to no endpoint"},
		{"no pod", []string{"n0"}, probe.Result{}, errors.New("ErrImagePull: no such image"), nil, Unproved,
			"ErrImagePull: no such image"},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := mustPrepare(t, with(test.endpoints...), second)
			well := func() (probe.Result, error) { return probe.Result{Asked: 1, Nobody: 1}, nil }
			plan.ask(t.Context(), runner{"n0": func() (probe.Result, error) { return test.result, test.err },
				"n2": well}.run)
			after := test.after
			if after == nil {
				after = test.endpoints
			}
			proof, err := plan.conclude(with(after...))
			if err != nil {
				t.Fatal(err)
			}
			if row := proof.Rows[0]; row.Verdict != test.verdict || !strings.Contains(row.Message, test.says) ||
				(test.says == "" && row.Message != "") {
				t.Errorf("got %+v", row)
			}
			if test.verdict == Leak && proof.Verdict != Leak || test.verdict == Unproved && proof.Verdict != Unproved {
				t.Errorf("as a whole: %s", proof.Verdict)
			}
		})
	}
	left := with("n0")
	left.service.Labels = map[string]string{v1.LabelServiceProxyName: "other"}
	plan := mustPrepare(t, left, second)
	refused := runner{}
	for _, node := range []string{"n0", "n2"} {
		refused[node] = func() (probe.Result, error) { return probe.Result{Asked: 1, Nobody: 1}, nil }
	}
	plan.ask(t.Context(), refused.run)
	proof, err := plan.conclude(left)
	if err != nil || proof.Verdict != Unproved || !strings.Contains(proof.Rows[0].Message, "service proxy other") {
		t.Errorf("of a Service that kube-proxy leaves alone: %+v, %v", proof, err)
	}
	plan = mustPrepare(t, with("n0"), second)
	changed := with("n0")
	changed.service.Annotations = nil
	if _, err := plan.conclude(changed); err == nil ||
		!strings.Contains(err.Error(), "while asking it was changed") {
		t.Errorf("got %v", err)
	}
}

// TestAskIsBounded: no more at once than the limit, and a run that is interrupted asks no further.
func TestAskIsBounded(t *testing.T) {
	s := with("n0")
	s.nodes = map[string]node{}
	for i := range 4 * askedAtOnce {
		s.nodes[fmt.Sprintf("n%d", i)] = node{labels: topology.Labels{"zone1": fmt.Sprintf("u%d", i)}, ready: true}
	}
	plan := mustPrepare(t, s, second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	under, most, asked := 0, 0, 0
	r := runner{}
	for name := range s.nodes {
		r[name] = func() (probe.Result, error) {
			mu.Lock()
			under++
			asked++
			most = max(most, under)
			if asked == 2*askedAtOnce {
				cancel()
			}
			mu.Unlock()
			time.Sleep(time.Millisecond)
			mu.Lock()
			under--
			mu.Unlock()
			return probe.Result{}, nil
		}
	}
	plan.ask(ctx, r.run)
	if most > askedAtOnce || asked < 2*askedAtOnce || asked >= 4*askedAtOnce || len(plan.samples) != 4*askedAtOnce {
		t.Errorf("%d at once, %d asked", most, asked)
	}
}

// kubelet is an API server whose pods have this status when they are looked at.
func kubelet(t *testing.T, refuse error, status func(pod *corev1.Pod)) (client.Client, *[]corev1.Pod) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	made := &[]corev1.Pod{}
	return fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if refuse != nil {
				return refuse
			}
			err := api.Create(ctx, o, opts...)
			*made = append(*made, *o.(*corev1.Pod).DeepCopy())
			return err
		},
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			err := api.Get(ctx, key, o, opts...)
			if err == nil {
				status(o.(*corev1.Pod))
			}
			return err
		},
	}).Build(), made
}

func terminated(code int32, message string) func(*corev1.Pod) {
	return in(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}})
}

// in is a pod whose container is in a state.
func in(state corev1.ContainerState) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state}} }
}

// podsOf are the pods of an API server on which a wrapper runs on each node.
func podsOf(api client.Client) *pods {
	return &pods{
		Options: Options{Requests: 3, ConnectTimeout: time.Second, Timeout: 90 * time.Second, PodNamespace: "kube-system"},
		api:     api,
		images:  map[string]image{"n0": {"wrapper-on-n0", []corev1.LocalObjectReference{{Name: "pull"}}}},
	}
}

// TestPods: what a pod says, why it says nothing, and that nothing is left of it.
func TestPods(t *testing.T) {
	result, err := json.Marshal(probe.Result{Asked: 3, Reached: map[string]int{"10.244.0.1:8080": 3}})
	if err != nil {
		t.Fatal(err)
	}
	waiting := func(reason, message string) func(*corev1.Pod) {
		return in(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "",
		errors.New(`violates PodSecurity "restricted:latest"`))
	for _, test := range []struct {
		name    string
		refuse  error
		status  func(*corev1.Pod)
		timeout time.Duration
		fails   string
	}{
		{"a result", nil, terminated(0, string(result)), time.Minute, ""},
		{"no image", nil, waiting("ErrImagePull", "no such host"), time.Minute, "ErrImagePull: no such host"},
		{"an image without a probe", nil, terminated(2, ""), time.Minute, "the image has no probe"},
		{"a probe that fails", nil, terminated(1, "boom"), time.Minute, "the probe ended with code 1:  boom"},
		{"refused by the kubelet", nil, func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "OutOfpods", "too many"
		}, time.Minute, "OutOfpods: too many"},
		{"never started", nil, waiting("ContainerCreating", "soon"), 1200 * time.Millisecond,
			"did not end in time: ContainerCreating: soon"},
		{"refused", forbidden, nil, time.Minute,
			`a pod may not be created in namespace kube-system: pods is forbidden: violates PodSecurity "restricted:latest"; --pod-namespace`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			api, made := kubelet(t, test.refuse, test.status)
			pods := podsOf(api)
			ctx, cancel := context.WithTimeout(t.Context(), test.timeout)
			defer cancel()
			got, err := pods.run(ctx, "n0", netip.MustParseAddrPort("10.96.0.9:80"))
			if test.fails == "" && (err != nil || got.Reached["10.244.0.1:8080"] != 3) {
				t.Errorf("got %+v, %v", got, err)
			}
			if test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("got %v", err)
			}
			left := &corev1.PodList{}
			if err := api.List(t.Context(), left); err != nil || len(left.Items) != 0 {
				t.Errorf("%d pods are left: %v", len(left.Items), err)
			}
			for _, pod := range *made {
				c, s := pod.Spec.Containers[0], pod.Spec
				if s.NodeName != "n0" || !s.HostNetwork || c.Image != "wrapper-on-n0" ||
					s.ImagePullSecrets[0].Name != "pull" ||
					*s.ActiveDeadlineSeconds != 90 ||
					strings.Join(c.Args,
						" ") != "probe 10.96.0.9:80 --requests=3 --timeout=1s --output=/dev/termination-log" ||
					*s.AutomountServiceAccountToken {
					t.Errorf("the pod is %+v", pod)
				}
			}
		})
	}
}

// TestPodsAreRemovedAfterAnInterrupt: also by Ctrl-C, and what a killed run has left by the next one.
func TestPodsAreRemovedAfterAnInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	api, _ := kubelet(t, nil, func(*corev1.Pod) { cancel() })
	pods := podsOf(api)
	if _, err := pods.run(ctx, "n0", netip.MustParseAddrPort("10.96.0.9:80")); err == nil || err.Error() != "it was interrupted" {
		t.Errorf("got %v", err)
	}
	for name, phase := range map[string]corev1.PodPhase{"ended": corev1.PodFailed, "running": corev1.PodRunning} {
		if err := api.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name,
				Labels: map[string]string{labelName: labelValue}}, Status: corev1.PodStatus{Phase: phase},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := pods.removeLeftovers(t.Context()); err != nil {
		t.Fatal(err)
	}
	left := &corev1.PodList{}
	if err := api.List(t.Context(), left); err != nil || len(left.Items) != 1 || left.Items[0].Name != "running" {
		t.Errorf("left are %v, %v", left.Items, err)
	}
}

// TestInterruptWhileAPodIsMade: a request to make a pod that is interrupted may have been carried out all the same, and
// then nobody would know the pod's name.
func TestInterruptWhileAPodIsMade(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	api, made := kubelet(t, nil, nil)
	api = interceptor.NewClient(api.(client.WithWatch),
		interceptor.Funcs{Create: func(request context.Context, c client.WithWatch, o client.Object,
			opts ...client.CreateOption) error {
			pod := o.DeepCopyObject().(*corev1.Pod)
			err := c.Create(request, pod, opts...)
			cancel()
			if request.Err() != nil { // whoever asked did not wait for the answer
				return request.Err()
			}
			o.SetName(pod.Name)
			return err
		}})
	pods := podsOf(api)
	if _, err := pods.run(ctx, "n0", netip.MustParseAddrPort("10.96.0.9:80")); err == nil || err.Error() != "it was interrupted" {
		t.Errorf("got %v", err)
	}
	left := &corev1.PodList{}
	if err := api.List(t.Context(), left); err != nil || len(*made) != 1 || len(left.Items) != 0 {
		t.Errorf("%d were made, left are %v, %v", len(*made), left.Items, err)
	}
}

// TestPrintManySites: a table has no column for each of many sites, but one for all others.
func TestPrintManySites(t *testing.T) {
	proof := &Proof{Sites: strings.Fields("a b c d e f g h i"), Rows: []Row{{
		Site: "a", Node: "n", Reached: map[string]int{"a": 7, "b": 2, "(x)": 3}, Nobody: 1,
		Verdict: Leak, Message: "so",
	}}}
	var out strings.Builder
	if err := proof.Print(&out, output.Table); err != nil {
		t.Fatal(err)
	}
	want := "FROM    own site   others   NOBODY   VERDICT\na (n)   7          5        1        LEAK: so\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("got\n%s", out.String())
	}
}

// TestAffinity: with sessionAffinity all connections of a node go where the first went, so that they prove nothing of
// the other endpoints; unless the node may reach all of them.
func TestAffinity(t *testing.T) {
	for endpoints, want := range map[string]Verdict{"n0 n2": Unproved, "n0": Closed} {
		s := with(strings.Fields(endpoints)...)
		s.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		plan := mustPrepare(t, s, second)
		own := func() (probe.Result, error) {
			return probe.Result{Asked: 20, Reached: map[string]int{"10.244.0.1:8080": 20}}, nil
		}
		none := func() (probe.Result, error) { return probe.Result{Asked: 20, Nobody: 20}, nil }
		plan.ask(t.Context(), runner{"n0": own, "n2": none}.run)
		proof, err := plan.conclude(s)
		if err != nil {
			t.Fatal(err)
		}
		if row := proof.Rows[0]; row.Verdict != want {
			t.Errorf("%s: got %+v", endpoints, row)
		}
	}
}

// TestFamilies: a node is asked from by each family that it has an address of.
func TestFamilies(t *testing.T) {
	s := with("n0")
	s.service.Spec.ClusterIPs = []string{"10.96.0.9", "fd00::9"}
	s.nodes = map[string]node{}
	for name, families := range map[string][]discoveryv1.AddressType{"n0": {discoveryv1.AddressTypeIPv4,
		discoveryv1.AddressTypeIPv6}, "n2": {discoveryv1.AddressTypeIPv6}, "n4": nil} {
		s.nodes[name] = node{labels: topology.Labels{"zone1": name}, ready: true, families: families}
	}
	plan := mustPrepare(t, s, second)
	var asked []string
	for _, from := range plan.samples {
		asked = append(asked, from.node+" "+from.target.String())
	}
	if got := strings.Join(asked, ", "); got != "n0 10.96.0.9:80, n0 [fd00::9]:80, n2 [fd00::9]:80, n4 10.96.0.9:80" {
		t.Errorf("got %s", got)
	}
	// Of a Service of one family, a site whose nodes have no address of it is not proved.
	s.service.Spec.ClusterIPs, s.slices = nil, slicesOf()
	plan = mustPrepare(t, s, second)
	well := func() (probe.Result, error) { return probe.Result{Asked: 1, Nobody: 1}, nil }
	plan.ask(t.Context(), runner{"n0": well, "n4": well}.run)
	proof, err := plan.conclude(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(proof.Rows) != 3 || proof.Rows[1].Site != "n2" || proof.Rows[1].Verdict != Unproved ||
		!strings.Contains(proof.Rows[1].Message, "address of the Service's family") || proof.Verdict != Unproved {
		t.Errorf("got %s, %+v", proof.Verdict, proof.Rows)
	}
}
