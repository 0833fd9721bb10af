package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// gridDeadline limits one step of the measurement, of 10,000 sites on a busy machine.
	gridDeadline = 30 * time.Minute
	// settled is how long the controller must not have written for a step to be over.
	settled = 3 * time.Second
	// revisions are where the history of a grid is kept.
	revisions = "controllerrevisions"

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

// gridSpecs are the grids' templates.
var gridSpecs = map[string]string{
	"DeploymentGrid":  `{` + gridTemplate + `}`,
	"StatefulSetGrid": `{serviceName: bench-svc, ` + gridTemplate + `}`,
	"ServiceGrid":     `{selector: {app: x}, ports: [{port: 80}]}`,
}

// gridBench measures application-grid-controller on a kube-apiserver of its own.
type gridBench struct {
	table
	cluster    *cluster.Cluster
	controller *cluster.Controller
	client     dynamic.Interface
	sites      int
}

// withGridBench starts a cluster and the controller, takes the steps, and prints their figures.
func withGridBench(ctx context.Context, o options, title string, with cluster.Options,
	steps ...func(*gridBench, context.Context) error) (err error) {
	with.Components, with.APIViewOnly, with.AuditLog, with.Progress = o.components, true, true, os.Stderr
	c, err := cluster.Start(ctx, with)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	client, err := dynamic.NewForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	controller, err := c.NewController(ctx, "bench", o.controller)
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	defer controller.Kill()
	b := &gridBench{cluster: c, controller: controller, client: client, sites: o.gridSites}
	for _, step := range steps {
		if err := step(b, ctx); err != nil {
			return err
		}
	}
	return b.print(fmt.Sprintf("%d sites, %s on this machine", b.sites, title), "")
}

// measureGrids runs nothing that would run the workloads: what is counted is the controller's own work.
func measureGrids(ctx context.Context, o options) error {
	return withGridBench(ctx, o, "one DeploymentGrid, one StatefulSetGrid, one ServiceGrid; kube-apiserver and the controller",
		cluster.Options{NoKwok: true, NoScheduler: true}, (*gridBench).create, (*gridBench).template)
}

// createNodes makes a node in every site, each as complete has completed it.
func (b *gridBench) createNodes(ctx context.Context, complete func(node *corev1.Node, i int)) error {
	fmt.Fprintf(os.Stderr, "creating %d nodes\n", b.sites)
	return parallel(ctx, b.sites, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("site-%05d", i)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			siteLabel: name, corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}}}
		complete(node, i)
		if _, err := b.cluster.Client().CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating node %s: %w", node.Name, err)
		}
		return nil
	})
}

// create makes the nodes and the grids.
func (b *gridBench) create(ctx context.Context) error {
	b.cluster.ControllerManager.Kill()
	if err := b.createNodes(ctx, func(*corev1.Node, int) {}); err != nil {
		return err
	}
	return b.change(ctx, "all children created", 2*b.sites+1, func() error {
		for kind, spec := range gridSpecs {
			manifest := fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: %s, metadata: {name: bench}, spec: {gridUniqKey: %s, template: %s}}`, kind, siteLabel, spec)
			if err := b.createGrid(ctx, manifest); err != nil {
				return err
			}
		}
		return nil
	}, func(r cluster.Request) bool {
		return r.IsWrite() && r.ResponseStatus.Code == http.StatusCreated && r.ObjectRef.Resource != revisions
	})
}

// template changes the DeploymentGrid's template: every Deployment follows.
func (b *gridBench) template(ctx context.Context) error {
	return b.change(ctx, "template changed: all Deployments follow", b.sites, func() error {
		_, err := b.grids("DeploymentGrid").Patch(ctx, "bench", types.MergePatchType,
			[]byte(`{"spec":{"template":{"minReadySeconds":7}}}`), metav1.PatchOptions{})
		return err
	}, ofDeployments)
}

func (b *gridBench) createGrid(ctx context.Context, manifest string) error {
	grid := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &grid.Object); err != nil {
		return fmt.Errorf("reading the manifest of a grid: %w", err)
	}
	_, err := b.grids(grid.GetKind()).Create(ctx, grid, metav1.CreateOptions{})
	return err
}

func (b *gridBench) grids(kind string) dynamic.ResourceInterface {
	return b.client.Resource(schema.GroupVersionResource{Group: "superedge.io", Version: "v1",
		Resource: strings.ToLower(kind) + "s"}).Namespace("default")
}

func ofDeployments(r cluster.Request) bool {
	return r.IsWrite() && r.ObjectRef.Resource == "deployments"
}

// change makes a change after which the controller must write exactly so many objects, each once, and adds how long
// that takes and what it calls until it writes no more. of is whether a request is such a write.
func (b *gridBench) change(ctx context.Context, what string, objects int, do func() error,
	of func(cluster.Request) bool) error {
	mark, err := b.cluster.AuditMark()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for {
		looked := time.Now()
		requests, err := b.calls(mark, of)
		if err != nil {
			return err
		}
		if len(requests) >= objects {
			break
		}
		if time.Since(begin) > gridDeadline {
			return fmt.Errorf("%s: %d of %d after %s", what, len(requests), objects, gridDeadline)
		}
		// Reading a long audit log is work that must not slow down what is measured.
		if err := pause(ctx, max(200*time.Millisecond, 10*time.Since(looked))); err != nil {
			return err
		}
	}
	b.add(what+" after", fmt.Sprintf("%.1f s", time.Since(begin).Seconds()))
	if err := b.quiet(ctx); err != nil {
		return err
	}
	all, err := b.calls(mark, func(r cluster.Request) bool { return r.Verb != "watch" })
	if err != nil {
		return err
	}
	kinds, written := map[string]int{}, map[string]int{}
	for _, r := range all {
		switch {
		case of(r):
			kinds["children"]++
			written[r.ObjectRef.Resource+"/"+r.ObjectRef.Name]++
		case r.IsWrite() && r.ObjectRef.Subresource != "":
			kinds[r.ObjectRef.Subresource]++
		case r.IsWrite() || r.ObjectRef.Resource == "events":
			kinds[r.ObjectRef.Resource]++
		default:
			kinds["reads"]++
		}
	}
	b.add("API calls for that", fmt.Sprintf("%d: %v", len(all), kinds))
	if err := b.addMemory("resident memory then", b.controller.PID()); err != nil {
		return err
	}
	if len(written) != objects || kinds["children"] != objects {
		return fmt.Errorf("%s: %d objects in %d writes, not %d, each once", what, len(written), kinds["children"], objects)
	}
	return nil
}

// calls are the controller's requests since the mark.
func (b *gridBench) calls(mark int64, of func(cluster.Request) bool) ([]cluster.Request, error) {
	return b.cluster.Audited(mark, func(r cluster.Request) bool {
		return strings.Contains(r.UserAgent, "application-grid-controller") && r.ObjectRef.Resource != "leases" && of(r)
	})
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
		writes, err := b.calls(mark, cluster.Request.IsWrite)
		if err != nil || len(writes) == 0 {
			return err
		}
	}
	return errors.New("the controller goes on writing")
}
