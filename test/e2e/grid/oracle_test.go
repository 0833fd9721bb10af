package grid

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

var (
	oracleSteps = flag.Int("oracle.steps", 60, "changes of each kind that the controller is compared after")
	oracleSeed  = flag.Uint64("oracle.seed", 1, "where the random changes begin")
)

// oraclePods is a pod template with something in every list and map that the schema treats in a way of its own.
const oraclePods = `
metadata: {labels: {app: x}, annotations: {note: a}}
spec:
  nodeSelector: {disk: ssd, tier: a}
  terminationGracePeriodSeconds: 5
  tolerations: [{key: a, operator: Exists, effect: NoSchedule}, {key: b, value: c, effect: NoExecute, tolerationSeconds: 9}]
  imagePullSecrets: [{name: one}, {name: two}]
  hostAliases: [{ip: 10.1.1.1, hostnames: [a, b]}]
  dnsConfig: {nameservers: [10.1.1.2], options: [{name: ndots, value: "2"}]}
  securityContext: {runAsUser: 1, supplementalGroups: [1, 2], sysctls: [{name: a, value: b}]}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [b, c]}]}]}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: z, labelSelector: {matchLabels: {app: x, b: c}}}}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: x, d: e}}}]
  volumes:
    - {name: v1, configMap: {name: c, optional: true, items: [{key: a, path: b, mode: 400}, {key: c, path: d}]}}
    - {name: v2, emptyDir: {sizeLimit: 1Gi}}
    - {name: v3, projected: {sources: [{configMap: {name: c, optional: true}}, {downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}]}}
  initContainers: [{name: i, image: init, command: [a, b]}]
  containers:
    - name: c
      image: one
      args: [a, b]
      env:
        - {name: A, value: a}
        - {name: B, valueFrom: {configMapKeyRef: {name: c, key: k, optional: true}}}
        - {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}
      envFrom: [{configMapRef: {name: c, optional: true}}]
      ports: [{containerPort: 80, name: http}, {containerPort: 53}, {containerPort: 53, protocol: UDP}]
      resources: {limits: {cpu: 1, memory: 1024Mi}, requests: {cpu: 500m}}
      readinessProbe: {httpGet: {path: /, port: 80, httpHeaders: [{name: a, value: b}]}, periodSeconds: 7}
      lifecycle: {preStop: {exec: {command: [a, b]}}}
      securityContext: {capabilities: {add: [A, B], drop: [ALL]}, privileged: false}
      volumeMounts: [{name: v1, mountPath: /a}, {name: v2, mountPath: /b, readOnly: true}]
    - {name: d, image: two, resources: {claims: []}}
`

type oracleKind struct{ grid, child, document, schema, spec string }

// oracleKinds are the templates that the random changes begin with, and where their schemas are.
var oracleKinds = []oracleKind{
	{"DeploymentGrid", "Deployment", "apis/apps/v1", "io.k8s.api.apps.v1.DeploymentSpec", `
replicas: 0
minReadySeconds: 3
selector: {matchLabels: {app: x}}
strategy: {rollingUpdate: {maxSurge: 2, maxUnavailable: 25%}}
`},
	{"StatefulSetGrid", "StatefulSet", "apis/apps/v1", "io.k8s.api.apps.v1.StatefulSetSpec", `
replicas: 0
serviceName: svc
selector: {matchLabels: {app: x}}
ordinals: {start: 1}
updateStrategy: {rollingUpdate: {partition: 1}}
persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}
`},
	{"DaemonSetGrid", "DaemonSet", "apis/apps/v1", "io.k8s.api.apps.v1.DaemonSetSpec", `
minReadySeconds: 3
selector: {matchLabels: {app: x}}
updateStrategy: {rollingUpdate: {maxUnavailable: 2}}
`},
	{"ServiceGrid", "Service", "api/v1", "io.k8s.api.core.v1.ServiceSpec", `
type: LoadBalancer
selector: {app: x, tier: b}
ports: [{name: a, port: 80, targetPort: 8080}, {name: b, port: 53}, {name: c, port: 53, protocol: UDP}]
externalIPs: [10.1.1.1, 10.1.1.2]
loadBalancerSourceRanges: [10.0.0.0/8]
sessionAffinity: ClientIP
sessionAffinityConfig: {clientIP: {timeoutSeconds: 100}}
externalTrafficPolicy: Local`},
}

// template is what the random changes begin with.
func (k oracleKind) template() string {
	if k.child == "Service" {
		return k.spec
	}
	return k.spec + "\ntemplate:\n" + strings.ReplaceAll(oraclePods, "\n", "\n  ")
}

// TestRemovalsInsideAtomicValues: a key that leaves a map, or an element of a list, that the schema owns as one was
// left in the child, and the grid was Ready.
func TestRemovalsInsideAtomicValues(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.bareNode(f.namespace+"-east", "east")
	workload := func(pods string) string {
		return `{selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}], ` + pods + `}}}`
	}
	for _, test := range []struct {
		kind     int
		template string
		path     []any
	}{
		{0, workload(`nodeSelector: {disk: ssd, tier: a}`), []any{"template", "spec", "nodeSelector", "tier"}},
		{0, workload(`tolerations: [{key: a, operator: Exists, effect: NoSchedule}]`),
			[]any{"template", "spec", "tolerations", 0, "effect"}},
		{
			0, workload(`volumes: [{name: v, projected: {sources: [{configMap: {name: c, optional: true}}]}}]`),
			[]any{"template", "spec", "volumes", 0, "projected", "sources", 0, "configMap", "optional"},
		},
		{
			1, workload(`affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: z, labelSelector: {matchLabels: {app: x, b: c}}}}]}}`),
			[]any{"template", "spec", "affinity", "podAntiAffinity", "preferredDuringSchedulingIgnoredDuringExecution",
				0, "podAffinityTerm", "labelSelector", "matchLabels", "b"},
		},
		{2, workload(`initContainers: [{name: i, image: i, env: [{name: B, valueFrom: {configMapKeyRef: {name: c, key: k, optional: true}}}]}]`),
			[]any{"template", "spec", "initContainers", 0, "env", 0, "valueFrom", "configMapKeyRef", "optional"}},
		{3, `{selector: {app: x, tier: b}, ports: [{port: 80}]}`, []any{"selector", "tier"}},
	} {
		t.Run(fmt.Sprint(test.path...), func(t *testing.T) {
			k := oracleKinds[test.kind]
			of := *f
			of.T = t
			o := of.newOracle(k.grid, k.child, strings.ToLower(fmt.Sprint(k.child, "-", test.path[len(test.path)-1])),
				test.template)
			template := runtime.DeepCopyJSON(o.template)
			remove(template, test.path)
			o.Must(o.change(template))
			o.expectSame(fmt.Sprint("without ", test.path))
		})
	}
}

// remove removes what is at a path, whose last part is a key.
func remove(value any, path []any) {
	for _, part := range path[:len(path)-1] {
		switch p := part.(type) {
		case string:
			value = value.(map[string]any)[p]
		case int:
			value = value.([]any)[p]
		}
	}
	delete(value.(map[string]any), path[len(path)-1].(string))
}

// TestOracle: after every change that the API server's schema allows, at any depth, a child is what a plain server-side
// apply of the same configuration makes of an object with the same past; and after every change that someone else makes
// of the child, what that apply makes of it again.
func TestOracle(t *testing.T) {
	t.Parallel()
	for _, k := range oracleKinds {
		t.Run(k.child, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, shared)
			f.bareNode(f.namespace+"-east", "east")
			o := f.newOracle(k.grid, k.child, "demo", k.template())
			degraded := "SitesFailed"
			if k.child == "Service" {
				degraded = "Rejected"
			}
			g := generator{Rand: rand.New(rand.NewPCG(*oracleSeed, 1)), schemas: f.schemas(k.document)}
			changes, drifts, refused, stuck := 0, 0, 0, 0
			for changes < *oracleSteps && refused < 50*(*oracleSteps) {
				template, what := g.change(o.template, k.schema)
				if _, ok := template["replicas"]; !ok && o.template["replicas"] != nil {
					continue // is handed over, which a plain apply does not
				}
				if o.change(template) != nil {
					refused++
					continue
				}
				o.expectSame(fmt.Sprint("change ", changes, " of ", k.child, ": ", what))
				changes++
				spec, what := g.change(o.spec(o.oracle), k.schema)
				if err := o.drift(spec); err != nil {
					refused++
					if errors.Is(err, errStuck) {
						o.expectCondition(k.grid, o.name, "Degraded=True", degraded)
						stuck++
						o = f.newOracle(k.grid, k.child, fmt.Sprint("demo-", stuck), k.template())
					}
					continue
				}
				o.expectSame(fmt.Sprint("drift ", drifts, " of ", k.child, ": ", what))
				drifts++
			}
			t.Logf("%d changes and %d drifts compared, %d refused by the API server, %d that could not be applied again", changes, drifts, refused, stuck)
			if changes < *oracleSteps || drifts < *oracleSteps/4 {
				t.Errorf("%d changes and %d drifts are too few", changes, drifts)
			}
		})
	}
}

// oracle is a grid with a child, and an object that is applied as the child should be.
type oracle struct {
	*fixture
	grid, kind, name, child, oracle string
	template                        map[string]any
}

func (f *fixture) newOracle(grid, kind, name, template string) *oracle {
	f.Helper()
	o := &oracle{fixture: f, grid: grid, kind: kind, name: name, child: name + "-east", oracle: "oracle-" + name}
	if kind == "Service" {
		o.child = name + "-svc"
	}
	f.Must(yaml.Unmarshal([]byte(template), &o.template))
	fields := "siteLabel: false, template: {}" // the oracle is made without a site
	if kind == "Service" {
		fields = "template: {}"
	}
	f.apply(fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: %s, metadata: {name: %s}, spec: {gridUniqKey: KEY, %s}}`, grid, name,
		fields))
	f.Must(o.change(o.template))
	o.expectSame("the beginning of " + kind + " " + name)
	return o
}

// change applies a template to the oracle, and if the API server takes it, to the grid.
func (o *oracle) change(template map[string]any) error {
	if err := o.applyOracle(template); err != nil {
		return err
	}
	patch, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec/template", "value": template}})
	o.Must(err)
	_, err = o.of(o.grid).Patch(o.ctx, o.name, types.JSONPatchType, patch, metav1.PatchOptions{})
	o.Must(err)
	o.template = template
	return nil
}

func (o *oracle) applyOracle(template map[string]any) error {
	spec := runtime.DeepCopyJSON(template)
	if o.kind != "Service" {
		if err := unstructured.SetNestedField(spec, "east", "template", "spec", "nodeSelector", o.key); err != nil {
			return err
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion(resources[o.kind].GroupVersion().String())
	u.SetKind(o.kind)
	u.SetName(o.oracle)
	_, err := o.of(o.kind).Apply(o.ctx, o.oracle, u, metav1.ApplyOptions{FieldManager: "oracle", Force: true})
	return err
}

// drift makes somebody else change the spec of both objects, and applies the oracle again.
func (o *oracle) drift(spec map[string]any) error {
	patch, err := json.Marshal(map[string]any{"spec": difference(o.spec(o.oracle), spec)})
	o.Must(err)
	for _, dryRun := range [][]string{{metav1.DryRunAll}, nil} { // a port may be free for one of them only
		for _, name := range []string{o.oracle, o.child} {
			_, err := o.of(o.kind).Patch(o.ctx, name, types.MergePatchType, patch,
				metav1.PatchOptions{FieldManager: "someone", DryRun: dryRun})
			if err != nil && dryRun != nil {
				return err
			}
			o.Must(err)
		}
	}
	if err := o.applyOracle(o.template); err != nil {
		return fmt.Errorf("%w: %w", errStuck, err)
	}
	return nil
}

// errStuck is that somebody else's change and the template do not go together, so that the API server refuses to apply
// it again.
var errStuck = errors.New("stuck")

// difference is the merge patch from one object to another one.
func difference(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for key := range from {
		if _, ok := to[key]; !ok {
			patch[key] = nil
		}
	}
	for key, value := range to {
		a, aIs := from[key].(map[string]any)
		b, bIs := value.(map[string]any)
		switch {
		case aIs && bIs:
			if d := difference(a, b); len(d) > 0 {
				patch[key] = d
			}
		case !reflect.DeepEqual(from[key], value):
			patch[key] = value
		}
	}
	return patch
}

// assigned are fields of a Service that the API server fills in, with a value that no other Service has.
var assigned = map[string]bool{"clusterIP": true, "clusterIPs": true, "healthCheckNodePort": true, "nodePort": true}

// spec is that of an object without what the API server assigns to each Service.
func (o *oracle) spec(name string) map[string]any {
	o.Helper()
	spec := o.get(o.kind, name).Object["spec"].(map[string]any)
	ports, _ := spec["ports"].([]any)
	for field := range assigned {
		delete(spec, field)
		for _, port := range ports {
			delete(port.(map[string]any), field)
		}
	}
	return spec
}

// expectSame waits until the child has the oracle's spec.
func (o *oracle) expectSame(what string) {
	o.Helper()
	want := o.spec(o.oracle)
	o.Eventually(what, func() error {
		u, err := o.of(o.kind).Get(o.ctx, o.child, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("%w; %v", err, conditions(o.get(o.grid, o.name)))
		}
		if got := o.spec(u.GetName()); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("from the child to the oracle: %v; %v", difference(got, want),
				conditions(o.get(o.grid, o.name)))
		}
		return nil
	})
}

// schemas are those of a group and version, by name.
func (f *fixture) schemas(document string) map[string]any {
	f.Helper()
	data, err := f.client.Discovery().RESTClient().Get().AbsPath("/openapi/v3/" + document).DoRaw(f.ctx)
	f.Must(err)
	var decoded struct {
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	f.Must(json.Unmarshal(data, &decoded))
	return decoded.Components.Schemas
}

// generator makes random changes that a schema allows.
type generator struct {
	*rand.Rand
	schemas map[string]any
}

// site is a change that could be made.
type site struct {
	what string
	make func()
}

// change returns a copy of a value with one random change.
func (g generator) change(value map[string]any, schema string) (map[string]any, string) {
	changed := runtime.DeepCopyJSON(value)
	sites := map[string][]site{}
	g.collect(sites, "", changed, g.named(schema), func(any) {})
	of := slices.Sorted(maps.Keys(sites))
	kind := sites[of[g.IntN(len(of))]]
	s := kind[g.IntN(len(kind))]
	s.make()
	return changed, s.what
}

func (g generator) named(name string) map[string]any {
	schema, _ := g.schemas[name].(map[string]any)
	return schema
}

// resolve follows references.
func (g generator) resolve(schema any) map[string]any {
	s, _ := schema.(map[string]any)
	for {
		if all, ok := s["allOf"].([]any); ok && len(all) == 1 {
			s, _ = all[0].(map[string]any)
			continue
		}
		ref, ok := s["$ref"].(string)
		if !ok {
			return s
		}
		s = g.named(strings.TrimPrefix(ref, "#/components/schemas/"))
	}
}

// collect finds what could be changed in a value; set replaces it where it is.
func (g generator) collect(sites map[string][]site, path string, value any, schema map[string]any, set func(any)) {
	add := func(kind, path string, change func()) {
		sites[kind] = append(sites[kind], site{kind + " " + path, change})
	}
	switch v := value.(type) {
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		below, free := schema["additionalProperties"]
		for _, key := range slices.Sorted(maps.Keys(v)) {
			add("remove", path+"."+key, func() { delete(v, key) })
			inner := properties[key]
			if free {
				inner = below
			}
			g.collect(sites, path+"."+key, v[key], g.resolve(inner), func(to any) { v[key] = to })
		}
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			if _, ok := v[key]; !ok && !assigned[key] {
				add("add", path+"."+key, func() { v[key] = g.value(g.resolve(properties[key]), 3) })
			}
		}
		if free {
			key := fmt.Sprint("k", g.IntN(5))
			add("add", path+"."+key, func() { v[key] = g.value(g.resolve(below), 3) })
		}
	case []any:
		for i := range v {
			add("remove", fmt.Sprint(path, "[", i, "]"), func() { set(slices.Delete(slices.Clone(v), i, i+1)) })
			g.collect(sites, fmt.Sprint(path, "[", i, "]"), v[i], g.resolve(schema["items"]),
				func(to any) { v[i] = to })
		}
		add("add", path+"[]", func() { set(append(slices.Clone(v), g.value(g.resolve(schema["items"]), 3))) })
		if len(v) > 1 {
			add("swap", path, func() { v[0], v[1] = v[1], v[0] })
		}
	default:
		add("change", path, func() { set(g.value(schema, 1)) })
	}
}

// value makes a value of a schema; at a depth of 0 nothing is made that need not be there.
func (g generator) value(schema map[string]any, depth int) any {
	if values, ok := schema["enum"].([]any); ok {
		return values[g.IntN(len(values))]
	}
	if _, ok := schema["oneOf"]; ok { // a quantity, or an integer or a string
		return []any{"1", int64(1 + g.IntN(9)), "25%"}[g.IntN(3)]
	}
	switch schema["type"] {
	case "object":
		out := map[string]any{}
		if below, ok := schema["additionalProperties"]; ok {
			out[fmt.Sprint("k", g.IntN(5))] = g.value(g.resolve(below), depth-1)
		}
		properties, _ := schema["properties"].(map[string]any)
		required, _ := schema["required"].([]any)
		for _, key := range slices.Sorted(maps.Keys(properties)) {
			if slices.Contains(required, any(key)) || (!assigned[key] && depth > 0 && g.IntN(len(properties)) < 2) {
				out[key] = g.value(g.resolve(properties[key]), depth-1)
			}
		}
		return out
	case "array":
		return []any{g.value(g.resolve(schema["items"]), depth-1)}
	case "boolean":
		return g.IntN(2) == 0
	case "integer":
		return int64(g.IntN(100))
	case "string":
		return []any{"a", "b", "c", fmt.Sprint("x", g.IntN(100)), "Always", "NoSchedule", "Exists", "/p"}[g.IntN(8)]
	}
	return "x"
}
