package monitoring

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	operator "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"
	"sigs.k8s.io/yaml"
)

const shipped = "../../manifests/monitoring"

// must ends a test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// read is a file of manifests/monitoring.
func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(shipped, name))
	must(t, err)
	return data
}

// alertCase is what an alert is for, and what it is not for: time series as promtool's tests have them, a sample a
// minute.
type alertCase struct {
	// after is when it is looked; the alert must not fire as long as for: has not passed.
	after time.Duration
	// fires are the labels that it then has, besides its severity, of are the series for which it fires, and notOf those
	// for which it must not.
	fires, of, notOf string
}

// alertCases has every alert.
var alertCases = map[string]alertCase{
	"WrapperDown": {6 * time.Minute, `{instance="edge-1", job="application-grid-wrapper"}`,
		`up{job="application-grid-wrapper",instance="edge-1"} 0x10`,
		`up{job="application-grid-wrapper",instance="edge-1"} 1x10`},
	"WrapperNotReady": {15 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_requests_total{instance="edge-1",code="503",resource="services"} 0+6x20`,
		`application_grid_wrapper_requests_total{instance="edge-1",code="503",resource="leases"} 0+6x20
			application_grid_wrapper_requests_total{instance="edge-1",code="200",resource="services"} 0+6x20`},
	"WrapperLinkDown": {16 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_upstream_up{instance="edge-1",source="nodes"} 0x20
			application_grid_wrapper_upstream_up{instance="edge-1",source="services"} 0x20
			application_grid_wrapper_upstream_up{instance="edge-2",source="nodes"} 1x20`,
		`application_grid_wrapper_upstream_up{instance="edge-1",source="nodes"} 0x20
			application_grid_wrapper_upstream_up{instance="edge-1",source="services"} 1x20`},
	"WrapperSourceDown": {11 * time.Minute, `{instance="edge-1", source="services"}`,
		`application_grid_wrapper_upstream_up{instance="edge-1",source="nodes"} 1x20
			application_grid_wrapper_upstream_up{instance="edge-1",source="services"} 0x20`,
		`application_grid_wrapper_upstream_up{instance="edge-1",source="nodes"} 0x20
			application_grid_wrapper_upstream_up{instance="edge-1",source="services"} 0x20
			application_grid_wrapper_upstream_up{instance="edge-2",source="services"} 1x20`},
	"WrapperCredentialsRefused": {6 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_upstream_forbidden{instance="edge-1",source="services"} 1x10`,
		`application_grid_wrapper_upstream_forbidden{instance="edge-1",source="endpoints"} 1x10`},
	"WrapperUpstreamSilent": {time.Minute, `{instance="edge-1", source="services"}`,
		`application_grid_wrapper_upstream_last_contact_seconds{instance="edge-1",source="services"} 1000x5
			application_grid_wrapper_upstream_up{instance="edge-1",source="services"} 1x5`,
		`application_grid_wrapper_upstream_last_contact_seconds{instance="edge-1",source="services"} 1000x5
			application_grid_wrapper_upstream_up{instance="edge-1",source="services"} 0x5
			application_grid_wrapper_upstream_up{instance="edge-2",source="services"} 1x5`},
	"WrapperServesOldSnapshot": {11 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_snapshot_served_age_seconds{instance="edge-1"} 90000x20`,
		`application_grid_wrapper_snapshot_served_age_seconds{instance="edge-1"} 3600x20`},
	"WrapperCannotKeepSnapshots": {time.Hour, `{instance="edge-1", result="error"}`,
		`application_grid_wrapper_snapshot_writes_total{instance="edge-1",result="error"} 0+1x60`,
		`application_grid_wrapper_snapshot_writes_total{instance="edge-1",result="ok"} 0+1x60`},
	"InvalidTopologyKeys": {6 * time.Minute, `{namespace="shop", service="echo"}`,
		`application_grid_wrapper_invalid_topology_keys{instance="edge-1",namespace="shop",service="echo"} 1x10
			application_grid_wrapper_invalid_topology_keys{instance="edge-2",namespace="shop",service="echo"} 1x10`,
		`application_grid_wrapper_invalid_topology_keys{instance="edge-1",namespace="shop",service="echo"} 0x10`},
	"WrapperRelists": {2 * time.Hour, `{instance="edge-1", source="services"}`,
		`application_grid_wrapper_upstream_lists_total{instance="edge-1",source="services"} 0+1x120`,
		`application_grid_wrapper_upstream_lists_total{instance="edge-1",source="services"} 0+0.1x120`},
	"WrapperEventsLate": {30 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_event_delay_seconds_bucket{instance="edge-1",le="0.1"} 0+1x40
			application_grid_wrapper_event_delay_seconds_bucket{instance="edge-1",le="5"} 0+9x40
			application_grid_wrapper_event_delay_seconds_bucket{instance="edge-1",le="+Inf"} 0+9x40`,
		`application_grid_wrapper_event_delay_seconds_bucket{instance="edge-1",le="0.1"} 0+9x40
			application_grid_wrapper_event_delay_seconds_bucket{instance="edge-1",le="5"} 0+9x40
			application_grid_wrapper_event_delay_seconds_bucket{instance="edge-1",le="+Inf"} 0+9x40`},
	"HubDown": {6 * time.Minute, `{instance="cloud-1", job="application-grid-hub"}`,
		`up{job="application-grid-hub",instance="cloud-1"} 0x10`,
		`up{job="application-grid-hub",instance="cloud-1"} 1x10`},
	"HubStale": {3 * time.Minute, `{instance="cloud-1", source="services"}`,
		`application_grid_hub_upstream_up{instance="cloud-1",source="services"} 0x10
			application_grid_hub_upstream_up{instance="cloud-1",source="nodes"} 1x10`,
		`application_grid_hub_upstream_up{instance="cloud-1",source="services"} 1x10`},
	"HubEventsLate": {30 * time.Minute, `{instance="cloud-1"}`,
		`application_grid_hub_event_delay_seconds_bucket{instance="cloud-1",le="0.1"} 0+1x40
			application_grid_hub_event_delay_seconds_bucket{instance="cloud-1",le="5"} 0+9x40
			application_grid_hub_event_delay_seconds_bucket{instance="cloud-1",le="+Inf"} 0+9x40`,
		`application_grid_hub_event_delay_seconds_bucket{instance="cloud-1",le="0.1"} 0+9x40
			application_grid_hub_event_delay_seconds_bucket{instance="cloud-1",le="5"} 0+9x40
			application_grid_hub_event_delay_seconds_bucket{instance="cloud-1",le="+Inf"} 0+9x40`},
	"HubRefusesRequests": {time.Hour, `{instance="cloud-1"}`,
		`application_grid_hub_refused_total{instance="cloud-1"} 0+1x60`,
		`application_grid_hub_refused_total{instance="cloud-1"} 5x60`},
	"WrapperWithoutKubeProxy": {16 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_watchers{instance="edge-1",resource="endpointslices"} 0x20
			application_grid_wrapper_watchers{instance="edge-1",resource="services"} 1x20`,
		`application_grid_wrapper_watchers{instance="edge-1",resource="endpointslices"} 1x20`},
	"WrapperMemory": {16 * time.Minute, `{instance="edge-1", job="application-grid-wrapper"}`,
		`process_resident_memory_bytes{instance="edge-1",job="application-grid-wrapper"} 1e8x20`,
		`process_resident_memory_bytes{instance="edge-1",job="application-grid-controller"} 1e8x20
			process_resident_memory_bytes{instance="edge-1",job="application-grid-wrapper"} 6e7x20`},
	"HealthServiceSilent": {45 * time.Minute, `{instance="edge-1"}`,
		`application_grid_wrapper_autonomy_polls_total{instance="edge-1",result="error"} 0+2x60`,
		`application_grid_wrapper_autonomy_polls_total{instance="edge-1",result="error"} 0+2x60
			application_grid_wrapper_autonomy_polls_total{instance="edge-1",result="ok"} 0+1x60`},
	"ControllerWithoutLeader": {6 * time.Minute, `{}`,
		`leader_election_master_status{name="application-grid-controller",pod="a"} 0x10`,
		`leader_election_master_status{name="application-grid-controller",pod="a"} 0x10
			leader_election_master_status{name="application-grid-controller",pod="b"} 1x10`},
	"SitesFailed": {16 * time.Minute, `{kind="DeploymentGrid"}`,
		`application_grid_controller_sites_failed{kind="DeploymentGrid"} 2x20`,
		`application_grid_controller_sites_failed{kind="DeploymentGrid"} 0x20`},
	"ChildConflicts": {6 * time.Minute, `{kind="ServiceGrid"}`,
		`application_grid_controller_conflicts{kind="ServiceGrid"} 1x10`,
		`application_grid_controller_conflicts{kind="ServiceGrid"} 0x10`},
	"SitesStalled": {11 * time.Minute, `{kind="DeploymentGrid"}`,
		`application_grid_controller_sites_stalled{kind="DeploymentGrid"} 1x20`,
		`application_grid_controller_sites_stalled{kind="DeploymentGrid"} 0x20`},
	"RemovalHeld": {2 * time.Minute, `{kind="DeploymentGrid"}`,
		`application_grid_controller_removals_held{kind="DeploymentGrid"} 3x5`,
		`application_grid_controller_removals_held{kind="DeploymentGrid"} 0x5`},
	"RolloutHalted": {2 * time.Minute, `{kind="DeploymentGrid"}`,
		`application_grid_controller_rollouts_halted{kind="DeploymentGrid"} 1x5`,
		`application_grid_controller_rollouts_halted{kind="DeploymentGrid"} 0x5`},
	"RolloutAwaitsApproval": {61 * time.Minute, `{kind="DeploymentGrid"}`,
		`application_grid_controller_rollouts_awaiting_approval{kind="DeploymentGrid"} 1x70`,
		`application_grid_controller_rollouts_awaiting_approval{kind="DeploymentGrid"} 0x70`},
	"SitesNotReady": {61 * time.Minute, `{kind="DeploymentGrid"}`,
		`application_grid_controller_sites{kind="DeploymentGrid"} 50x70
			application_grid_controller_sites_ready{kind="DeploymentGrid"} 49x70`,
		`application_grid_controller_sites{kind="DeploymentGrid"} 50x70
			application_grid_controller_sites_ready{kind="DeploymentGrid"} 50x70`},
	"HostsFileOutOfSync": {11 * time.Minute, `{instance="edge-1", job="statefulset-grid-daemon"}`,
		`statefulset_grid_daemon_in_sync{instance="edge-1",job="statefulset-grid-daemon"} 0x20`,
		`statefulset_grid_daemon_in_sync{instance="edge-1",job="statefulset-grid-daemon"} 1x20`},
	"HostsFileNotWritten": {45 * time.Minute, `{instance="edge-1"}`,
		`statefulset_grid_daemon_write_failures_total{instance="edge-1"} 0+1x60`,
		`statefulset_grid_daemon_write_failures_total{instance="edge-1"} 7x60`},
	"DaemonCredentialsRefused": {6 * time.Minute, `{instance="edge-1"}`,
		`statefulset_grid_daemon_upstream_forbidden{instance="edge-1",source="nodes"} 1x10`,
		`statefulset_grid_daemon_upstream_forbidden{instance="edge-1",source="statefulsetgrids"} 1x10`},
}

// TestAlerts loads the shipped rules into Prometheus' rule manager and evaluates them every minute: each alert fires
// for what it is for, with the labels that its text names, not before its time, and not for what is near it.
func TestAlerts(t *testing.T) {
	file := rulesFile(t)
	declared := map[string]bool{}
	for _, name := range alertNames(t, file) {
		declared[name] = true
		test, found := alertCases[name]
		if !found {
			t.Errorf("%s has no case here", name)
			continue
		}
		t.Run(name, func(t *testing.T) {
			firing := evaluate(t, file, test.of, test.after)[name]
			if len(firing) != 1 {
				t.Fatalf("it fires %d times: %v", len(firing), firing)
			}
			of := labels.NewBuilder(firing[0].Labels).Del(labels.AlertName, "severity").Labels().String()
			if of != test.fires {
				t.Errorf("it fires for %s, want %s", of, test.fires)
			}
			if severity := firing[0].Labels.Get("severity"); severity != "critical" && severity != "warning" {
				t.Errorf("its severity is %q", severity)
			}
			firing[0].Annotations.Range(func(l labels.Label) {
				if l.Value == "" || strings.Contains(l.Value, "<no value>") ||
					strings.Contains(l.Value, "error expanding") || strings.Contains(l.Value, " of  ") {
					t.Errorf("its %s is %q", l.Name, l.Value)
				}
			})
			if early := evaluate(t, file, test.of,
				firing[0].ActiveAt.Sub(time.Unix(0, 0))+firing[0].hold-time.Minute)[name]; firing[0].hold > 0 &&
				len(early) > 0 {
				t.Errorf("it fires before its time, after %s of %s", firing[0].hold-time.Minute, firing[0].hold)
			}
			if quiet := evaluate(t, file, test.notOf, test.after)[name]; len(quiet) > 0 {
				t.Errorf("it fires for what it is not for: %v", quiet)
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(alertCases)) {
		if !declared[name] {
			t.Errorf("there is no alert %s any more", name)
		}
	}
}

// rulesFile is the PrometheusRule as the operator hands it to Prometheus: its spec, in a file.
func rulesFile(t *testing.T) string {
	t.Helper()
	var rule operator.PrometheusRule
	must(t, yaml.UnmarshalStrict(read(t, "alerts.yaml"), &rule))
	if rule.Kind != "PrometheusRule" || rule.APIVersion != "monitoring.coreos.com/v1" ||
		rule.Labels["release"] != "kube-prometheus-stack" {
		t.Fatalf("not a rule that kube-prometheus-stack takes: %+v", rule.ObjectMeta)
	}
	data, err := yaml.Marshal(rule.Spec)
	must(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, data, 0o600))
	return file
}

// load are the groups of a file, over a storage.
func load(t *testing.T, file string, series storage.Storage) []*rules.Group {
	t.Helper()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(promqltest.NewTestEngine(t, false, 5*time.Minute, 1e6), series),
		Queryable: series, Appendable: series, Context: t.Context(),
		NotifyFunc:  func(context.Context, string, ...*rules.Alert) {},
		ExternalURL: &url.URL{Scheme: "http", Host: "prometheus.example.org"},
	})
	groups, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, file)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return slices.SortedFunc(maps.Values(groups),
		func(a, b *rules.Group) int { return strings.Compare(a.Name(), b.Name()) })
}

func alertNames(t *testing.T, file string) []string {
	t.Helper()
	var names []string
	for _, group := range load(t, file, teststorage.New(t)) {
		for _, rule := range group.AlertingRules() {
			names = append(names, rule.Name())
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %q were loaded", names)
	}
	return names
}

// firing is an alert that fires, with the time for which its condition has to hold.
type firing struct {
	*rules.Alert

	hold time.Duration
}

func (f firing) String() string { return f.Labels.String() }

// evaluate evaluates all rules over series, every minute up to a time, and returns what then fires, by name.
func evaluate(t *testing.T, file, series string, after time.Duration) map[string][]firing {
	t.Helper()
	db := promqltest.LoadedStorage(t, "load 1m\n"+indent(series))
	groups := load(t, file, db)
	found := map[string][]firing{}
	for at := time.Duration(0); at <= after; at += time.Minute {
		for _, group := range groups {
			group.Eval(t.Context(), time.Unix(0, 0).Add(at))
		}
	}
	for _, group := range groups {
		for _, rule := range group.AlertingRules() {
			if err := rule.LastError(); err != nil {
				t.Errorf("%s: %v", rule.Name(), err)
			}
			for _, alert := range rule.ActiveAlerts() {
				if alert.State == rules.StateFiring {
					found[rule.Name()] = append(found[rule.Name()], firing{alert, rule.HoldDuration()})
				}
			}
		}
	}
	return found
}

// indent gives each of the series the indentation that promtool's language wants.
func indent(series string) string {
	var b strings.Builder
	for line := range strings.Lines(series) {
		fmt.Fprintf(&b, "  %s\n", strings.TrimSpace(line))
	}
	return b.String()
}
