package rule

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

const (
	worlds  = 60
	changes = 120
)

// TestKubeProxyReachesWhatTheRuleSays in random worlds, after each of the changes that come one by one.
func TestKubeProxyReachesWhatTheRuleSays(t *testing.T) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // kube-proxy logs the ports that it leaves out
	seed := rand.Uint64()
	judged := 0
	for number := range worlds {
		w := newWorld(rand.New(rand.NewPCG(seed, uint64(number))))
		for _, name := range nodeNames {
			w.changeNode(name)
		}
		if w.chance(70) { // else slices come before their Service
			w.changeService()
		}
		for step := range changes {
			w.change()
			if complaint := w.judge(t); complaint != "" {
				t.Fatalf("seed %d, world %d, change %d: %s\n%s", seed, number, step, complaint, w)
			}
			judged++
		}
	}
	t.Logf("judged %d states", judged)
}

// shown are the slices that the wrapper shows.
func (w *world) shown(t *testing.T) (all []*discoveryv1.EndpointSlice) {
	t.Helper()
	versions, _, err := w.store.History.List(served.EndpointSlices, "ns", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range versions {
		typed, err := version.Decode()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, typed.(*discoveryv1.EndpointSlice))
	}
	return all
}

func (w *world) judge(t *testing.T) (complaint string) {
	t.Helper()
	all := w.shown(t)
	if len(all) != len(w.slices) {
		return fmt.Sprintf("%d slices are shown, there are %d", len(all), len(w.slices))
	}
	keys, _ := w.keys()
	for _, s := range all {
		if complaint := w.judgeSlice(s, len(keys) > 0); complaint != "" {
			return fmt.Sprintf("slice %s: %s", s.Name, complaint)
		}
	}
	if w.service == nil || w.service.Spec.ClusterIP == "None" {
		return ""
	}
	got := kubeProxy(w.service, all, w.nodes[viewer])
	want, lost := w.expected()
	allLocal := *w.service.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal &&
		w.service.Spec.ExternalTrafficPolicy == ""
	for addressType := range families {
		for port := range protocols {
			name := fmt.Sprintf("%s %s", addressType, port)
			g, x := got[name], want[name]
			if !slices.Equal(g.cluster, x.cluster) {
				return fmt.Sprintf("port %s reaches %q, the rule says %q", name, g.cluster, x.cluster)
			}
			mayLack := lost[name] && !allLocal
			if !slices.Equal(g.local, x.local) && (!mayLack || !isSubset(g.local, x.local)) {
				return fmt.Sprintf("port %s reaches %q on its own node, the rule says %q", name, g.local, x.local)
			}
		}
	}
	return ""
}

func isSubset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(one string) bool { return !slices.Contains(all, one) })
}

// judgeSlice judges what kube-proxy does not look at.
func (w *world) judgeSlice(s *discoveryv1.EndpointSlice, governed bool) (complaint string) {
	upstream := w.slices[s.Name]
	var addresses []string
	for _, e := range s.Endpoints {
		addresses = append(addresses, e.Addresses[0])
		if governed && e.Hints != nil {
			return "it has hints"
		}
	}
	if len(s.Endpoints) > 0 && len(s.Ports) == 0 && len(upstream.Ports) > 0 {
		return "it has endpoints, and no ports are left"
	}
	numbered := slices.ContainsFunc(upstream.Ports, func(p discoveryv1.EndpointPort) bool { return p.Port != nil })
	if w.service != nil && w.service.Spec.ClusterIP != "None" && numbered {
		return ""
	}
	if want := w.asOne(upstream); !slices.Equal(addresses, want) {
		return fmt.Sprintf("it is shown with %q, and decides as one for %q", addresses, want)
	}
	if len(s.Ports) != len(upstream.Ports) {
		return "it decides as one, and lacks ports"
	}
	return ""
}

// String is the world as YAML.
func (w *world) String() string {
	slim := map[string]any{"nodes": w.nodes, "dead": w.dead, "silent": w.silent, "doubted": w.doubted,
		"suspected": w.suspected}
	if w.service != nil {
		slim["service"] = map[string]any{
			"annotations": w.service.Annotations, "internal": w.service.Spec.InternalTrafficPolicy,
			"external": w.service.Spec.ExternalTrafficPolicy, "clusterIP": w.service.Spec.ClusterIP,
		}
	}
	described := map[string][]string{}
	for name, s := range w.slices {
		lines := []string{string(s.AddressType)}
		for _, p := range s.Ports {
			lines = append(lines, fmt.Sprintf("port %q %d", *p.Name, ptr.Deref(p.Port, 0)))
		}
		for _, e := range s.Endpoints {
			lines = append(lines, fmt.Sprintf("%s on %q, %s: grade %d", e.Addresses[0], ptr.Deref(e.NodeName, ""),
				e.TargetRef.UID, w.gradeIfKnown(&e)))
		}
		described[name] = lines
	}
	slim["slices"] = described
	text, _ := yaml.Marshal(slim)
	return string(text)
}

func (w *world) gradeIfKnown(e *discoveryv1.Endpoint) int {
	if w.service == nil {
		return useless
	}
	return w.grade(e)
}
