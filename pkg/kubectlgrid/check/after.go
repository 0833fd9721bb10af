package check

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/manifests"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// After finds out whether an installed application-grid holds.
func After(ctx context.Context, source Source) *Report {
	reader := readCluster(ctx, source)
	reader.grids(ctx)
	reader.credentials(ctx)
	c := reader.cluster
	r := &report{}
	r.checkEdgeNodes(c)
	r.checkKubeadm(c)
	r.checkModes(c)
	r.checkReplacements(c)
	r.checkPort(c)
	r.checkController(c)
	r.checkDefinitions(c)
	r.checkGrids(c)
	r.checkSkew(c)
	r.checkVersions(c)
	r.checkCredentials(c)
	r.checkNodeLocal(c)
	r.checkRead(c)
	return r.finish("Check")
}

// checkController looks for the controller.
func (r *report) checkController(c *Cluster) {
	const check = "Controller"
	if !c.knows(kindDeployment) {
		return
	}
	controllers := c.installed(controllerProgram)
	switch {
	case len(controllers) == 0 && len(c.gridCounts) == 0:
		r.add(Warning, check, Object{kindDeployment, system, string(controllerProgram)},
			"there is no controller, and there are no grids", "apply manifests/application-grid-controller if you "+
				"want grids; Services with topologyKeys work without it")
	case len(controllers) == 0:
		r.add(Failure, check, Object{kindDeployment, system, string(controllerProgram)},
			"there is no controller: what grids say is not done", "apply manifests/application-grid-controller")
	case len(controllers) > 1:
		r.add(Failure, check, controllers[1].about(), "there is a second controller, which works on the same grids",
			"remove the one that is not application-grid's; docs/migrate.md says how to take over SuperEdge's")
	}
	for _, w := range controllers {
		if w.ready == 0 {
			r.add(Failure, check, w.about(), fmt.Sprintf("none of its %s is available: what grids say is not done",
				count(int(w.desired), "pod")),
				fmt.Sprintf("kubectl -n %s describe deployment %s; kubectl -n %s logs deployment/%s", w.namespace,
					w.name,
					w.namespace, w.name))
		} else if w.ready < w.desired {
			r.add(Warning, check, w.about(),
				fmt.Sprintf("%d of its %s are available", w.ready, count(int(w.desired), "pod")),
				fmt.Sprintf("kubectl -n %s describe deployment %s", w.namespace, w.name))
		}
	}
	if r.clean(check) {
		r.ok(check, controllers[0].about(), "available: %s", count(int(controllers[0].ready), "pod"))
	}
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
		switch {
		case !d.found:
			r.add(Failure, check, about, "it is not there",
				"apply manifests/crds, or run the controller, which installs it "+
					"(--manage-crds=auto)")
		case d.version == 0:
			r.add(Failure, check, about,
				"it is not application-grid's: it has no annotation "+v1.AnnotationCRDVersion+", as SuperEdge's have "+
					"none; fields that grids have now are lost in it",
				"kubectl apply -k manifests/crds --server-side --force-conflicts; docs/migrate.md says what else "+
					"there is to do")
		case d.version < want:
			r.add(Failure, check, about,
				fmt.Sprintf("it is of version %d, older than this program's %d: fields that grids "+
					"have now are lost in it", d.version, want),
				"kubectl apply -k manifests/crds, or run a controller of this version, which replaces it "+
					"(--manage-crds=auto)")
		case d.version > want:
			r.add(Warning, check, about,
				fmt.Sprintf("it is of version %d, newer than this program's %d", d.version, want),
				"use the kubectl-grid that belongs to the controller")
		case !d.established:
			r.add(Failure, check, about, "the API server does not serve it (condition Established is not True)",
				"kubectl describe crd "+d.name)
		}
	}
	if r.clean(check) && len(c.definitions) == len(v1.Kinds) {
		r.ok(check, Object{Kind: kindCRD}, "all %d are of this program's version", len(c.definitions))
	}
}

// checkGrids says which grids are not well, and which Services no node sees.
func (r *report) checkGrids(c *Cluster) {
	const check = "Grids"
	for _, g := range c.grids {
		kind := strings.ToLower(g.about.Kind)
		r.add(Failure, check, g.about, g.message, fmt.Sprintf("kubectl grid status %s/%s -n %s", kind, g.about.Name,
			g.about.Namespace))
	}
	if c.knows("DeploymentGrid", "StatefulSetGrid", "DaemonSetGrid", "ServiceGrid") && r.clean(check) &&
		r.clean("CRDs") {
		total := 0
		for _, kind := range v1.Kinds {
			total += c.gridCounts[kind.Kind]
		}
		if total == 0 {
			r.ok(check, Object{Kind: "Grid"}, "there are none")
		} else {
			r.ok(check, Object{Kind: "Grid"}, "none of %s is stalled or degraded", count(total, "grid"))
		}
	}
	for _, s := range c.services {
		r.add(Failure, "Services", s.about, s.message,
			fmt.Sprintf(`kubectl -n %s annotate service %s --overwrite 'topologyKeys=["LABEL"]'`, s.about.Namespace,
				s.about.Name))
	}
	if c.knows(kindService) && r.clean("Services") {
		r.ok("Services", Object{Kind: kindService}, "the topologyKeys of %s parse",
			count(c.gridCounts[kindService], "Service"))
	}
}
