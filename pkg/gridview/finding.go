package gridview

import (
	"cmp"
	"path"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Severity is the severity of a finding.
type Severity string

// The severities. Unknown means that the API server did not, or cannot, answer the question.
const (
	OK         Severity = "ok"
	Warning    Severity = "warning"
	Failure    Severity = "failure"
	Unverified Severity = "unknown"
)

// Object is what a finding is about. A kind without a name means all objects of the kind.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns the object's name for a table.
func (o Object) String() string {
	if o.Name == "" && o.Namespace != "" {
		return o.Kind + " in " + o.Namespace
	}
	return strings.TrimSuffix(o.Kind+" "+path.Join(o.Namespace, o.Name), " ")
}

// Finding is one answer about a cluster.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check is the name of the question, the same in every version.
	Check  string `json:"check"`
	Object Object `json:"object"`
	// Message is the finding in words, and Action what to do about it. A finding that is not ok has an action.
	Message string `json:"message"`
	Action  string `json:"action,omitempty"`
	// Node is the node that the finding is about, if it is about a single one; Key is the label key of the sites that
	// it is about. Without both it concerns every site.
	Node string `json:"node,omitempty"`
	Key  string `json:"key,omitempty"`
}

// The checks that commands, or the verdict on a node, use. CheckController concerns grids, not Services.
const (
	CheckSite       = "Site"
	CheckNames      = "Names"
	CheckController = "Controller"
	CheckReach      = "Reach"
	CheckHub        = "Hub"
	CheckBypass     = "Bypass"
	// CheckRead is that of the findings that something could not be read.
	CheckRead = "Read"
	// CheckWrapper and the checks below find out whether a node keeps Services to its site.
	CheckWrapper     = "Wrapper"
	CheckKubeProxy   = "KubeProxy"
	CheckReplacement = "KubeProxyReplacement"
	CheckPort        = "Port"
)

// kindPod is the kind of the finding in Diagnosis.Unread without which nothing is known of what runs on nodes.
const kindPod = "Pod"

// Diagnosis has the findings about a cluster. Every command prints those that concern its answer, and makes no such
// findings itself.
type Diagnosis struct {
	Findings []Finding
	// Nodes are the labels of all nodes, by name; Wrapped are those with a pod of a wrapper, which may be SuperEdge's,
	// and without a kube-proxy that asks past it.
	Nodes   map[string]topology.Labels
	Wrapped map[string]bool
	// Silent are the nodes whose condition Ready is Unknown: the API server knows neither whether they keep Services to
	// their sites, nor whether the endpoints on them are ready.
	Silent map[string]bool
	// HubAway: the wrappers ask a hub that is not available, so they may not have heard of a Service, or its endpoints.
	HubAway bool
	// Unread are the findings about objects that could not be read.
	Unread []Finding
}

// Complete reports whether everything could be read that an answer depends on.
func (d *Diagnosis) Complete() bool { return d != nil && len(d.Unread) == 0 }

func (d *Diagnosis) silent(node string) bool { return d != nil && d.Silent[node] }

// Of returns the failures and warnings that concern all Services with some topology keys, and what could not be read.
// It leaves out those of the controller, and of a single Service; OfGrid has them.
func (d *Diagnosis) Of(keys topology.Keys) []Finding {
	return slices.DeleteFunc(d.OfGrid(keys), func(f Finding) bool {
		return f.Check == CheckController || f.Check == CheckReach
	})
}

// findings returns the findings of the diagnosis that concern the Service. Those about nodes do not, if
// kube-proxy has no part in it.
func (t *Tally) findings() []Finding {
	return slices.DeleteFunc(t.Diagnosis.Of(t.keys), func(f Finding) bool {
		return !t.ByKubeProxy() && !slices.Contains([]string{CheckNames, CheckHub, CheckBypass, CheckRead}, f.Check)
	})
}

// OfGrid returns the failures and warnings that concern grids with some topology keys, and their Services, and what
// could not be read.
func (d *Diagnosis) OfGrid(grids ...topology.Keys) []Finding {
	found := []Finding{}
	if d == nil {
		return found
	}
	for _, f := range slices.Concat(d.Findings, d.Unread) {
		if (f.Severity == Failure || f.Severity == Warning || f.Check == CheckRead) &&
			slices.ContainsFunc(grids, func(keys topology.Keys) bool { return d.concerns(f, keys) }) {
			found = append(found, f)
		}
	}
	return found
}

// concerns reports whether a finding is about sites of the keys, about a node in one, or about every site. A finding
// that an edge node is not in any site concerns the Services whose sites it is not in.
func (d *Diagnosis) concerns(f Finding, keys topology.Keys) bool {
	labels, known := d.Nodes[f.Node]
	switch {
	case f.Key != "":
		return slices.Contains(keys, f.Key)
	case f.Node == "":
		return true
	}
	return !known || inGroup(labels, keys) != (f.Check == CheckSite)
}

// attention are the severities in the order of the attention that they need.
var attention = []Severity{Failure, Warning, Unverified, OK}

// CompareAttention orders severities by the attention that they need, most first.
func CompareAttention(a, b Severity) int {
	return cmp.Compare(slices.Index(attention, a), slices.Index(attention, b))
}

// BySeverity orders findings by the attention that they need.
func BySeverity(a, b Finding) int { return CompareAttention(a.Severity, b.Severity) }

// worst returns the severity that needs the most attention.
func worst(severities ...Severity) Severity { return slices.MinFunc(severities, CompareAttention) }

// ByObject orders findings by their objects.
func ByObject(a, b Finding) int { return cmp.Compare(a.Object.String(), b.Object.String()) }

// Failed reports whether one of the findings is a failure.
func Failed(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Severity == Failure })
}

// LabelsOf returns the labels of a node; they are not nil, as those of a node that does not exist are.
func LabelsOf(node metav1.Object) topology.Labels {
	if labels := node.GetLabels(); labels != nil {
		return labels
	}
	return topology.Labels{}
}

func hasAny(labels topology.Labels, keys []string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { _, ok := labels[key]; return ok })
}

func isEdge(labels topology.Labels) bool { return v1.IsEdgeNode(labels[v1.LabelEdgeNode]) }
