package monitoring

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	operator "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/util/teststorage"
	"sigs.k8s.io/yaml"
)

// pods are pods as Prometheus discovers them in a cluster: the port of each is a server here.
var pods = []struct{ app, pod, node, port string }{
	{"application-grid-wrapper", "application-grid-wrapper-a", "edge-1", "metrics"},
	{"application-grid-wrapper", "application-grid-wrapper-b", "edge-2", "metrics"},
	{"statefulset-grid-daemon", "statefulset-grid-daemon-a", "edge-1", "metrics"},
	{"statefulset-grid-daemon", "statefulset-grid-daemon-b", "edge-2", "metrics"},
	{"application-grid-controller", "application-grid-controller-a", "cloud-1", "metrics"},
	{"application-grid-controller", "application-grid-controller-a", "cloud-1", "health"},
	{"echo", "echo-a", "edge-1", "metrics"},
}

// TestPodMonitor scrapes, as the operator has Prometheus do it, what the shipped PodMonitor chooses: the port metrics
// of our programs and nothing else, with the program's name as the job and the node's name as the instance.
func TestPodMonitor(t *testing.T) {
	var monitor operator.PodMonitor
	must(t, yaml.UnmarshalStrict(read(t, "podmonitor.yaml"), &monitor))
	if monitor.Kind != "PodMonitor" || monitor.APIVersion != "monitoring.coreos.com/v1" ||
		monitor.Labels["release"] != "kube-prometheus-stack" {
		t.Fatalf("not a PodMonitor that kube-prometheus-stack takes: %+v", monitor.ObjectMeta)
	}
	var group targetgroup.Group
	for _, pod := range pods {
		group.Targets = append(group.Targets, model.LabelSet{
			model.AddressLabel: model.LabelValue(serve(t)), "__meta_kubernetes_pod_name": model.LabelValue(pod.pod),
			"__meta_kubernetes_namespace": "kube-system", "__meta_kubernetes_pod_node_name": model.LabelValue(pod.node),
			"__meta_kubernetes_pod_label_app":           model.LabelValue(pod.app),
			"__meta_kubernetes_pod_labelpresent_app":    "true",
			"__meta_kubernetes_pod_container_port_name": model.LabelValue(pod.port),
		})
	}
	got := scraped(t, prometheusConfig(t, &monitor), map[string][]*targetgroup.Group{"podMonitor": {&group}}, 5)
	want := []string{
		`application-grid-controller cloud-1 application-grid-controller-a`,
		`application-grid-wrapper edge-1 application-grid-wrapper-a`,
		`application-grid-wrapper edge-2 application-grid-wrapper-b`,
		`statefulset-grid-daemon edge-1 statefulset-grid-daemon-a`,
		`statefulset-grid-daemon edge-2 statefulset-grid-daemon-b`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("scraped were\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// prometheusConfig is what the operator makes of a PodMonitor, as far as this one has it: the selector and the port as
// relabelings that keep, pod and container as labels, the job by jobLabel, and then the PodMonitor's own relabelings.
func prometheusConfig(t *testing.T, monitor *operator.PodMonitor) string {
	t.Helper()
	if len(monitor.Spec.PodMetricsEndpoints) != 1 || len(monitor.Spec.Selector.MatchExpressions) != 1 ||
		len(monitor.Spec.Selector.MatchLabels) > 0 {
		t.Fatalf("the PodMonitor is of another form: %+v", monitor.Spec)
	}
	endpoint, chosen := monitor.Spec.PodMetricsEndpoints[0], monitor.Spec.Selector.MatchExpressions[0]
	relabelings := []map[string]any{
		{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_label_" + chosen.Key,
			"__meta_kubernetes_pod_labelpresent_" + chosen.Key},
			"regex": fmt.Sprintf("(%s);true", strings.Join(chosen.Values, "|"))},
		{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_container_port_name"},
			"regex": *endpoint.Port},
		{"source_labels": []string{"__meta_kubernetes_namespace"}, "target_label": "namespace"},
		{"source_labels": []string{"__meta_kubernetes_pod_name"}, "target_label": "pod"},
		{"target_label": "job", "replacement": monitor.Namespace + "/" + monitor.Name},
		{"source_labels": []string{"__meta_kubernetes_pod_label_" + monitor.Spec.JobLabel}, "target_label": "job",
			"regex": "(.+)", "replacement": "${1}"},
	}
	for _, own := range endpoint.RelabelConfigs {
		relabeling := map[string]any{"target_label": own.TargetLabel}
		var from []string
		for _, name := range own.SourceLabels {
			from = append(from, string(name))
		}
		relabeling["source_labels"] = from
		if own.Action != "" || own.Regex != "" || own.Replacement != nil {
			t.Fatalf("a relabeling of another form: %+v", own)
		}
		relabelings = append(relabelings, relabeling)
	}
	data, err := yaml.Marshal(map[string]any{"scrape_configs": []any{map[string]any{
		"job_name": "podMonitor", "scrape_interval": "100ms", "scrape_timeout": "100ms", "metrics_path": endpoint.Path,
		"relabel_configs": relabelings,
	}}})
	must(t, err)
	return string(data)
}

// TestScrapeOnNode: the agents of two nodes, each with the shipped configuration and its node's name in it, scrape
// their own localhost, and what they have scraped can be told apart.
func TestScrapeOnNode(t *testing.T) {
	seen := map[string]bool{}
	for _, node := range []string{"edge-1", "edge-2"} {
		text := strings.ReplaceAll(string(read(t, "scrape-on-node.yaml")), "NODE_NAME", node)
		for _, port := range []string{"51006", "51007"} {
			if strings.Count(text, `"localhost:`+port+`"`) != 1 {
				t.Fatalf("localhost:%s is not scraped", port)
			}
			text = strings.ReplaceAll(text, "localhost:"+port, serve(t))
		}
		text = "global: {scrape_interval: 100ms, scrape_timeout: 100ms}\n" + text
		loaded, err := config.Load(text, promslog.NewNopLogger())
		must(t, err)
		groups := map[string][]*targetgroup.Group{}
		for _, job := range loaded.ScrapeConfigs {
			for _, found := range job.ServiceDiscoveryConfigs {
				static, ok := found.(discovery.StaticConfig)
				if !ok {
					t.Fatalf("%T is not static", found)
				}
				groups[job.JobName] = static
			}
		}
		for _, series := range scraped(t, text, groups, 2) {
			if seen[series] {
				t.Errorf("%q is scraped on two nodes", series)
			}
			seen[series] = true
		}
	}
	want := []string{"application-grid-wrapper edge-1 ", "application-grid-wrapper edge-2 ",
		"statefulset-grid-daemon edge-1 ", "statefulset-grid-daemon edge-2 "}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) {
		t.Errorf("scraped were %q, want %q", got, want)
	}
}

// serve is the address of a program that has metrics.
func serve(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintln(w, "process_resident_memory_bytes 1")
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// scraped runs Prometheus' scraper on a configuration and the targets of its jobs until there are n time series of the
// metric up that are 1, and returns the job, the instance and the pod of each.
func scraped(t *testing.T, text string, groups map[string][]*targetgroup.Group, n int) []string {
	t.Helper()
	loaded, err := config.Load(text, promslog.NewNopLogger())
	must(t, err)
	db := teststorage.New(t)
	manager, err := scrape.NewManager(&scrape.Options{DiscoveryReloadInterval: model.Duration(50 * time.Millisecond)},
		promslog.NewNopLogger(), nil, nil, db, prometheus.NewRegistry())
	must(t, err)
	must(t, manager.ApplyConfig(loaded))
	sets := make(chan map[string][]*targetgroup.Group, 1)
	sets <- groups
	done := make(chan error, 1)
	go func() { done <- manager.Run(sets) }()
	defer func() {
		manager.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 1e6)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		query, err := engine.NewInstantQuery(t.Context(), db, nil, `up == 1`, time.Now())
		must(t, err)
		vector, err := query.Exec(t.Context()).Vector()
		must(t, err)
		var found []string
		for _, sample := range vector {
			found = append(found, fmt.Sprintf("%s %s %s", sample.Metric.Get("job"), sample.Metric.Get("instance"),
				sample.Metric.Get("pod")))
		}
		query.Close()
		slices.Sort(found)
		if len(found) >= n {
			return found
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %q were scraped", found)
		}
	}
}
