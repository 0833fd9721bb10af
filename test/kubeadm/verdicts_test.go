package kubeadm_test

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/verdict"
	"github.com/application-grid/application-grid/test/workload"
)

// What connections reach, and what the commands say of it.
const (
	cloud0v4, cloud0v6 = "cloud0 IPv4", "cloud0 IPv6"
	node0v4, node0v6   = "node0 IPv4", "node0 IPv6"
	node1v4, node1v6   = "node1 IPv4", "node1 IPv6"
	all                = "cloud0 node0 node1"

	own      = "own ok"
	kept     = "Closed"
	sticks   = "Unproved sessionAffinity keeps one client at one endpoint"
	refused  = "Closed the site has no ready endpoint, and connections are refused"
	unproved = "Unproved *"
)

// both has both sites well.
var both = map[string]string{"east": own, "west": own}

// judge has all commands of kubectl grid speak.
func (p *pages) judge() *verdict.Judge {
	ctx := p.Context() // that of a step in it ends before the dashboard is told to
	return &verdict.Judge{Test: &p.Test, Key: operate.SiteLabel,
		Plugin: func(args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, filepath.Join(shared.Programs, "kubectl-grid"),
				append(args, "--kubeconfig="+shared.Kubeconfig())...)
		},
		Node: func(name string) workload.Source { return shared.Node(name) }}
}

// serviceGrid makes a ServiceGrid of the echo pods, and returns its Service.
func (p *pages) serviceGrid(name, spec string) *corev1.Service {
	p.Helper()
	p.Shell(fmt.Sprintf(`kubectl apply -f - <<'END'
{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: %s, namespace: default},
spec: {gridUniqKey: %s, template: {selector: {app: echo}, ports: [{port: %d}]%s}}}
END`, name, operate.SiteLabel, workload.Port, spec))
	var service *corev1.Service
	p.Eventually("the Service of ServiceGrid "+name+" is there", func() (err error) {
		service, err = p.Client.CoreV1().Services(metav1.NamespaceDefault).Get(p.Context(), name+"-svc",
			metav1.GetOptions{})
		return err
	})
	return service
}

// judgeServices has all commands speak of a Service with sessionAffinity, and of one while an edge node has lost the
// label of its site.
func (p *pages) judgeServices() {
	j := p.judge()
	j.Expect(verdict.Case{Name: "sessionAffinity", Grid: "sticky",
		Service: p.serviceGrid("sticky", ", sessionAffinity: ClientIP"),
		Reach:   map[string]string{cloud0v4: "cloud0 or node0 or node1", node0v4: "node0", node1v4: "node1"},
		Cells:   both, Proof: 1, Rows: map[string]string{node0v4: sticks, node1v4: sticks}})

	well := verdict.Case{Name: "the node has it again", Grid: "plain", Service: p.serviceGrid("plain", ""),
		Reach: map[string]string{cloud0v4: all, node0v4: "node0", node1v4: "node1"}, Cells: both,
		Rows: map[string]string{node0v4: kept, node1v4: kept}}
	// Every node has the key of another Service.
	_, err := workload.In(p.Client, metav1.NamespaceDefault).CreateService(p.Context(), "own",
		workload.ServiceOptions{TopologyKeys: []string{corev1.LabelHostname}, Workload: "echo"})
	p.Must(err)
	p.Pause("node1")
	p.Shell("kubectl label node node1 " + operate.SiteLabel + "-")
	lost := well
	lost.Name, lost.Code, lost.Proof, lost.Says = "a node without the label of its site", 3, 3, "Node node1: "
	lost.Reach = map[string]string{cloud0v4: all, node0v4: "node0", node1v4: ""}
	lost.Cells, lost.Rows = map[string]string{"east": own}, map[string]string{node0v4: kept}
	j.Expect(lost)
	p.Shell("kubectl label node node1 " + operate.SiteLabel + "=west") // as the action says
	j.Expect(well)
	p.Shell("kubectl delete service own\nkubectl delete servicegrids sticky plain")
	p.Expect("node1", "node1")
	p.check(closed)
}

// judgeFamilies has all commands speak of a Service of both families while the pods of node0 have only IPv4, and then
// both.
func (p *pages) judgeFamilies() {
	j := p.judge()
	lacking := verdict.Case{Name: "a site without an endpoint of IPv6", Grid: "dual",
		Service: p.serviceGrid("dual", ", ipFamilyPolicy: RequireDualStack"),
		Reach: map[string]string{cloud0v4: all, cloud0v6: "cloud0 node1", node0v4: "node0", node0v6: "",
			node1v4: "node1", node1v6: "node1"},
		Code: 3, Says: "1 of 2 sites have no ready endpoint (TCP over IPv6): east",
		Cells: map[string]string{"east": "none failure", "west": own}, Proof: 3,
		Rows: map[string]string{node0v4: kept, node0v6: refused, node1v4: kept, node1v6: kept}}
	j.Expect(lacking)

	p.Pause("node0")
	p.Pause("cloud0")
	p.Must(shared.Node("node0").SetPodFamilies(true))
	p.Shell("kubectl delete pods -l app=echo --field-selector=spec.nodeName=node0")
	well := lacking
	well.Name, well.Code, well.Proof, well.Says, well.Cells = "both families in both sites", 0, 0, "", both
	well.Reach, well.Rows = maps.Clone(lacking.Reach), maps.Clone(lacking.Rows)
	well.Reach[cloud0v6], well.Reach[node0v6], well.Rows[node0v6] = all, "node0", kept
	j.Expect(well)
	p.Shell("kubectl delete servicegrid dual")
	p.Expect("node0", "node0")
	p.Expect("cloud0", operate.Everybody...)
	p.check(closed)
}

// judgeHub installs a hub as its page says, and has all commands speak while the wrappers use it, while none of its
// pods runs, and after it was removed. Connections stay in their sites all the time.
func (p *pages) judgeHub() {
	const within = " --timeout=2m"
	const rollout = "\nkubectl apply -k edge\n" +
		"kubectl -n kube-system rollout status daemonset application-grid-wrapper" + within
	p.Must(shared.ControlPlane().Import(p.Context(), filepath.Join(shared.Images, "application-grid-hub.tar")))
	manual := p.Reading("hub.md")
	const install = "## Install it"
	p.Shell(strings.TrimSpace(manual.Commands(install, "kubectl apply -k hub")) + within) // kubectl wait is its last
	p.Shell("cp edge/kustomization.yaml without-hub.yaml\ncat >> edge/kustomization.yaml <<'END'\n" +
		manual.YAML(install, "--hub") + "END" + rollout)

	j := p.judge()
	through := verdict.Case{Name: "through a hub", Grid: "plain", Service: p.serviceGrid("plain", ""),
		Reach: map[string]string{cloud0v4: all, node0v4: "node0", node1v4: "node1"}, Cells: both,
		Rows: map[string]string{node0v4: kept, node1v4: kept}}
	j.Expect(through)

	p.Shell(`kubectl -n kube-system patch deployment application-grid-hub --patch '{"spec": {
		"strategy": {"type": "Recreate", "rollingUpdate": null},
		"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}}}}'`)
	away := through
	away.Name, away.Code, away.Proof, away.Says = "the hub is dead", 3, 3, "none of its pods is available"
	away.Cells = map[string]string{"east": verdict.Unknown, "west": verdict.Unknown}
	j.Expect(away)
	since := away
	since.Name, since.Grid, since.Service = "a Service since then", "since", p.serviceGrid("since", "")
	since.Reach = map[string]string{cloud0v4: all, node0v4: "", node1v4: ""}
	since.Rows = map[string]string{node0v4: unproved, node1v4: unproved}
	j.Expect(since)

	p.Shell("cp without-hub.yaml edge/kustomization.yaml" + rollout)
	manual.Follow("## Remove it", "kubectl delete -k hub")
	after := through
	after.Name, after.Grid, after.Service = "without a hub again", since.Grid, since.Service
	j.Expect(after)
	p.Shell("kubectl delete servicegrids plain since")
	p.check(closed)
}
