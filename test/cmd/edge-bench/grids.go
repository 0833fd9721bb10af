package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
)

const (
	gridNamespace = "default"
	// gridDeadline limits one step of the measurement, of 10,000 sites on a busy machine.
	gridDeadline = 30 * time.Minute
	// settled is how long the controller must not have written for a step to be over.
	settled = 3 * time.Second

	// gridTemplate has the size of templates in use: a service with a proxy beside it, about 4 kB of JSON in the API.
	gridTemplate = `replicas: 0, selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x, team: edge, tier: backend}, annotations: {prometheus.io/scrape: "true", prometheus.io/port: "9090"}}, spec: {
 serviceAccountName: x, terminationGracePeriodSeconds: 30, securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000},
 tolerations: [{key: edge, operator: Exists, effect: NoSchedule}, {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}],
 affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: x}}}}]}},
 initContainers: [{name: init, image: registry.example.com/team/init:v1.2.3, command: [/bin/sh, -c, "cp -r /config/* /work"], volumeMounts: [{name: config, mountPath: /config}, {name: work, mountPath: /work}]}],
 containers: [
  {name: c, image: "registry.example.com/team/service:v1.2.3", args: [--config=/work/config.yaml, --log-level=info], ports: [{name: http, containerPort: 8080}, {name: metrics, containerPort: 9090}],
   env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}},
    {name: A, value: "1"}, {name: B, value: "2"}, {name: C, value: "3"}, {name: D, value: "4"}, {name: E, value: "5"}, {name: F, value: "6"}],
   envFrom: [{configMapRef: {name: settings}}], resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {cpu: 1, memory: 1024Mi}},
   readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 5}, livenessProbe: {httpGet: {path: /live, port: http}, initialDelaySeconds: 10, failureThreshold: 6}, startupProbe: {httpGet: {path: /live, port: http}, failureThreshold: 30},
   lifecycle: {preStop: {exec: {command: [/bin/sleep, "5"]}}}, securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}},
   volumeMounts: [{name: work, mountPath: /work}, {name: data, mountPath: /data}, {name: tls, mountPath: /tls, readOnly: true}]},
  {name: proxy, image: "registry.example.com/mesh/proxy:v4.5.6", args: [--listen=:8443, --upstream=127.0.0.1:8080], ports: [{name: https, containerPort: 8443}], resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 128Mi}},
   readinessProbe: {tcpSocket: {port: https}}, securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true}, volumeMounts: [{name: tls, mountPath: /tls, readOnly: true}]}],
 volumes: [{name: config, configMap: {name: settings, optional: true}}, {name: work, emptyDir: {}}, {name: data, hostPath: {path: /data/x, type: DirectoryOrCreate}}, {name: tls, secret: {secretName: tls}}]}}`
)

var (
	gridResources = map[string]string{"deploymentgrids": "DeploymentGrid", "statefulsetgrids": "StatefulSetGrid",
		"servicegrids": "ServiceGrid"}
	gridSpecs = map[string]string{
		"deploymentgrids":  `{` + gridTemplate + `}`,
		"statefulsetgrids": `{serviceName: bench-svc, ` + gridTemplate + `}`,
		"servicegrids":     `{selector: {app: x}, ports: [{port: 80}]}`,
	}
)

// gridBench measures application-grid-controller on a kube-apiserver of its own.
type gridBench struct {
	cluster    *cluster.Cluster
	controller *cluster.Controller
	client     dynamic.Interface
	sites      int
	rows       [][2]string
	wrong      []error
}

// measureGrids runs nothing that would run the workloads: what is counted is the controller's own work.
func measureGrids(ctx context.Context, o options) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{
		Components: o.components, APIViewOnly: true, NoKwok: true, NoScheduler: true, AuditLog: true,
		Progress: os.Stderr,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	c.ControllerManager.Kill()
	b, err := newGridBench(ctx, c, o)
	if err != nil {
		return err
	}
	defer b.controller.Kill()
	return b.run(ctx, "one DeploymentGrid, one StatefulSetGrid, one ServiceGrid; kube-apiserver and the controller on this machine",
		b.create, b.steady, b.restart, b.relabel, b.template)
}

// newGridBench starts the controller.
func newGridBench(ctx context.Context, c *cluster.Cluster, o options) (*gridBench, error) {
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	controller, err := c.NewController(ctx, "bench", o.controller)
	if err != nil {
		return nil, err
	}
	return &gridBench{cluster: c, controller: controller, client: client, sites: o.gridSites}, controller.Start(ctx)
}

// run runs the steps, and prints their figures.
func (b *gridBench) run(ctx context.Context, what string, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("\n%d sites, %s\n\n", b.sites, what)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range b.rows {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return errors.Join(b.wrong...)
}

func (b *gridBench) add(figure, format string, args ...any) {
	value := fmt.Sprintf(format, args...)
	b.rows = append(b.rows, [2]string{figure, value})
	fmt.Fprintf(os.Stderr, "  %s: %s\n", figure, value)
}

func gridNode(i int) string { return fmt.Sprintf("site-%05d", i) }

// createNodes makes a node in every site, each as complete has completed it.
func (b *gridBench) createNodes(ctx context.Context, complete func(node *corev1.Node, i int)) error {
	fmt.Fprintf(os.Stderr, "creating %d nodes\n", b.sites)
	return parallel(ctx, b.sites, func(ctx context.Context, i int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gridNode(i), Labels: map[string]string{
			siteLabel: fmt.Sprintf("site-%05d", i), corev1.LabelHostname: gridNode(i), corev1.LabelOSStable: "linux",
			corev1.LabelArchStable: "amd64",
		}}}
		complete(node, i)
		if _, err := b.cluster.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating node %s: %w", node.Name, err)
		}
		return nil
	})
}

// create makes the nodes and the grids, and waits until every child is there.
func (b *gridBench) create(ctx context.Context) error {
	if err := b.createNodes(ctx, func(*corev1.Node, int) {}); err != nil {
		return err
	}
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	begin := time.Now()
	for resource, kind := range gridResources {
		manifest := fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: %s, metadata: {name: bench}, spec: {gridUniqKey: %s, template: %s}}`, kind, siteLabel, gridSpecs[resource])
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
			return fmt.Errorf("reading the manifest of a %s: %w", kind, err)
		}
		if _, err := b.grid(resource).Create(ctx, u, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating a %s: %w", kind, err)
		}
	}
	children := func(requests []cluster.Request) map[string]int {
		names := map[string]int{}
		for _, r := range requests {
			names[r.ObjectRef.Resource+"/"+r.ObjectRef.Name]++
		}
		return names
	}
	created := func(r cluster.Request) bool {
		return ours(r) && r.IsWrite() && r.ResponseStatus.Code == 201 && r.ObjectRef.Resource != revisions
	}
	want := 2*b.sites + 1
	for {
		looked := time.Now()
		requests, err := b.cluster.Audited(mark, created)
		if err != nil {
			return err
		}
		reading := time.Since(looked)
		if len(children(requests)) >= want {
			break
		}
		if time.Since(begin) > gridDeadline {
			return fmt.Errorf("%d of %d children after %s", len(children(requests)), want, gridDeadline)
		}
		// Reading a long audit log is work that must not slow down what is measured.
		if err := pause(ctx, max(200*time.Millisecond, 10*reading)); err != nil {
			return err
		}
	}
	b.add("time to create all children", "%.1f s", time.Since(begin).Seconds())
	if err := b.quiet(ctx); err != nil {
		return err
	}
	requests, err := b.cluster.Audited(mark, created)
	if err != nil {
		return err
	}
	most := 0
	for _, count := range children(requests) {
		most = max(most, count)
	}
	b.add("children; creates; most creates of one", "%d; %d; %d", len(children(requests)), len(requests), most)
	if len(requests) != want || most != 1 {
		b.wrong = append(b.wrong, errors.New("a child was not created exactly once"))
	}
	calls, err := b.calls(mark)
	if err != nil {
		return err
	}
	b.add("API calls to create them", "%s", calls)
	if err := b.statusSize(ctx); err != nil {
		return err
	}
	return b.memory("resident memory with all of them")
}

// statusSize is how large a grid's object is that the API server keeps, and sends to everyone who watches grids, for
// each change of its status.
func (b *gridBench) statusSize(ctx context.Context) error {
	grid, err := b.grid("deploymentgrids").Get(ctx, "bench", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the DeploymentGrid: %w", err)
	}
	size := func(value any) int {
		data, err := json.Marshal(value)
		if err != nil {
			return 0
		}
		return len(data)
	}
	sites, _, err := unstructured.NestedInt64(grid.Object, "status", "sites")
	if err == nil && sites != int64(b.sites) {
		b.wrong = append(b.wrong, fmt.Errorf("the status counts %d sites", sites))
	}
	b.add("bytes of the DeploymentGrid; its status; its managedFields", "%d; %d; %d", size(grid.Object),
		size(grid.Object["status"]), size(grid.GetManagedFields()))
	return nil
}

// steady is ten minutes of the nodes' reports, one a minute, without pauses.
func (b *gridBench) steady(ctx context.Context) error {
	const beats = 10
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	for beat := range beats {
		patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Beat","message":"%d"}]}}`, beat)
		err := parallel(ctx, b.sites, func(ctx context.Context, i int) error {
			_, err := b.cluster.Client().CoreV1().Nodes().Patch(ctx, gridNode(i), types.StrategicMergePatchType, patch,
				metav1.PatchOptions{}, "status")
			return err
		})
		if err != nil {
			return fmt.Errorf("writing nodes' statuses: %w", err)
		}
	}
	if err := b.quiet(ctx); err != nil {
		return err
	}
	return b.expectNoWrites(mark, fmt.Sprintf("writes during %d node reports (10 minutes' worth)", beats*b.sites))
}

// expectNoWrites counts the controller's writes since the mark, of which there should be none.
func (b *gridBench) expectNoWrites(mark int64, figure string) error {
	writes, err := b.cluster.Audited(mark, func(r cluster.Request) bool { return ours(r) && r.IsWrite() })
	if err != nil {
		return err
	}
	b.add(figure, "%d", len(writes))
	if len(writes) > 0 {
		b.wrong = append(b.wrong, fmt.Errorf("writes in a steady state: %v", writes[:min(3, len(writes))]))
	}
	return nil
}

// restart is what a new controller writes and reads where nothing has changed.
func (b *gridBench) restart(ctx context.Context) error {
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	took, err := restart(ctx, b.controller.Component)
	if err != nil {
		return err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := b.quiet(ctx); err != nil {
		return err
	}
	b.add("restart: start to ready", "%.1f s", took.Seconds())
	writes, err := b.cluster.Audited(mark, func(r cluster.Request) bool {
		return ours(r) && r.IsWrite() && r.ObjectRef.Resource != "customresourcedefinitions"
	})
	if err != nil {
		return err
	}
	// That it leads now, and led before, is an event each.
	isEvent := func(r cluster.Request) bool { return r.ObjectRef.Resource == "events" }
	events := slices.DeleteFunc(slices.Clone(writes), func(r cluster.Request) bool { return !isEvent(r) })
	writes = slices.DeleteFunc(writes, isEvent)
	b.add("writes after a restart, but for events; events", "%d; %d", len(writes), len(events))
	// One child of each template is applied, which changes nothing.
	if len(writes) > 3 {
		b.wrong = append(b.wrong, fmt.Errorf("writes after a restart: %v", writes))
	}
	for _, e := range events {
		if e.ObjectRef.Namespace != "kube-system" {
			b.wrong = append(b.wrong, fmt.Errorf("an event after a restart: %v", e))
		}
	}
	return b.memory("resident memory after a restart")
}

// relabel moves one node to a new site: its own vanishes, and one appears.
func (b *gridBench) relabel(ctx context.Context) error {
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := b.cluster.RelabelNode(ctx, gridNode(0), siteLabel, "new"); err != nil {
		return err
	}
	err = b.until(ctx, 5*time.Millisecond, func(ctx context.Context) error {
		_, err := b.cluster.Client().AppsV1().StatefulSets(gridNamespace).Get(ctx, "bench-new", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	b.add("node relabelled to a new site: workload there after", "%d ms", time.Since(begin).Milliseconds())
	return b.countCalls(ctx, mark)
}

// template changes the DeploymentGrid's template: every Deployment follows.
func (b *gridBench) template(ctx context.Context) error {
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := b.grid("deploymentgrids").Patch(ctx, "bench", types.MergePatchType,
		[]byte(`{"spec":{"template":{"minReadySeconds":7}}}`), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("changing the template: %w", err)
	}
	err = b.until(ctx, 100*time.Millisecond, func(context.Context) error {
		writes, err := b.deploymentWrites(mark)
		if err == nil && writes < b.sites {
			err = fmt.Errorf("%d of %d Deployments follow the template", writes, b.sites)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.add("template changed: all Deployments follow after", "%.1f s", time.Since(begin).Seconds())
	if err := b.countCalls(ctx, mark); err != nil {
		return err
	}
	return b.memory("resident memory in the end")
}

func (b *gridBench) grid(resource string) dynamic.ResourceInterface {
	return b.client.Resource(schema.GroupVersionResource{Group: "superedge.io", Version: "v1",
		Resource: resource}).Namespace(gridNamespace)
}

func (b *gridBench) memory(figure string) error {
	value, err := memory(b.controller.PID())
	if err == nil {
		b.add(figure, "%s", value)
	}
	return err
}

// revisions are where the history of a grid is kept.
const revisions = "controllerrevisions"

// ours: a request of the controller.
func ours(r cluster.Request) bool {
	return strings.Contains(r.UserAgent, "application-grid-controller") && r.ObjectRef.Resource != "leases"
}

// calls counts the controller's requests since the mark, other than of watches and Leases.
func (b *gridBench) calls(mark int64) (string, error) {
	requests, err := b.cluster.Audited(mark, func(r cluster.Request) bool { return ours(r) && r.Verb != "watch" })
	if err != nil {
		return "", err
	}
	var reads, children, ofRevisions, statuses, events int
	for _, r := range requests {
		switch {
		case r.ObjectRef.Resource == "events":
			events++
		case !r.IsWrite():
			reads++
		case r.ObjectRef.Subresource == "status":
			statuses++
		case r.ObjectRef.Resource == revisions:
			ofRevisions++
		default:
			children++
		}
	}
	return fmt.Sprintf("%d: %d reads, %d writes of children, %d of revisions, %d of statuses, %d events", len(requests),
		reads, children, ofRevisions, statuses, events), nil
}

// countCalls adds the controller's requests since the mark, once it writes no more.
func (b *gridBench) countCalls(ctx context.Context, mark int64) error {
	if err := b.quiet(ctx); err != nil {
		return err
	}
	calls, err := b.calls(mark)
	if err != nil {
		return err
	}
	b.add("API calls for that", "%s", calls)
	return nil
}

// deploymentWrites counts the controller's writes of Deployments since the mark.
func (b *gridBench) deploymentWrites(mark int64) (int, error) {
	writes, err := b.cluster.Audited(mark, func(r cluster.Request) bool {
		return ours(r) && r.IsWrite() && r.ObjectRef.Resource == "deployments"
	})
	return len(writes), err
}

// until asks until there is no error, for as long as a step of the measurement may take.
func (b *gridBench) until(ctx context.Context, between time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, gridDeadline)
	defer cancel()
	return await.NoError(ctx, between, ask)
}

// quiet waits until the controller has not written for a while.
func (b *gridBench) quiet(ctx context.Context) error {
	for end := time.Now().Add(gridDeadline); time.Now().Before(end); {
		mark, err := b.cluster.AuditMark()
		if err != nil {
			return err
		}
		if err := pause(ctx, settled); err != nil {
			return err
		}
		writes, err := b.cluster.Audited(mark, func(r cluster.Request) bool { return ours(r) && r.IsWrite() })
		if err != nil {
			return err
		}
		if len(writes) == 0 {
			return nil
		}
	}
	return errors.New("the controller goes on writing")
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
