package install

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const siteLabel = "zone1"

// unusedForAReason are permissions that no request of this run uses, and why they are given.
var unusedForAReason = excused([]excuse{
	{cluster.RoleController, "superedge.io", "deploymentgrids/finalizers statefulsetgrids/finalizers " +
		"daemonsetgrids/finalizers servicegrids/finalizers", "update", ownersChecked},
	{cluster.RoleController, "", "services", "delete", ownersChecked},
	{cluster.RoleController, "apps", "replicasets", "list",
		"is for sites that fall silent with a change; test/e2e/grid shows that it is enough"},
	{cluster.RoleHub, "", "nodes services", "list watch", usedByTheHub},
	{cluster.RoleHub, "discovery.k8s.io", "endpointslices", "list watch", usedByTheHub},
	{cluster.RoleHub, "", "secrets", "get update patch create", usedByTheHub},
	{cluster.RoleHub, "apiregistration.k8s.io", "apiservices", "get patch", usedByTheHub},
	{cluster.RoleWrapper, "hub.superedge.io", "shares", "watch get", usedByTheHub},
})

const (
	usedByTheHub  = "is for clusters with a hub; test/e2e/hub shows that it is enough, and used there"
	ownersChecked = "is asked for by the admission plugin OwnerReferencesPermissionEnforcement, not by a request"
)

// excuse is a reason for verbs on resources.
type excuse struct {
	role                            cluster.Role
	group, resources, verbs, reason string
}

func excused(all []excuse) map[permission]string {
	reasons := map[permission]string{}
	for _, e := range all {
		for _, resource := range strings.Fields(e.resources) {
			for _, verb := range strings.Fields(e.verbs) {
				reasons[permission{e.role, e.group, resource, verb}] = e.reason
			}
		}
	}
	return reasons
}

// permission is one verb on one resource, with the subresource after a slash.
type permission struct {
	role                  cluster.Role
	group, resource, verb string
}

func (p permission) String() string {
	account := p.role[strings.LastIndex(string(p.role), ":")+1:]
	return fmt.Sprintf("%s: %s %s.%s", account, p.verb, p.resource, p.group)
}

// TestPermissions: with the shipped roles everything works, no request is refused, and no permission is left over.
func TestPermissions(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{
		DNSFromAPIServer: true, AuditLog: true,
		Nodes: []cluster.NodeSpec{
			{Name: "a1", Labels: map[string]string{siteLabel: "site-a"}, Protocol: cluster.WatchList},
			{Name: "b1", Labels: map[string]string{siteLabel: "site-b"}, Protocol: cluster.ListThenWatch},
		},
	}, "application-grid-wrapper", "statefulset-grid-daemon")
	controller, err := f.Cluster.NewController(f.ctx, "shipped", suite.Binary(t, "application-grid-controller"),
		"--site-removal-grace=1s")
	f.Must(err)
	f.Must(controller.Start(f.ctx))
	t.Cleanup(controller.Kill)

	f.useGrids()
	f.useNames()
	f.useShippedKubeProxy()
	f.useDelegatedIdentity()
	f.stall()
	f.rollOut()
	f.loseSite()
	f.doWithoutStreaming(controller)
	f.checkPermissions()
}

const podTemplate = `{replicas: 1, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: c}]}}}`

// useGrids has the controller create and change every kind of child.
func (f *fixture) useGrids() {
	f.Helper()
	daemons := strings.Replace(podTemplate, "replicas: 1, ", "", 1)
	set := strings.Replace(podTemplate, "{", "{serviceName: db-svc, ", 1)
	grid := func(kind, name, template string) string {
		unused := ""
		if kind != "ServiceGrid" {
			unused = ", autoDeleteUnusedTemplate: true, templatePool: {unused: " + template + "}"
		}
		return "{apiVersion: superedge.io/v1, kind: " + kind + ", metadata: {name: " + name +
			"}, spec: {gridUniqKey: zone1, template: " + template + unused + "}}\n---\n"
	}
	grids := func(name string) string {
		return grid("DeploymentGrid", name, podTemplate) + grid("DaemonSetGrid", name, daemons) +
			grid("StatefulSetGrid", name, set) +
			grid("ServiceGrid", name, "{selector: {app: x}, ports: [{port: 8080}]}")
	}
	// What has a grid's label is adopted, what has not is a conflict, twice; before both, the controller looks on the
	// API server itself.
	for name, labels := range map[string]string{"taken": "",
		"adopted": ", labels: {superedge.io/grid-selector: adopted, superedge.io/grid-uniq-key: zone1}"} {
		for kind, template := range map[string]string{"Deployment": podTemplate, "DaemonSet": daemons,
			"StatefulSet": set} {
			for _, site := range []string{"site-a", "site-b"} {
				f.Must(f.apply("{apiVersion: apps/v1, kind: " + kind + ", metadata: {name: " + name + "-" + site +
					labels + "}, spec: " + template + "}"))
			}
		}
		f.Must(f.apply("{apiVersion: v1, kind: Service, metadata: {name: " + name + "-svc" + labels +
			"}, spec: {ports: [{port: 80}]}}"))
	}
	// Two events with one reason about one revision of a grid: the second becomes a series, by a patch of the first.
	uid := f.kubectl("get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.metadata.uid}")
	f.kubectl("patch", "deployment", "taken-site-b", "--type=merge", "-p",
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "uid": "`+uid+`", "controller": true}]}}`)
	f.Must(f.apply(grids("web") + grid("StatefulSetGrid", "db", set) +
		grid("ServiceGrid", "db", "{selector: {app: x}, ports: [{port: 8080}]}") + grids("taken") + grids("adopted")))
	f.Eventually("two sites of every grid are ready", func() error {
		for _, grid := range []string{
			"deploymentgrids/web", "daemonsetgrids/web", "statefulsetgrids/web", "statefulsetgrids/db",
			"deploymentgrids/adopted", "daemonsetgrids/adopted", "statefulsetgrids/adopted",
		} {
			if err := f.prints("2", grid, "{.status.readySites}")(); err != nil {
				return err
			}
		}
		return nil
	})
	for _, grid := range []string{"deploymentgrid/web", "daemonsetgrid/web", "statefulsetgrid/db"} {
		f.kubectl("patch", grid, "--type=merge", "-p",
			`{"spec": {"template": {"template": {"metadata": {"annotations": {"changed": "yes"}}}}}}`)
	}
	f.kubectl("patch", "servicegrid/db", "--type=merge", "-p", `{"spec": {"template": {"ports": [{"port": 8081}]}}}`)
	f.Eventually("the children have followed", func() error {
		for _, child := range []string{"deployment/web-site-a", "daemonset/web-site-b", "statefulset/db-site-a"} {
			if err := f.prints("yes", child, "{.spec.template.metadata.annotations.changed}")(); err != nil {
				return err
			}
		}
		return f.prints("8081", "service/db-svc", "{.spec.ports[0].port}")()
	})
}

// apply applies manifests; their schema is there as soon as the controller is ready.
func (f *fixture) apply(manifests string) error {
	_, err := f.tryKubectl(manifests, "apply", "-f", "-")
	return err
}

// useNames asks each node's CoreDNS for what the daemon wrote.
func (f *fixture) useNames() {
	f.Helper()
	for _, node := range f.Cluster.Nodes() {
		f.Eventually("db-0 has its address on "+node.Spec.Name, func() error {
			addresses, err := node.Lookup(f.ctx, "db-0.db-svc.default.svc.cluster.local", "A")
			if err == nil && len(addresses) != 1 {
				err = fmt.Errorf("got %v", addresses)
			}
			return err
		})
	}
}

// useShippedKubeProxy runs kube-proxy-edge's command line, with a configuration as kubeadm's and the kubeconfig that is
// shipped for it.
func (f *fixture) useShippedKubeProxy() {
	f.Helper()
	node := f.Node("b1")
	dir := f.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig.conf")
	f.Must(os.WriteFile(filepath.Join(dir, "config.conf"), []byte(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0}
healthzBindAddress: 127.0.0.1:10256
clientConnection: {kubeconfig: `+kubeconfig+`}
`), 0o600))
	var command []string
	for _, document := range render(f.T, "kubeadm") {
		var shipped corev1.ConfigMap
		f.Must(yaml.Unmarshal([]byte(document), &shipped))
		if shipped.Kind == "ConfigMap" && shipped.Name == "kube-proxy-edge" {
			f.Must(os.WriteFile(kubeconfig, []byte(shipped.Data["kubeconfig.conf"]), 0o600))
		}
		if _, name, template := podOf(f.T, document); name == "kube-proxy-edge" {
			command = template.Spec.Containers[0].Command
		}
	}
	args := []string{"kube-proxy"}
	for _, arg := range command[1:] {
		args = append(args, strings.NewReplacer("/var/lib/kube-proxy", dir, "$(NODE_NAME)", "b1").Replace(arg))
	}
	node.KubeProxy.SetArgs(args)
	f.Must(node.KubeProxy.Restart(f.ctx))

	f.Must(workload.In(f.client, "default").CreateDaemonSet(f.ctx, "echo"))
	service, err := workload.In(f.client, "default").CreateService(f.ctx, "echo",
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	f.Must(err)
	f.Eventually("b1 reaches its own site by the shipped command line", func() error {
		if got := workload.Reach(f.ctx, node, service, 10).Nodes(); !slices.Equal(got, []string{"b1"}) {
			return fmt.Errorf("it reaches %v", got)
		}
		return nil
	})
}

// useDelegatedIdentity asks the wrapper, as kube-proxies without credentials do, for what it does in its own name.
func (f *fixture) useDelegatedIdentity() {
	f.Helper()
	node := f.Node("a1")
	config := node.WrapperConfig(cluster.RoleNobody)
	config.BearerToken = ""
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
	regarding := corev1.ObjectReference{Kind: "Node", Name: "a1", Namespace: "default"}
	oldPatch, newPatch := []byte(`{"count": 2}`), []byte(`{"series": {"count": 2, "lastObservedTime": "2030-01-01T00:00:00.000000Z"}}`)

	_, err = client.CoreV1().Events("default").Create(f.ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "old-style"}, InvolvedObject: regarding, Reason: "Starting",
		Type: corev1.EventTypeNormal,
	}, metav1.CreateOptions{})
	f.Must(err)
	_, err = client.CoreV1().Events("default").Patch(f.ctx, "old-style", types.MergePatchType, oldPatch,
		metav1.PatchOptions{})
	f.Must(err)
	_, err = client.EventsV1().Events("default").Create(f.ctx, &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "new-style"}, Regarding: regarding, Reason: "Starting", Action: "Starting",
		Type:      corev1.EventTypeNormal,
		EventTime: metav1.NowMicro(), ReportingController: "kube-proxy", ReportingInstance: "kube-proxy-a1",
	}, metav1.CreateOptions{})
	f.Must(err)
	_, err = client.EventsV1().Events("default").Patch(f.ctx, "new-style", types.MergePatchType, newPatch,
		metav1.PatchOptions{})
	f.Must(err)
	_, err = client.NetworkingV1().ServiceCIDRs().List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	_, err = client.NetworkingV1().ServiceCIDRs().Get(f.ctx, "kubernetes", metav1.GetOptions{})
	f.Must(err)
	watch, err := client.NetworkingV1().ServiceCIDRs().Watch(f.ctx,
		metav1.ListOptions{TimeoutSeconds: ptr.To[int64](1)})
	f.Must(err)
	watch.Stop()
	// The first who asks makes the wrapper follow them.
	f.Eventually("legacy Endpoints are served", func() error {
		_, err := client.CoreV1().Endpoints("default").List(f.ctx, metav1.ListOptions{})
		return err
	})
	f.Eventually("namespaces are served", func() error {
		_, err := client.CoreV1().Namespaces().List(f.ctx, metav1.ListOptions{})
		return err
	})
}

// loseSite has the controller remove the children of a site without nodes.
func (f *fixture) loseSite() {
	f.Helper()
	f.Must(f.Cluster.RelabelNode(f.ctx, "b1", siteLabel, ""))
	f.Eventually("the site's workloads are removed", func() error {
		out, err := f.tryKubectl("", "get", "deployments,statefulsets,daemonsets", "-o", "name")
		if err == nil && (strings.Contains(out, "web-site-b") || strings.Contains(out, "db-site-b")) {
			err = fmt.Errorf("there are %s", out)
		}
		return err
	})
}

// rollOut has the controller make, go back to, and delete revisions, and check them.
func (f *fixture) rollOut() {
	f.Helper()
	const waves = "{waves: [{name: all, check: {template: {template: {metadata: {labels: {check: rolled}}, spec: {containers: [{name: c, image: c}]}}}}}]}"
	for i, image := range []string{"one", "two", "one", "three", "four"} {
		template, limit := strings.Replace(podTemplate, "image: c", "image: "+image, 1), "5"
		if image == "four" {
			limit = "0"
		}
		f.Must(f.apply("{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: rolled}, spec: {gridUniqKey: zone1, revisionHistoryLimit: " + limit + ", rollout: " + waves + ", template: " + template + "}}"))
		f.Eventually(fmt.Sprintf("change %d is rolled out", i), f.prints(fmt.Sprintf("%d %[1]d Complete", i+1),
			"deploymentgrid/rolled", "{.metadata.generation} {.status.observedGeneration} {.status.rollout.phase}"))
	}
}

// stall has the controller look at the pods of a site that makes no progress.
func (f *fixture) stall() {
	f.Helper()
	template := strings.Replace(podTemplate, "spec: {containers", "spec: {nodeSelector: {absent: here}, containers", 1)
	f.Must(f.apply("{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: stuck}, spec: {gridUniqKey: zone1, progressDeadlineSeconds: 1, template: " + template + "}}"))
	f.Eventually("a stalled site is told with the reason of a pod", func() error {
		out, err := f.tryKubectl("", "get", "deploymentgrid/stuck", "-o",
			`jsonpath={.status.conditions[?(@.type=="Stalled")].message}`)
		if err == nil && !strings.Contains(out, "Unschedulable") {
			err = fmt.Errorf("got %q", out)
		}
		return err
	})
}

// doWithoutStreaming restarts the controller as it is with an API server that does not stream lists.
func (f *fixture) doWithoutStreaming(controller *cluster.Controller) {
	f.Helper()
	// An older CRD is there, and no Lease.
	f.kubectl("annotate", "crd", "daemonsetgrids.superedge.io", "superedge.io/crd-version=1", "--overwrite")
	f.Must(controller.Stop())
	f.kubectl("delete", "lease", "application-grid-controller", "-n", "kube-system")
	controller.AddEnv("KUBE_FEATURE_WatchListClient=false")
	f.Must(controller.Restart(f.ctx))
}

// checkPermissions compares the audit log with the shipped roles.
func (f *fixture) checkPermissions() {
	f.Helper()
	granted := f.granted()
	roles := map[string]bool{string(cluster.RoleKubeProxy): true}
	for p := range granted {
		roles[string(p.role)] = true
	}
	var used map[permission]int
	f.Eventually("all permissions have been used", func() error { // the last of them by what is still starting
		requests, err := f.Cluster.Audited(0, func(r cluster.Request) bool { return roles[r.User.Username] })
		f.Must(err)
		used = f.used(requests)
		for p := range granted {
			if used[p] == 0 && unusedForAReason[p] == "" && !f.Failed() {
				return fmt.Errorf("never used: %s", p)
			}
		}
		return nil
	})
	for _, p := range slices.SortedFunc(maps.Keys(granted),
		func(a, b permission) int { return strings.Compare(a.String(), b.String()) }) {
		reason := unusedForAReason[p]
		if used[p] > 0 && reason != "" {
			f.Errorf("%s is used, and excused because it %s", p, reason)
		}
		f.Logf("%6d  %s %s", used[p], p, reason)
	}
	for p, reason := range unusedForAReason {
		if !granted[p] {
			f.Errorf("%s is not granted, and excused because it %s", p, reason)
		}
	}
}

// used counts what the requests needed. One that was refused fails the test.
func (f *fixture) used(requests []cluster.Request) map[permission]int {
	f.Helper()
	used := map[permission]int{}
	for _, r := range requests {
		if r.ResponseStatus.Code == http.StatusForbidden || r.ResponseStatus.Code == http.StatusUnauthorized {
			f.Errorf("refused: %s: %s", r.User.Username, r)
		}
		resource := r.ObjectRef.Resource
		if r.ObjectRef.Subresource != "" {
			resource += "/" + r.ObjectRef.Subresource
		}
		p := permission{cluster.Role(r.User.Username), r.ObjectRef.APIGroup, resource, r.Verb}
		used[p]++
		if p.verb == "patch" && r.ResponseStatus.Code == http.StatusCreated { // server-side apply of what was not there
			p.verb = "create"
			used[p]++
		}
	}
	return used
}

// granted is every permission of the shipped roles.
func (f *fixture) granted() map[permission]bool {
	f.Helper()
	objects, err := cluster.ShippedRBAC()
	f.Must(err)
	rules := map[string][]rbacv1.PolicyRule{}
	granted := map[permission]bool{}
	bind := func(kind, name string, subjects []rbacv1.Subject) {
		for _, subject := range subjects {
			role := cluster.Role("system:serviceaccount:" + subject.Namespace + ":" + subject.Name)
			for _, rule := range rules[kind+name] {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						for _, verb := range rule.Verbs {
							granted[permission{role, group, resource, verb}] = true
						}
					}
				}
			}
		}
	}
	for _, object := range objects { // the roles stand before their bindings
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			rules["ClusterRole"+o.Name] = o.Rules
		case *rbacv1.Role:
			rules["Role"+o.Name] = o.Rules
		case *rbacv1.ClusterRoleBinding:
			bind(o.RoleRef.Kind, o.RoleRef.Name, o.Subjects)
		case *rbacv1.RoleBinding:
			bind(o.RoleRef.Kind, o.RoleRef.Name, o.Subjects)
		}
	}
	if data, err := json.Marshal(rules); err != nil || strings.Contains(string(data), `"*"`) {
		f.Errorf("a role has a wildcard: %s %v", data, err)
	}
	if len(granted) < 30 {
		f.Fatalf("%d permissions are not all", len(granted))
	}
	return granted
}
