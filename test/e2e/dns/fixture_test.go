package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	// deadline is how long anything may take on a busy machine that is waited for and not measured.
	deadline = 60 * time.Second
	// promise is the time within which DNS follows a change.
	promise = time.Second
	// between is the pause between two looks.
	between = 5 * time.Millisecond

	grid     = "demo"
	service  = "demo-svc"
	replicas = 3
)

var gridsResource = schema.GroupVersionResource{Group: "superedge.io", Version: "v1", Resource: "statefulsetgrids"}

// prepare installs the grids' CRD.
func prepare(ctx context.Context) error {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "crds", "superedge.io_statefulsetgrids.yaml"))
	if err != nil {
		return err
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(data, crd); err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(shared.RESTConfig())
	if err != nil {
		return err
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	if _, err := client.Resource(crds).Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, errors.New("the CRD is not served"))
	defer cancel()
	return await.NoError(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := client.Resource(gridsResource).List(ctx, metav1.ListOptions{})
		return err
	})
}

// fixture is a namespace with a grid in every site.
type fixture struct {
	suite.Test
	ctx       context.Context
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	namespace string
	gridUID   types.UID
	// late is how often DNS followed later than promised.
	late int
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{Test: suite.NewTest(t, shared, deadline, between), ctx: t.Context(), client: shared.Client(),
		dynamic: suite.Dynamic(t, shared.RESTConfig()), namespace: suite.Namespace(t, shared, "dns-")}
}

// resolvable is the patience for a name that could not be resolved before, which CoreDNS caches for 5 s.
var resolvable = await.Patience{Within: 15 * time.Second, Between: between}

// follows measures how long DNS takes to be as asked, once the API server has the change. That has to be as promised;
// once in a test it may take longer, on a machine that has something else to do at the moment.
func (f *fixture) follows(what string, ask func() error) {
	f.Helper()
	took := f.Eventually(what, ask)
	if took > promise {
		f.late++
	}
	if f.late > 1 || took > 3*promise {
		f.Errorf("%s: DNS followed after %s, promised is %s", what, took, promise)
	}
}

// createGrid creates the grid with a set in every site, and its headless Service; and waits until every pod has
// its address.
func (f *fixture) createGrid() {
	f.Helper()
	f.createGridObject()
	f.createService()
	for _, site := range sites {
		f.createSet(site)
	}
	for _, site := range sites {
		f.podAddresses(site, replicas)
	}
}

// east creates the grid, and waits until the node of site east answers with the addresses of that site's pods.
func (f *fixture) east() (node *cluster.Node, addresses []string) {
	f.Helper()
	f.createGrid()
	node, addresses = f.Node("east1"), f.podAddresses("east", replicas)
	f.follows("created", func() error { return f.asSite(node, addresses) })
	return node, addresses
}

// create creates an object. GRID, SERVICE and KEY stand for the constants.
func (f *fixture) create(resource schema.GroupVersionResource, manifest string) *unstructured.Unstructured {
	f.Helper()
	object := &unstructured.Unstructured{}
	fill := strings.NewReplacer("GRID", grid, "SERVICE", service, "KEY", siteLabel, "\t", " ")
	f.Must(yaml.UnmarshalStrict([]byte(fill.Replace(manifest)), &object.Object))
	created, err := f.dynamic.Resource(resource).Namespace(f.namespace).Create(f.ctx, object, metav1.CreateOptions{})
	f.Must(err)
	return created
}

func (f *fixture) createGridObject() {
	f.Helper()
	f.gridUID = f.create(gridsResource, `{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: GRID},
		spec: {gridUniqKey: KEY, template: {serviceName: SERVICE}}}`).GetUID()
}

// createService creates what a ServiceGrid demo makes, with addresses of both families where pods have them.
func (f *fixture) createService() {
	f.Helper()
	f.create(corev1.SchemeGroupVersion.WithResource("services"), `{apiVersion: v1, kind: Service,
		metadata: {name: SERVICE, labels: {superedge.io/grid-selector: GRID, superedge.io/grid-uniq-key: KEY},
			annotations: {topologyKeys: '["KEY"]'}},
		spec: {clusterIP: None, ipFamilyPolicy: PreferDualStack, selector: {app: GRID}, ports: [{port: 8080}]}}`)
}

// createSet creates what the grid makes in a site.
func (f *fixture) createSet(site string) {
	f.Helper()
	f.create(appsv1.SchemeGroupVersion.WithResource("statefulsets"), fmt.Sprintf(`{apiVersion: apps/v1, kind: StatefulSet,
		metadata: {name: GRID-%[1]s, labels: {superedge.io/grid-selector: GRID, superedge.io/grid-uniq-key: KEY},
			ownerReferences: [{apiVersion: superedge.io/v1, kind: StatefulSetGrid, name: GRID, uid: %[2]q, controller: true, blockOwnerDeletion: true}]},
		spec: {replicas: %[3]d, serviceName: SERVICE, podManagementPolicy: Parallel, selector: {matchLabels: {app: GRID}},
			template: {metadata: {labels: {app: GRID}}, spec: {nodeSelector: {KEY: %[1]s},
				containers: [{name: echo, image: echo, ports: [{containerPort: 8080}]}]}}}}`, site, f.gridUID, replicas))
}

// podAddresses waits until a site has this many pods with addresses that are published, and returns these by ordinal.
func (f *fixture) podAddresses(site string, count int) []string {
	f.Helper()
	addresses := make([]string, count)
	f.Eventually("the pods of site "+site+" have addresses", func() error {
		for i := range addresses {
			pod, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, podName(site, i), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if addresses[i] = pod.Status.PodIP; addresses[i] == "" || pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s has no address", pod.Name)
			}
		}
		return nil
	})
	f.published(site, addresses)
	return addresses
}

// published waits until the EndpointSlices of the Service have these pods of a site as ready endpoints, by ordinal, and
// no others. The EndpointSlice controller tries a second later again where its informer was behind, which is no delay
// of DNS.
func (f *fixture) published(site string, addresses []string) {
	f.Helper()
	want := map[string]string{}
	for i, address := range addresses {
		if address != "" {
			want[podName(site, i)] = address
		}
	}
	f.Eventually("the pods of site "+site+" are published", func() error {
		slices, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).List(f.ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if pod := endpoint.TargetRef.Name; slice.AddressType == discoveryv1.AddressTypeIPv4 &&
					strings.HasPrefix(pod, grid+"-"+site+"-") && *endpoint.Conditions.Ready {
					got[pod] = endpoint.Addresses[0]
				}
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("the slices have %v, not %v", got, want)
		}
		return nil
	})
}

func podName(site string, ordinal int) string { return fmt.Sprintf("%s-%s-%d", grid, site, ordinal) }

// name is the name of a site's own pod with this ordinal: the same in every site.
func (f *fixture) name(ordinal int) string {
	return fmt.Sprintf("%s-%d.%s.%s.svc.cluster.local", grid, ordinal, service, f.namespace)
}

// answers checks what a node's CoreDNS answers for a name.
func (f *fixture) answers(node *cluster.Node, name, recordType string, want ...string) error {
	got, err := node.Lookup(f.ctx, name, recordType)
	if err != nil {
		return err
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s %s on node %s: got %v, want %v", recordType, name, node.Spec.Name, got, want)
	}
	return nil
}

// unknown checks that the name does not exist on a node.
func (f *fixture) unknown(node *cluster.Node, name string) error {
	got, err := node.Lookup(f.ctx, name, "A")
	if err == nil {
		return fmt.Errorf("%s on node %s is %v", name, node.Spec.Name, got)
	}
	if !errors.Is(err, cluster.ErrNoSuchName) {
		return err
	}
	return nil
}

// allUnknown checks that no ordinal of the grid exists on a node.
func (f *fixture) allUnknown(node *cluster.Node) error {
	for i := range replicas {
		if err := f.unknown(node, f.name(i)); err != nil {
			return err
		}
	}
	return nil
}

// asSite checks that a node answers with these pods, by ordinal.
func (f *fixture) asSite(node *cluster.Node, addresses []string) error {
	for i, address := range addresses {
		if err := f.answers(node, f.name(i), "A", address); err != nil {
			return err
		}
	}
	return nil
}

// onEveryNode checks all nodes.
func onEveryNode(check func(node *cluster.Node) error) error {
	for _, node := range shared.Nodes() {
		if err := check(node); err != nil {
			return err
		}
	}
	return nil
}

// deleted waits until an object is gone.
func (f *fixture) deleted(what string, get func() error) {
	f.Helper()
	f.Eventually(what+" is gone", func() error {
		err := get()
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errors.New("it is there")
		}
		return err
	})
}

// scale sets the number of a site's pods.
func (f *fixture) scale(site string, count int) {
	f.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, count)
	_, err := f.client.AppsV1().StatefulSets(f.namespace).Patch(f.ctx, grid+"-"+site, types.MergePatchType, patch,
		metav1.PatchOptions{})
	f.Must(err)
}

// deletePod deletes a site's pod, which then stays, terminating, until it is let go.
func (f *fixture) deletePod(site string, ordinal int) {
	f.Helper()
	pods := f.client.CoreV1().Pods(f.namespace)
	_, err := pods.Patch(f.ctx, podName(site, ordinal), types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":["example.org/wait"]}}`), metav1.PatchOptions{})
	f.Must(err)
	f.Must(pods.Delete(f.ctx, podName(site, ordinal), metav1.DeleteOptions{}))
}

// letGo ends a pod that deletePod deleted, and waits for its successor's address.
func (f *fixture) letGo(site string, ordinal int) {
	f.Helper()
	pods := f.client.CoreV1().Pods(f.namespace)
	pod, err := pods.Get(f.ctx, podName(site, ordinal), metav1.GetOptions{})
	f.Must(err)
	f.Eventually("the finalizers are removed", func() error {
		_, err := pods.Patch(f.ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		return err
	})
	f.Eventually("the new pod has an address", func() error {
		now, err := pods.Get(f.ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID == pod.UID || now.Status.PodIP == "" {
			return errors.New("there is no new pod with an address")
		}
		return nil
	})
}

// setAddress gives a pod other addresses: kwok knows IPv4 only, and gives a pod the address of the one before.
func (f *fixture) setAddress(site string, ordinal int, addresses ...string) {
	f.Helper()
	pods := f.client.CoreV1().Pods(f.namespace)
	f.Eventually("the pod's status is written", func() error {
		pod, err := pods.Get(f.ctx, podName(site, ordinal), metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Status.PodIP, pod.Status.PodIPs = addresses[0], nil
		for _, address := range addresses {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: address})
		}
		_, err = pods.UpdateStatus(f.ctx, pod, metav1.UpdateOptions{})
		return err
	})
}

// settled waits until the tests before have left nothing in a node's file: only this one's lines are there.
func (f *fixture) settled(node *cluster.Node) {
	f.Helper()
	f.Eventually("the tests before have left nothing in the file", func() error {
		data, err := os.ReadFile(node.HostsFile)
		if err != nil {
			return err
		}
		if lines := strings.Count(string(data), ".svc.cluster.local\n"); lines != replicas {
			return fmt.Errorf("%d lines", lines)
		}
		return nil
	})
}
