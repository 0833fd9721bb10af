package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Phases of a site besides those in package v1.
const (
	Missing v1.SitePhase = "Missing" // the site has no workload, and the controller has not said why
	Unknown v1.SitePhase = "Unknown" // the controller has not reported the site
)

// Grid is the state of one grid.
type Grid struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Key is gridUniqKey.
	Key string `json:"gridUniqKey"`
	// Keys are the topology keys of a ServiceGrid's Service: gridUniqKey and the fallbacks. Other grids have one.
	Keys topology.Keys `json:"-"`
	// Healthy: the grid has no problem, and every site is Ready.
	Healthy bool `json:"healthy"`
	// Problem is a problem of the grid as a whole, in words; empty if it has none.
	Problem string `json:"problem,omitempty"`
	// RollsOut: the rollout is all that the grid has to report, and every site is Ready.
	RollsOut bool `json:"-"`
	// Service is that of a ServiceGrid, and SiteCount the number of sites to which it is kept.
	Service   string `json:"service,omitempty"`
	SiteCount int32  `json:"siteCount"`
	// Sites are the sites of a grid of workloads, by name.
	Sites []Site `json:"sites,omitempty"`
	// UnlistedReady and Unlisted are how many ready and other sites the status of a large grid only counts.
	UnlistedReady int32 `json:"unlistedReady,omitempty"`
	Unlisted      int32 `json:"unlisted,omitempty"`
}

// Object names the grid.
func (g Grid) Object() Object { return Object{g.Kind, g.Namespace, g.Name} }

// Site is the state of one site of a grid. The counts are of pods.
type Site struct {
	Name  string       `json:"name"`
	Phase v1.SitePhase `json:"phase"`
	// Child is the name of the site's workload.
	Child     string `json:"child"`
	Desired   int64  `json:"desired"`
	Ready     int64  `json:"ready"`
	Updated   int64  `json:"updated"`
	Available int64  `json:"available"`
	// Nodes is how many nodes are in the site; nil if nodes could not be read.
	Nodes *int `json:"nodes,omitempty"`
	// Template is the template in use, if it is not spec.template.
	Template string `json:"template,omitempty"`
	// Revision is the revision of the workload, if a rollout has not reached it yet.
	Revision string `json:"revision,omitempty"`
	// Others names the fields of the workload's spec that others own, and the grid does not.
	Others string `json:"othersOwn,omitempty"`
	// Problem is why the site is not Ready, in words.
	Problem string `json:"problem,omitempty"`
}

// State returns the site's phase, and in words why it is not Ready.
func (u *Site) State() string {
	if u.Problem == "" {
		return string(u.Phase)
	}
	return string(u.Phase) + ": " + u.Problem
}

// Surroundings are the other objects on which the state of grids depends. Those that could not be read are nil, and
// nothing is concluded from them.
type Surroundings struct {
	// Nodes are the labels of every node, by name.
	Nodes map[string]topology.Labels
	// Children are the workloads, or the Services, that are labelled as children of one kind of grid in the grid's
	// namespace, by name.
	Children map[string]metav1.Object
	// Pods includes the pods of the grid's sites. PodsOld is set if they could not be read again.
	Pods    []corev1.Pod
	PodsOld bool
	// Now is the time to which others are relative. If it is zero, they are absolute, and a state changes only with its
	// objects.
	Now time.Time
}

// Of returns the state of a grid of any kind.
func Of(kind v1.GridKind, grid v1.Object, s Surroundings) Grid {
	if of, ok := grid.(*v1.ServiceGrid); ok {
		return Service(of, s)
	}
	return Workloads(kind, grid, s)
}

// Workloads returns the state of a DeploymentGrid, StatefulSetGrid or DaemonSetGrid.
func Workloads(kind v1.GridKind, grid v1.Object, s Surroundings) Grid {
	spec, status := v1.SpecAndStatus(grid)
	child := kind.Child.Kind
	g := Grid{Kind: kind.Kind, Namespace: grid.GetNamespace(), Name: grid.GetName(), Key: spec.GridUniqKey,
		Keys: topology.Keys{spec.GridUniqKey}, SiteCount: status.Sites,
		UnlistedReady: status.UnlistedReadySites, Unlisted: status.UnlistedSites}
	nodes, children := s.nodesIn(spec.GridUniqKey), s.childrenOf(grid)
	names := slices.AppendSeq(slices.Collect(maps.Keys(nodes)), maps.Keys(status.States))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		state, listed := status.States[name]
		if g.UnlistedReady+g.Unlisted > 0 && !listed && (s.Children == nil || children[name] != nil) {
			continue // one of the sites that are only counted
		}
		told := state.Phase != "" // SuperEdge's controller did not report a phase
		if !told && nodes != nil && nodes[name] == 0 {
			continue
		}
		site := Site{
			Name: siteName(name), Phase: state.Phase, Child: kind.ChildName(grid.GetName(), name),
			Template: state.Template, Revision: state.Revision,
			Desired: state.Replicas, Ready: state.ReadyReplicas, Updated: state.UpdatedReplicas,
			Available: state.AvailableReplicas,
		}
		live := children[name]
		if live != nil {
			site.Child, site.Others = live.GetName(), v1.ForeignFields(live.GetManagedFields())
		}
		if nodes != nil {
			site.Nodes = new(nodes[name])
		}
		site.Problem = describe(&site, state, child, spec.GridUniqKey, s)
		if !told {
			site.Phase = Unknown
			site.Problem = "the controller has not reported on this site yet"
		}
		s.lookFor(&site, child, live)
		g.Sites = append(g.Sites, site)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady)
	g.Problem = problemOf(grid)
	if g.Problem == "" && (len(g.Sites) == 0 || ready.Reason == v1.ReasonInvalidKey) {
		g.Problem = notReady(ready) // otherwise the sites have the problems
	}
	if g.Problem == "" && ready != nil && ready.Reason == v1.ReasonRollout {
		g.Problem, g.RollsOut = ready.Message, true
	}
	if degraded := meta.FindStatusCondition(status.Conditions, v1.ConditionDegraded); degraded != nil &&
		degraded.Reason == v1.ReasonMassRemoval {
		g.Problem, g.RollsOut = cmp.Or(g.Problem, degraded.Reason+": "+degraded.Message), false
	}
	allReady := g.Unlisted == 0 && !slices.ContainsFunc(g.Sites, func(u Site) bool { return u.Phase != v1.SiteReady })
	g.Healthy, g.RollsOut = g.Problem == "" && allReady, g.RollsOut && allReady
	return g
}

// childrenOf returns the workloads of a grid by site. If a site has two, it returns the one whose name is derived from
// the site.
func (s Surroundings) childrenOf(grid metav1.Object) map[string]metav1.Object {
	children := map[string]metav1.Object{}
	for _, name := range slices.Sorted(maps.Keys(s.Children)) {
		live := s.Children[name]
		site := v1.SiteOf(live, grid.GetName())
		if metav1.IsControlledBy(live, grid) && (children[site] == nil || name == grid.GetName()+"-"+site) {
			children[site] = live
		}
	}
	return children
}

// Service returns the state of a ServiceGrid.
func Service(grid *v1.ServiceGrid, s Surroundings) Grid {
	g := Grid{
		Kind: "ServiceGrid", Namespace: grid.Namespace, Name: grid.Name, Key: grid.Spec.GridUniqKey,
		Keys:    keysOfGrid(grid),
		Service: grid.Name + v1.ServiceSuffix, SiteCount: grid.Status.Sites,
	}
	ready := meta.FindStatusCondition(grid.Status.Conditions, v1.ConditionReady)
	g.Problem = cmp.Or(problemOf(grid), notReady(ready))
	if g.Problem == "" && s.Children != nil {
		g.Problem = CompareService(grid, s.Children[g.Service])
	}
	g.Healthy = g.Problem == ""
	return g
}

func keysOfGrid(grid *v1.ServiceGrid) topology.Keys {
	return append(topology.Keys{grid.Spec.GridUniqKey}, grid.Spec.FallbackKeys...)
}

// CompareService returns in words what is wrong with the Service of a ServiceGrid, which is nil if it does not exist;
// "" if nothing is. The controller, which would repair it, may be away.
func CompareService(grid *v1.ServiceGrid, live metav1.Object) string {
	name, want := grid.Name+v1.ServiceSuffix, keysOfGrid(grid)
	if live == nil {
		return "this grid has no Service " + name
	}
	if !metav1.IsControlledBy(live, grid) {
		return foreign("Service", live)
	}
	keys, _, err := topology.KeysOf(live.GetAnnotations())
	if err == nil && slices.Equal(keys, want) {
		return ""
	}
	return fmt.Sprintf("Service %s does not have the topologyKeys of this grid, [%s]; is application-grid-controller "+
		"running?", name, want.Quoted())
}

// nodesIn counts the nodes of every site; nil if nodes are not known.
func (s Surroundings) nodesIn(key string) map[string]int {
	if s.Nodes == nil {
		return nil
	}
	sites := map[string]int{}
	for _, labels := range s.Nodes {
		if site, in := labels[key]; in {
			sites[site]++
		}
	}
	return sites
}

// describe returns in words why a site is not Ready.
func describe(site *Site, state v1.SiteState, child, key string, s Surroundings) string {
	switch state.Phase {
	case v1.SiteReady:
		return ""
	case v1.SiteFailed:
		return phrase(state.Reason, state.Message)
	case v1.SiteStalled:
		problem := phrase(state.Reason, state.Message)
		if strings.Contains(problem, "pod ") {
			return problem
		}
		return problem + s.why(key, site.Name)
	case v1.SiteHeld:
		return "held by the annotation " + v1.AnnotationHold + ": " + state.Message
	case v1.SiteUnreachable:
		return "the control plane has lost contact with all nodes of this site"
	case v1.SiteRetained, v1.SiteRemoving:
		return "no node is in this site any more; " + child + " " + site.Child + " " + s.stays(state)
	default:
	}
	for _, lack := range []struct {
		pods int64
		what string
	}{{site.Ready, "ready"}, {site.Updated, "updated yet"}, {site.Available, "available yet"}} {
		if missing := site.Desired - lack.pods; missing > 0 {
			return fmt.Sprintf("%d of %d pods not %s%s", missing, site.Desired, lack.what, s.why(key, site.Name))
		}
	}
	return child + " " + site.Child + " is being created or changed" + s.why(key, site.Name)
}

// stays describes whether the workload of a site without nodes stays.
func (s Surroundings) stays(state v1.SiteState) string {
	text := "is removed "
	switch at := state.RemovalTime; {
	case state.Phase == v1.SiteRetained:
		return "stays, as spec.removal.policy says"
	case state.Reason == v1.ReasonMassRemoval:
		return "stays until the removal of so many sites is approved"
	case at == nil:
		text += "soon"
	case s.Now.IsZero():
		text += fmt.Sprintf("at %s unless one comes back", at.UTC().Format(time.RFC3339))
	case s.Now.Before(at.Time):
		text += fmt.Sprintf("in %s unless one comes back", at.Sub(s.Now).Round(time.Second))
	default:
		text += "now"
	}
	if state.Message != "" {
		text += ": " + state.Message
	}
	return text
}

// lookFor compares the controller's report on a site's workload with the existing objects, because the controller may
// be away.
func (s Surroundings) lookFor(site *Site, child string, live metav1.Object) {
	if s.Children == nil || live != nil || site.Phase == v1.SiteFailed || site.Phase == v1.SiteRemoving {
		return
	}
	if other := s.Children[site.Child]; other != nil {
		site.Phase, site.Problem = v1.SiteFailed, foreign(child, other)
		return
	}
	site.Phase, site.Problem = Missing, fmt.Sprintf("there is no %s %s of this grid", child, site.Child)
}

// foreign describes the owner of an object with the name of a child.
func foreign(kind string, live metav1.Object) string {
	owner := "no grid"
	if by := metav1.GetControllerOf(live); by != nil {
		owner = by.Kind + " " + by.Name
	}
	return fmt.Sprintf("%s: %s %s exists already and belongs to %s", v1.ReasonNameConflict, kind, live.GetName(), owner)
}

// StatusOf returns the conditions in the status of a grid, and the generation that they are about.
func StatusOf(grid v1.Object) (conditions []metav1.Condition, observed int64) {
	if g, ok := grid.(*v1.ServiceGrid); ok {
		return g.Status.Conditions, g.Status.ObservedGeneration
	}
	_, status := v1.SpecAndStatus(grid)
	return status.Conditions, status.ObservedGeneration
}

// Unanswered returns why the status of a grid is not that of its present spec; "" if it is, and then it has the
// condition Ready.
func Unanswered(grid v1.Object) string {
	conditions, observed := StatusOf(grid)
	switch {
	case meta.FindStatusCondition(conditions, v1.ConditionReady) == nil:
		return "the controller has not reported on it yet; is application-grid-controller running?"
	case observed < grid.GetGeneration():
		return fmt.Sprintf("the controller has not answered its last change yet (generation %d of %d); is "+
			"application-grid-controller running?", observed, grid.GetGeneration())
	}
	return ""
}

// problemOf returns why nothing else is said of a grid; "" if its status is that of its present spec.
func problemOf(grid v1.Object) string {
	if grid.GetDeletionTimestamp() != nil {
		return "the grid is being deleted"
	}
	return Unanswered(grid)
}

// notReady returns why the grid is not ready; "" if it is, or if that is not known.
func notReady(ready *metav1.Condition) string {
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return ""
	}
	return ready.Reason + ": " + ready.Message
}
