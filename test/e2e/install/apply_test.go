package install

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/proxy"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// TestInstallAndRemove goes through docs/kubeadm.md on a cluster with kubeadm's kube-proxy: labelled nodes have
// what they should, the others what they had, and in the end there is what there was in the beginning. The pods
// are kwok's: what runs in them is shown by TestPermissions and the other packages.
func TestInstallAndRemove(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, Nodes: []cluster.NodeSpec{
		{Name: "edge1", Labels: map[string]string{v1.LabelEdgeNode: "true"}},
		{Name: "edge2", Labels: map[string]string{v1.LabelEdgeNode: "true"}}, {Name: "cloud1"},
	}})
	// The embedded cluster's programs have their roles from the start.
	f.kubectl("delete", "-k", filepath.Join(manifests, "kubeadm"), "--ignore-not-found")
	f.writeKubeadmsKubeProxy("apply")
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	before, err := f.inventory()
	f.Must(err)

	f.kubectl("apply", "-k", filepath.Join(manifests, "crds"), "--validate=strict")
	overlay := f.overlay("kubeadm")
	f.kubectl("apply", "-k", overlay, "--validate=strict")
	for _, app := range []string{"application-grid-wrapper", "statefulset-grid-daemon"} {
		f.expectPods(app, "app", "edge1 edge2")
	}
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2") // kube-proxy-edge waits for them to go
	f.expectControllers()
	f.expectPods("application-grid-controller", "app", "cloud1 cloud1") //nolint:dupword // both, and none at an edge
	f.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--patch-file",
		filepath.Join(manifests, "kubeadm", "kube-proxy-away.yaml"))
	// kwok's pods of the controller label no nodes; the real one does.
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	controller := f.moveKubeProxy()

	f.applyAgain(overlay)
	f.expectRefusals()
	f.remove(controller, overlay, before)

	f.kubectl("label", "nodes", "edge1", "edge2", v1.LabelEdgeNode+"=true")
	f.kubectl("apply", "-k", f.overlay("k3s"), "--validate=strict")
	f.expectPods("application-grid-wrapper", "app", "edge1 edge2")
	f.kubectl("label", "nodes", "--all", v1.LabelEdgeNode+"-")
	f.kubectl("delete", "-k", f.overlay("k3s"))
	f.expectInventory(before)
}

// moveKubeProxy starts a controller that moves kube-proxy, and labels nodes, of which each has what it should.
func (f *fixture) moveKubeProxy() *cluster.Controller {
	f.Helper()
	controller, err := f.Cluster.NewController(f.ctx, "moving", suite.Binary(f.T, "application-grid-controller"),
		"--move-kube-proxy")
	f.Must(err)
	f.Must(controller.Start(f.ctx))
	f.Cleanup(controller.Kill)
	f.expectPods("kube-proxy", "k8s-app", "cloud1")
	f.awaitPolicy()
	f.writeKubeadmsKubeProxy("replace") // as an upgrade does: the policy puts the affinity back
	f.expectPods("kube-proxy", "k8s-app", "cloud1")
	f.waitForWrapper()
	f.expectPods("kube-proxy", "k8s-app", "")
	f.expectPods("kube-proxy-edge", "app", "cloud1 edge1 edge2")
	f.kubectl("label", "node", "cloud1", v1.LabelEdgeNode+"-")
	f.expectPods("kube-proxy", "k8s-app", "cloud1")
	f.expectPods("application-grid-wrapper", "app", "edge1 edge2")
	f.kubectl("label", "node", "cloud1", v1.LabelEdgeNode+"=systemd") // the wrapper is no pod
	f.expectPods("kube-proxy", "k8s-app", "")
	f.expectPods("kube-proxy-edge", "app", "cloud1 edge1 edge2")
	f.expectPods("application-grid-wrapper", "app", "edge1 edge2")
	f.kubectl("label", "node", "cloud1", v1.LabelEdgeNode+"-")
	return controller
}

// expectControllers waits until both replicas of the controller are available.
func (f *fixture) expectControllers() {
	f.Helper()
	f.Eventually("both controllers are available", func() error {
		d, err := f.client.AppsV1().Deployments("kube-system").Get(f.ctx, "application-grid-controller",
			metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != 2 {
			err = fmt.Errorf("%d are: %+v", d.Status.AvailableReplicas, d.Status.Conditions)
		}
		return err
	})
}

// applyAgain applies the overlay a second time, which changes nothing.
func (f *fixture) applyAgain(overlay string) {
	f.Helper()
	for line := range strings.Lines(f.kubectl("apply", "-k", overlay, "--validate=strict")) {
		// kubectl sends the selector of a PodDisruptionBudget always: it cannot be merged.
		if !strings.HasSuffix(strings.TrimSpace(line), " unchanged") &&
			!strings.HasPrefix(line, "poddisruptionbudget.policy/") {
			f.Errorf("applied again: %s", line)
		}
	}
}

// expectRefusals expects that nobody deletes a DaemonSet while there are edge nodes, and that the controller may change
// one label of a node, and nothing else.
func (f *fixture) expectRefusals() {
	f.Helper()
	for _, set := range []string{"application-grid-wrapper", "kube-proxy-edge"} {
		_, err := f.tryKubectl("", "-n", "kube-system", "delete", "daemonset", set)
		if err == nil || !strings.Contains(err.Error(), "kubectl label nodes --all superedge.io/application-grid-") {
			f.Errorf("%s may be deleted while there are edge nodes: %v", set, err)
		}
	}
	config := rest.CopyConfig(f.Cluster.RESTConfig())
	config.Impersonate.UserName = "system:serviceaccount:kube-system:application-grid-controller"
	asController, err := kubernetes.NewForConfig(config)
	f.Must(err)
	for patch, allowed := range map[string]bool{
		`{"metadata":{"labels":{"superedge.io/kube-proxy":"edge"}}}`: true, `{"metadata":{"labels":{"zone1":"a"}}}`: false,
		`{"spec":{"unschedulable":true}}`: false, `{"metadata":{"annotations":{"a":"b"}}}`: false,
	} {
		_, err := asController.CoreV1().Nodes().Patch(f.ctx, "edge1", types.MergePatchType, []byte(patch),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if (err == nil) != allowed || err != nil && !strings.Contains(err.Error(), "only the label superedge.io/kube-proxy") {
			f.Errorf("a patch of the controller's, %s, is answered with %v", patch, err)
		}
	}
}

// remove removes all, as the page says, after which there is what there was before.
func (f *fixture) remove(controller *cluster.Controller, overlay string, before map[string]int) {
	f.Helper()
	f.kubectl("label", "nodes", "--all", v1.LabelEdgeNode+"-")
	f.expectPods("kube-proxy-edge", "app", "")
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	f.Eventually("no node has the controller's label",
		suite.Is("", func() string { return f.kubectl("get", "nodes", "-l", v1.LabelKubeProxy, "-o", "name") }))
	controller.Kill()
	f.kubectl("-n", "kube-system", "rollout", "restart", "deployment", "application-grid-controller")
	f.expectPods("application-grid-controller", "app", "cloud1 edge1", "cloud1 edge2", "edge1 edge2") // none is an edge node now: not on one
	f.kubectl("delete", "-k", overlay)
	f.deleteCRDs("-k", filepath.Join(manifests, "crds"))
	f.Eventually("kubeadm's kube-proxy has no affinity", func() error { // the policy that is gone may count for a while
		f.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--patch-file",
			filepath.Join(manifests, "kubeadm", "kube-proxy-back.yaml"))
		if left := f.kubectl("-n", "kube-system", "get", "daemonset", "kube-proxy", "-o",
			"jsonpath={.spec.template.spec.affinity}"); left != "" {
			return fmt.Errorf("it has %s", left)
		}
		return nil
	})
	if strategy := f.kubectl("-n", "kube-system", "get", "daemonset", "kube-proxy", "-o",
		"jsonpath={.spec.updateStrategy.type}"); strategy != "RollingUpdate" {
		f.Errorf("the update strategy of kubeadm's kube-proxy is %s", strategy)
	}
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	f.expectInventory(before)
}

// waitForWrapper labels node cloud1, on which the wrapper cannot start at first: kubeadm's kube-proxy stays there until
// it has.
func (f *fixture) waitForWrapper() {
	f.Helper()
	const away = `{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":` +
		`{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"NotIn","values":["cloud1"]}]}]}}}}}}}`
	f.kubectl("-n", "kube-system", "patch", "daemonset", "application-grid-wrapper", "-p", away)
	f.kubectl("label", "node", "cloud1", v1.LabelEdgeNode+"=true")
	f.expectPods("statefulset-grid-daemon", "app", "cloud1 edge1 edge2")
	for range 10 { // longer than the controller takes to look again
		time.Sleep(time.Second)
		f.expectPods("kube-proxy", "k8s-app", "cloud1")
		f.expectPods("kube-proxy-edge", "app", "edge1 edge2")
	}
	f.kubectl("-n", "kube-system", "patch", "daemonset", "application-grid-wrapper", "-p",
		`{"spec":{"template":{"spec":{"affinity":null}}}}`)
}

// deleteCRDs deletes the CRDs of kubectl's arguments, and waits until the cluster has none. kube-apiserver sometimes
// fails to remove the (no) objects of a CRD, InstanceDeletionFailed, and looks at it again only five minutes later, or
// when the CRD changes.
func (f *fixture) deleteCRDs(these ...string) {
	f.Helper()
	f.kubectl(slices.Concat([]string{"delete", "--wait=false"}, these)...)
	crds := suite.Dynamic(f, f.Cluster.RESTConfig()).Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	begin := time.Now()
	f.Eventually("the CRDs are gone", func() error {
		left, err := crds.List(f.ctx, metav1.ListOptions{})
		if err != nil || len(left.Items) == 0 {
			return err
		}
		if time.Since(begin) > 5*time.Second {
			begin = time.Now()
			for _, crd := range left.Items {
				f.Logf("%s is left, with %v", crd.GetName(), crd.Object["status"])
				patch := fmt.Sprintf(`{"metadata": {"annotations": {"looked-at": %q}}}`, begin)
				if _, err := crds.Patch(f.ctx, crd.GetName(), types.MergePatchType, []byte(patch),
					metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
					return err
				}
			}
		}
		return fmt.Errorf("%d are left", len(left.Items))
	})
}

// overlay is a kustomization of a user's own, as docs/kubeadm.md has it.
func (f *fixture) overlay(directory string) string {
	f.Helper()
	return writeKustomization(f.T, kustomizationHead+"resources: [../manifests/"+directory+"]"+images, nil)
}

// writeKubeadmsKubeProxy applies kubeadm's own templates.
func (f *fixture) writeKubeadmsKubeProxy(verb string) {
	f.Helper()
	for _, manifest := range []string{
		kubeadms(f.T, kubeadm.KubeProxyConfigMap19), kubeadms(f.T, kubeadm.KubeProxyDaemonSet19),
		"{kind: ServiceAccount, apiVersion: v1, metadata: {name: kube-proxy, namespace: kube-system}}",
	} {
		_, err := f.tryKubectl(manifest, verb, "-f", "-")
		f.Must(err)
	}
}

// kubeadms is what kubeadm makes of one of its templates.
func kubeadms(t *testing.T, text string) string {
	t.Helper()
	var manifest strings.Builder
	suite.Must(t, template.Must(template.New("").Parse(text)).Execute(&manifest, map[string]string{
		"ProxyConfigMap": "kube-proxy", "ProxyConfigMapKey": "config.conf",
		"Image":                "registry.k8s.io/kube-proxy:v1.37.1",
		"ControlPlaneEndpoint": "https://192.0.2.1:6443",
		"ProxyConfig":          "    kind: KubeProxyConfiguration\n    clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}",
	}))
	return manifest.String()
}

// awaitPolicy waits until the policy for kubeadm's kube-proxy is in effect. kube-apiserver compiles what is applied a
// second later or two; what is written before that stays as it is written.
func (f *fixture) awaitPolicy() {
	f.Helper()
	sets := f.client.AppsV1().DaemonSets("kube-system")
	f.Eventually("the policy adds an affinity", func() error {
		set, err := sets.Get(f.ctx, "kube-proxy", metav1.GetOptions{})
		if err != nil {
			return err
		}
		set.Spec.Template.Spec.Affinity = nil
		set, err = sets.Update(f.ctx, set, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && set.Spec.Template.Spec.Affinity == nil {
			err = errors.New("there is none")
		}
		return err
	})
}

// expectPods waits until the pods of an app are on exactly one of these sets of nodes, and run.
func (f *fixture) expectPods(app, label string, nodes ...string) {
	f.Helper()
	f.Eventually(fmt.Sprintf("%s runs on %q", app, nodes), func() error {
		pods, err := f.client.CoreV1().Pods("kube-system").List(f.ctx,
			metav1.ListOptions{LabelSelector: label + "=" + app})
		if err != nil {
			return err
		}
		var got []string
		for _, pod := range pods.Items {
			if pod.Status.Phase != "Running" {
				return fmt.Errorf("pod %s on %s is %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
			}
			got = append(got, pod.Spec.NodeName)
		}
		slices.Sort(got)
		if !slices.Contains(nodes, strings.Join(got, " ")) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// inventory is all that is in the cluster, by kind, namespace and name; of names that the API server made, what
// they begin with. Events, which end by themselves, and the past versions of workloads are left out.
func (f *fixture) inventory() (map[string]int, error) {
	f.Helper()
	lists, err := f.client.Discovery().ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	client := suite.Dynamic(f, f.Cluster.RESTConfig())
	inventory := map[string]int{}
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		f.Must(err)
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || resource.Name == "events" ||
				resource.Name == "controllerrevisions" {
				continue
			}
			objects, err := client.Resource(group.WithResource(resource.Name)).List(f.ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err // discovery may still name what is gone
			}
			for _, object := range objects.Items {
				name := object.GetName()
				if generated := object.GetGenerateName(); generated != "" {
					name = generated + "*"
				}
				inventory[fmt.Sprintf("%s %s/%s", resource.Name, object.GetNamespace(), name)]++
			}
		}
	}
	if len(inventory) < 50 {
		f.Fatalf("an inventory of %d objects is not that of a cluster", len(inventory))
	}
	return inventory, nil
}

// expectInventory waits until there is again what there was.
func (f *fixture) expectInventory(before map[string]int) {
	f.Helper()
	f.Eventually(fmt.Sprintf("nothing is left beside the %d objects that were there", len(before)), func() error {
		now, err := f.inventory()
		if err != nil {
			return err
		}
		var differences []string
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if now[name] != before[name] {
				differences = append(differences, fmt.Sprintf("%s: %d, was %d", name, now[name], before[name]))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(before)) {
			if now[name] == 0 {
				differences = append(differences, name+": gone")
			}
		}
		if len(differences) > 0 {
			return fmt.Errorf("%s", strings.Join(differences, "; "))
		}
		return nil
	})
}
