package check

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/manifests"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// After finds out whether an installed application-grid holds.
func After(ctx context.Context, source Source) *Report {
	reader := readCluster(ctx, source)
	reader.grids(ctx)
	reader.credentials(ctx)
	c := reader.cluster
	r := &report{}
	if c.nothing() {
		r.add(Failure, "Installation", Object{Kind: kindDeployment},
			"application-grid is not installed: there are none of its workloads, CRDs and edge nodes",
			"kubectl grid check --pre says whether and how to install it")
		r.checkRemoval(c)
		r.checkRead(c)
		return r.finish("Check")
	}
	r.checkSetting(c)
	r.checkDefinitions(c)
	r.checkGrids(c)
	r.checkSkew(c)
	r.checkVersions(c)
	r.checkCredentials(c)
	r.checkNodeLocal(c)
	r.checkAlone(c)
	r.checkRead(c)
	return r.finish("Check")
}

// nothing reports whether nothing of an installation is there that would run.
func (c *Cluster) nothing() bool {
	return c.removed() && c.knows(kindPod, kindDeployment, kindCRD) &&
		len(c.installed(controllerProgram))+len(c.installed(daemonProgram))+len(c.installed(hubProgram)) == 0 &&
		!slices.ContainsFunc(c.definitions, func(d definition) bool { return d.found })
}

// checkSetting looks at what Services and grids rely on.
func (r *report) checkSetting(c *Cluster) {
	r.checkEdgeNodes(c)
	r.checkSites(c)
	r.checkKubeadm(c)
	r.checkRemoval(c)
	for _, w := range c.running(kubeProxyProgram) {
		r.mode(w.about(), w.proxy.mode)
	}
	r.checkReplacements(c)
	r.checkBypasses(c)
	r.checkHub(c)
	r.checkPort(c)
	r.checkController(c)
}

// Diagnose finds out what all other commands print of a cluster, and what could not be read of it.
func Diagnose(ctx context.Context, source Source) (diagnosis *gridview.Diagnosis, unread []Finding) {
	reader := readCluster(ctx, source)
	reader.grids(ctx)
	c := reader.cluster
	found, missing := &report{}, &report{}
	found.checkSetting(c)
	missing.checkRead(c)
	return &gridview.Diagnosis{Findings: found.finish("").Findings, Nodes: c.labels()}, missing.findings
}

// checkController looks for the controller.
func (r *report) checkController(c *Cluster) {
	const check = gridview.CheckController
	if !c.knows(kindDeployment) {
		return
	}
	controllers := c.installed(controllerProgram)
	none := named(kindDeployment, system, string(controllerProgram))
	second := append(slices.Clone(controllers), &workload{}, &workload{})[1]
	r.first(check, "",
		row{len(controllers) == 0 && c.leads, OK, none, "a controller leads that is no Deployment of this cluster", ""},
		row{len(controllers) == 0 && c.gridCount() == 0, Warning, none,
			"there is no controller, and there are no grids",
			"apply manifests/application-grid-controller if you want grids; Services work without it"},
		row{len(controllers) == 0, Failure, none, "there is no controller: what grids say is not done",
			"apply manifests/application-grid-controller"},
		row{len(controllers) > 1, Failure, second.about(),
			"there is a second controller, which works on the same grids",
			"remove the one that is not application-grid's; docs/migrate.md says how to take over SuperEdge's"})
	for _, w := range controllers {
		describe := fmt.Sprintf("kubectl -n %s describe deployment %s", w.namespace, w.name)
		why := w.problem
		if why != "" {
			why = ": " + why
		}
		if strings.Contains(why, "ImagePull") || strings.Contains(why, "ErrImage") {
			describe = "push the image " + w.image + ", or import it on the nodes (docs/install.md, Images)"
		}
		r.first(check, "",
			row{w.ready == 0, Failure, w.about(), fmt.Sprintf("none of its %s is available, and what grids say is not "+
				"done%s", output.Count(int(w.desired), "pod"), why), describe},
			row{w.ready < w.desired, Warning, w.about(), fmt.Sprintf("%d of its %s are available%s", w.ready,
				output.Count(int(w.desired), "pod"), why), describe})
	}
	if r.clean(check) && len(controllers) > 0 {
		r.ok(check, controllers[0].about(), "available: %s", output.Count(int(controllers[0].ready), "pod"))
	}
}

// gridCount is how many grids there are.
func (c *Cluster) gridCount() (total int) {
	for _, kind := range v1.Kinds {
		total += c.gridCounts[kind.Kind]
	}
	return total
}

// shippedVersions are the versions of the CRDs that this program was built with, by name.
func shippedVersions() (map[string]int, error) {
	files, err := fs.Glob(manifests.CRDs, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	versions := map[string]int{}
	for _, file := range files {
		data, err := manifests.CRDs.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(data, &object); err != nil {
			return nil, fmt.Errorf("%s: %w", path.Base(file), err)
		}
		if versions[object.Name], err = strconv.Atoi(object.Annotations[v1.AnnotationCRDVersion]); err != nil {
			return nil, fmt.Errorf("%s: annotation %s: %w", path.Base(file), v1.AnnotationCRDVersion, err)
		}
	}
	return versions, nil
}

// checkDefinitions compares the grids' CRDs with those that this program knows.
func (r *report) checkDefinitions(c *Cluster) {
	const check = "CRDs"
	shipped, err := shippedVersions()
	if err != nil { // a defect of the build
		r.add(Unknown, check, Object{Kind: kindCRD},
			"the versions that this program was built with cannot be read: "+err.Error(), "use a released kubectl-grid")
		return
	}
	for _, d := range c.definitions {
		about, want := Object{Kind: kindCRD, Name: d.name}, shipped[d.name]
		const apply = "kubectl apply -k manifests/crds, or run a controller of this version (--manage-crds=auto)"
		r.first(check, "",
			row{!d.found, Failure, about, "it is not there", apply},
			row{d.version == 0, Failure, about, "it is not application-grid's: it has no annotation " +
				v1.AnnotationCRDVersion + ", as SuperEdge's have none; fields that grids have now are lost in it",
				"kubectl apply -k manifests/crds --server-side --force-conflicts; docs/migrate.md says what else " +
					"there is to do"},
			row{d.version < want, Failure, about, fmt.Sprintf("it is of version %d, older than this program's %d: "+
				"fields that grids have now are lost in it", d.version, want), apply},
			row{d.version > want, Warning, about, fmt.Sprintf("it is of version %d, newer than this program's %d",
				d.version, want), "use the kubectl-grid that belongs to the controller"},
			row{!d.established, Failure, about, "the API server does not serve it (condition Established is not True)",
				"kubectl describe crd " + d.name})
	}
	r.well(check, len(c.definitions) == len(v1.Kinds), Object{Kind: kindCRD}, "all %d are of this program's version",
		len(c.definitions))
}

// checkGrids says which grids are not well, and which Services no node sees.
func (r *report) checkGrids(c *Cluster) {
	const check = "Grids"
	for _, g := range c.grids {
		kind := strings.ToLower(g.about.Kind)
		r.add(Failure, check, g.about, g.message, fmt.Sprintf("kubectl grid status %s/%s -n %s", kind, g.about.Name,
			g.about.Namespace))
	}
	r.well(check, c.knows("DeploymentGrid", "StatefulSetGrid", "DaemonSetGrid", "ServiceGrid") && r.clean("CRDs"),
		Object{Kind: "Grid"}, "none of %s is stalled or degraded", output.Count(c.gridCount(), "grid"))
	for _, s := range c.services {
		r.add(Failure, "Services", s.about, s.message,
			fmt.Sprintf(`kubectl -n %s annotate service %s --overwrite 'topologyKeys=["LABEL"]'`, s.about.Namespace,
				s.about.Name))
	}
	r.well("Services", c.knows(kindService), Object{Kind: kindService}, "the topologyKeys of %s parse",
		output.Count(c.gridCounts[kindService], "Service"))
}
