package main

import (
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const root = "../.."

// TestChartIsFresh: what is committed is what manifests/ make of it.
func TestChartIsFresh(t *testing.T) {
	if err := run(root, false); err != nil {
		t.Error(err)
	}
}

// manifests is a copy of manifests/ in memory, to be changed.
func manifests(t *testing.T) fstest.MapFS {
	t.Helper()
	copied := fstest.MapFS{}
	original := os.DirFS(root + "/manifests")
	err := fs.WalkDir(original, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(original, name)
		copied[name] = &fstest.MapFile{Data: data}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// TestPlaceThatMoved: a manifest that no longer has what a value replaces is an error, and never a value without
// effect.
func TestPlaceThatMoved(t *testing.T) {
	for want, change := range map[string]struct{ file, from, to string }{
		`"  replicas: 2\n" is there 0 times`: {
			"application-grid-controller/deployment.yaml", "replicas: 2", "replicas: 3",
		},
		`value: 90MiB}\n" is there 0 times`: {"application-grid-wrapper/daemonset.yaml", "90MiB", "95MiB"},
		"is there 3 times, and should be 2 times": {
			"application-grid-wrapper/rbac.yaml", "kind: ServiceAccount\nmetadata:\n",
			"kind: ServiceAccount\nmetadata:\n  namespace: kube-system\n",
		},
		"{{ would be a template's": {
			"statefulset-grid-daemon/daemonset.yaml", "# yours", "# {{ yours }}",
		},
		"templates/kube-proxy.yaml: kubeadm/kube-pr": {
			"kubeadm/kube-proxy-edge.yaml", "maxUnavailable: 10%", "maxUnavailable: 1",
		},
	} {
		changed := manifests(t)
		file := changed[change.file]
		text := strings.Replace(string(file.Data), change.from, change.to, 1)
		if text == string(file.Data) {
			t.Fatalf("%s has no %q", change.file, change.from)
		}
		file.Data = []byte(text)
		if _, err := generate(changed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want something of %q", change.file, err, want)
		}
	}
}

// TestEveryManifestIsInTheChart: a manifest that is new is put into the chart, or left out on purpose.
func TestEveryManifestIsInTheChart(t *testing.T) {
	used := map[string]bool{}
	for _, template := range templates {
		for _, part := range template.parts {
			used[part.manifest] = true
		}
	}
	for name := range maps.Keys(copies) {
		used[name] = true
	}
	for _, name := range []string{ // no objects of an installation
		"kubeadm/kube-proxy-back.yaml", "monitoring/scrape-on-node.yaml",
		"samples/tenants.yaml", "samples/kustomizeconfig.yaml", "superedge/away.yaml", "superedge/back.yaml",
	} {
		used[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(manifests(t))) {
		if strings.HasSuffix(name, ".yaml") && !strings.HasSuffix(name, "kustomization.yaml") &&
			!strings.HasPrefix(name, "crds/") && !used[name] {
			t.Errorf("%s is not in the chart: hack/chart/templates.go", name)
		}
	}
}
