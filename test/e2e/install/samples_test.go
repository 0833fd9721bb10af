package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const samples = manifests + "/samples/"

// TestKustomizeReachesTemplates: with the configuration that is shipped, the hash of a generated ConfigMap or Secret
// gets to every place of a grid's template that names one, and changes with the content.
func TestKustomizeReachesTemplates(t *testing.T) {
	configuration, err := os.ReadFile(samples + "kustomizeconfig.yaml")
	suite.Must(t, err)
	const container = `{name: c, image: i, envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: password}}],
		env: [{name: A, valueFrom: {configMapKeyRef: {name: settings, key: a}}}, {name: B, valueFrom: {secretKeyRef: {name: password, key: b}}}]}`
	const pod = `{template: {spec: {initContainers: [` + container + `], containers: [` + container + `],
		volumes: [{name: a, configMap: {name: settings}}, {name: b, secret: {secretName: password}},
			{name: c, projected: {sources: [{configMap: {name: settings}}, {secret: {name: password}}]}}]}}}`
	names := regexp.MustCompile(`(?:name|secretName): ((?:settings|password)\S*)`)
	build := func(kind, value string) []string {
		files := filesys.MakeFsInMemory()
		for name, text := range map[string]string{
			"kustomizeconfig.yaml": string(configuration),
			"grid.yaml":            strings.ReplaceAll(`{apiVersion: superedge.io/v1, kind: `+kind+`, metadata: {name: demo}, spec: {gridUniqKey: zone1, template: `+pod+`}}`, "\t", " "),
			"kustomization.yaml": `{resources: [grid.yaml], configurations: [kustomizeconfig.yaml],
 configMapGenerator: [{name: settings, literals: [a=` + value + `]}], secretGenerator: [{name: password, literals: [b=` + value + `]}]}`,
		} {
			suite.Must(t, files.WriteFile(filepath.Join("/", name), []byte(text)))
		}
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/")
		suite.Must(t, err)
		for _, resource := range resources.Resources() {
			if resource.GetKind() != kind {
				continue
			}
			document, err := resource.AsYAML()
			suite.Must(t, err)
			var found []string
			for _, match := range names.FindAllStringSubmatch(string(document), -1) {
				found = append(found, match[1])
			}
			return found
		}
		t.Fatalf("there is no %s", kind)
		return nil
	}
	hashed := regexp.MustCompile(`^(settings|password)-[a-z0-9]{10}$`)
	for _, kind := range []string{"DeploymentGrid", "StatefulSetGrid", "DaemonSetGrid"} {
		one, two := build(kind, "1"), build(kind, "2")
		if len(one) != 12 || len(two) != 12 {
			t.Fatalf("%s: found %q and %q", kind, one, two)
		}
		for i := range one {
			if !hashed.MatchString(one[i]) || !hashed.MatchString(two[i]) || one[i] == two[i] {
				t.Errorf("%s: place %d has %s, and with other content %s", kind, i, one[i], two[i])
			}
		}
	}
}

// TestTenantsPolicy: the sample policy admits the grids that it should, and refuses the others in its own words.
func TestTenantsPolicy(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, NoKwok: true, NoScheduler: true})
	f.kubectl("apply", "-k", manifests+"/crds")
	f.kubectl("wait", "--for=condition=Established", "crd/deploymentgrids.superedge.io",
		"crd/servicegrids.superedge.io")
	f.kubectl("apply", "-f", samples+"tenants.yaml")
	f.kubectl("create", "clusterrole", "grids", "--verb=*",
		"--resource=deploymentgrids.superedge.io,servicegrids.superedge.io")
	f.kubectl("create", "clusterrolebinding", "jane", "--clusterrole=grids", "--user=jane")
	grid := func(name, key, pool string) string {
		return fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: %s, namespace: default}, spec: {gridUniqKey: %s, template: {}%s}}`, name, key, pool)
	}
	apply := func(manifest, user string) error {
		_, err := f.tryKubectl(manifest, "apply", "--as="+user, "--as-group=system:authenticated", "-f", "-")
		return err
	}
	refused := func(what, manifest, user, says string) {
		t.Helper()
		f.Eventually(what+" is refused", func() error {
			switch err := apply(manifest, user); {
			case err == nil:
				f.kubectl("delete", "deploymentgrids", "--all", "-n", "default")
				return fmt.Errorf("it was admitted")
			case !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "application-grid-tenants"):
				return err
			}
			return nil
		})
	}
	refused("another key", grid("demo", "rack", ""), "jane",
		"gridUniqKey must be zone1 or topology.kubernetes.io/zone in this cluster")
	f.Must(apply(grid("demo", "zone1", ""), "jane"))
	f.Must(apply(grid("zones", "topology.kubernetes.io/zone", ""), "jane"))
	pool := func(templates int) string {
		var b strings.Builder
		for i := range templates {
			fmt.Fprintf(&b, "t%d: {}, ", i)
		}
		return ", templatePool: {" + strings.TrimSuffix(b.String(), ", ") + "}"
	}
	f.Must(apply(grid("demo", "zone1", pool(20)), "jane"))
	refused("a large pool", grid("demo", "zone1", pool(21)), "jane",
		"a grid may have 20 templates in its pool at most")

	service := func(key string) string {
		return `{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo, namespace: default}, spec: {gridUniqKey: ` + key + `, template: {}}}`
	}
	f.Must(apply(service("zone1"), "jane"))
	refused("another key of a ServiceGrid", strings.Replace(service("rack"), "name: demo", "name: other", 1), "jane",
		"gridUniqKey must be zone1")

	f.noWarnings("application-grid-tenants", "application-grid-tenants-pools")
}
