package check

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
)

// After checks whether an installed application-grid works.
func After(ctx context.Context, source Source) *Report {
	c := readCluster(ctx, source)
	c.readEndpoints(ctx)
	c.readGrids(ctx)
	c.readLease(ctx)
	r := &Report{}
	if c.nothing() {
		r.all("Installation", "", row{true, Failure, Object{Kind: kindDeployment},
			"application-grid is not installed: it has no workloads, CRDs or edge nodes here",
			"kubectl grid check --pre says whether and how to install it"})
		r.checkRemoval(c)
		for _, n := range c.nodes {
			r.otherNode(c, n)
		}
		return r.finish("Check", c.unread)
	}
	r.checkSetting(c)
	r.checkDefinitions(c)
	r.checkGrids(c)
	r.checkSkew(c)
	r.checkVersions(c)
	r.checkCredentials(ctx, c)
	r.checkNodeLocal(c)
	r.checkAlone(c)
	return r.finish("Check", c.unread)
}

// nothing reports whether the cluster has no part of an installation that would run.
func (c *Cluster) nothing() bool {
	return c.removed() && c.knows(kindPod, kindDeployment, kindCRD) &&
		len(c.installed(controllerProgram))+len(c.installed(daemonProgram))+len(c.installed(hubProgram))+
			len(c.definitions) == 0
}

// checkSetting checks everything that Services and grids rely on.
func (r *Report) checkSetting(c *Cluster) {
	r.checkEdgeNodes(c)
	r.checkSites(c)
	r.checkKubeadm(c)
	r.checkRemoval(c)
	for _, w := range c.running(kubeProxyProgram) {
		r.mode(w.Object, w.proxy.mode)
	}
	r.checkReplacements(c)
	r.checkBypasses(c)
	r.checkHub(c)
	r.checkPort(c)
	r.checkController(c)
	r.checkReach(c)
}

// Services is whether a diagnosis covers what nodes reach of each Service, which takes all EndpointSlices.
type Services int

// A command that reads the endpoints of its own Services does not need all of them.
const (
	WithoutServices Services = iota
	WithServices
)

// Diagnose returns the findings about a cluster that all other commands print, and what could not be read.
func Diagnose(ctx context.Context, source Source, services Services) *gridview.Diagnosis {
	c := readCluster(ctx, source)
	if services == WithServices {
		c.readEndpoints(ctx)
	}
	c.readGrids(ctx)
	c.readLease(ctx)
	found := &Report{}
	found.checkSetting(c)
	return c.diagnosis(found.finish("", nil).Findings)
}

func (r *Report) checkController(c *Cluster) {
	const check = gridview.CheckController
	if !c.knows(kindDeployment) {
		return
	}
	controllers := c.installed(controllerProgram)
	last := append([]*workload{{part: part{Object: named(kindDeployment, system, string(controllerProgram))}}},
		controllers...)[len(controllers)]
	none := len(controllers) == 0 && c.knows(kindLease)
	const apply = "apply manifests/application-grid-controller"
	r.first(check, "",
		row{len(controllers) == 0 && c.leads, OK, last.Object, "a controller leads that is not a Deployment here", ""},
		row{none && len(c.grids) == 0, Warning, last.Object, "no controller is installed, and no grids exist",
			apply + " if you want grids; Services work without it"},
		row{none, Failure, last.Object, "no controller is installed: grids are not being reconciled", apply},
		row{len(controllers) > 1, Failure, last.Object, "a second controller works on the same grids",
			"remove the one that is not application-grid's; docs/migrate.md says how to take over SuperEdge's"})
	for _, w := range controllers {
		desired, remedy := enumerate.Count(int(w.desired), "pod"), w.remedy(w.problem)
		r.first(check, "",
			row{w.ready == 0, Failure, w.Object, fmt.Sprintf("none of its %s is available, and grids are not being "+
				"reconciled%s", desired, w.problem), remedy},
			row{w.ready < w.desired, Warning, w.Object, fmt.Sprintf("%d of its %s are available%s", w.ready, desired,
				w.problem), remedy})
	}
	r.well(check, len(controllers) > 0, last.Object, "available: %s", enumerate.Count(int(last.ready), "pod"))
}

// checkDefinitions compares the grids' CRDs with those that this program knows.
func (r *Report) checkDefinitions(c *Cluster) {
	const check = "CRDs"
	const want = v1.CRDVersion
	const apply = "kubectl apply -k manifests/crds, or run a controller of this version (--manage-crds=auto)"
	for _, kind := range v1.Kinds {
		name := kind.Plural + "." + v1.GroupName
		about, crd := Object{Kind: kindCRD, Name: name}, c.definitions[name]
		if crd == nil {
			r.all(check, "", row{c.knows(kindCRD), Failure, about, "it is not there", apply})
			continue
		}
		version, _ := strconv.Atoi(crd.GetAnnotations()[v1.AnnotationCRDVersion]) // other values are not ours either
		r.first(check, "",
			row{version == 0, Failure, about, "it is not application-grid's: it has no annotation " +
				v1.AnnotationCRDVersion + ", as SuperEdge's have none; fields that grids have now are lost in it",
				"kubectl apply -k manifests/crds --server-side --force-conflicts, and see docs/migrate.md"},
			row{version < want, Failure, about, fmt.Sprintf("it is of version %d, older than this program's %d: "+
				"fields that grids have now are lost in it", version, want), apply},
			row{version > want, Warning, about, fmt.Sprintf("it is of version %d, newer than this program's %d",
				version, want), "use the kubectl-grid that belongs to the controller"},
			row{unmet(crd, "Established") != "", Failure, about, "the API server does not serve it: " +
				unmet(crd, "Established"), "kubectl describe crd " + name})
	}
	r.well(check, c.knows(kindCRD), Object{Kind: kindCRD}, "all %d are of this program's version", len(c.definitions))
}

// checkGrids reports unhealthy grids, and Services that no node sees.
func (r *Report) checkGrids(c *Cluster) {
	const check = "Grids"
	for _, g := range c.grids {
		ask := fmt.Sprintf("kubectl grid status %s/%s -n %s",
			strings.ToLower(g.about.Kind), g.about.Name, g.about.Namespace)
		r.all(check, "", row{g.trouble != "", Failure, g.about, g.trouble, ask})
	}
	r.well(check, c.knowsGrids() && c.knows(kindService) && r.clean("CRDs"), Object{Kind: "Grid"},
		"none of %s is stalled or degraded", enumerate.Count(len(c.grids), "grid"))
	for _, s := range c.services {
		r.all("Services", "", row{s.err != nil, Failure, s.about, fmt.Sprintf(
			"its annotation %s does not parse, so no node sees its endpoints: %v", s.annotation, s.err), fmt.Sprintf(
			`kubectl -n %s annotate service %s --overwrite 'topologyKeys=["LABEL"]'`, s.about.Namespace, s.about.Name)})
	}
	r.well("Services", c.knows(kindService), Object{Kind: kindService}, "the topologyKeys of %s parse",
		enumerate.Count(len(c.services), "Service"))
}
