package gridview

import (
	"cmp"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Cell is what nodes reach of a Service, the verdict of the nodes of a site on it, or the state of a grid there. Those
// of Services are in the order of the attention that they need, the worst last.
type Cell byte

// The cells.
const (
	// CellNothing: the site has no node, or the Service is for others.
	CellNothing Cell = iota
	// CellOwn is a ready endpoint of the node's own site, and CellFallback one that a later topology key allows.
	CellOwn
	CellFallback
	// CellEmpty: no endpoint of the Service takes connections anywhere.
	CellEmpty
	// CellOpen: the Service is not meant to stay in the site.
	CellOpen
	// CellUnknown: it cannot be seen whether the nodes keep the Service to the site, or what they reach: only an
	// endpoint on a silent node is left, whose state the API server does not know; or the node is silent, and the API
	// server knows of no endpoint for it, though pods that were deleted may run there.
	CellUnknown
	// CellTerminating: only endpoints that are ending are left.
	CellTerminating
	// CellNoneOfNode is CellNone of a Service whose sites are single nodes.
	CellNoneOfNode
	// CellLeaves: the Service is meant to stay in the site, and nothing keeps it there.
	CellLeaves
	// CellNone: connections are refused, though other nodes have an endpoint.
	CellNone
	// CellUnused and the cells below are states of sites, and of grids there.
	CellUnused
	CellReady
	CellReadyOlder
	CellChanging
	CellUnreachable
	CellFailed
)

// Word is the word for a cell.
type Word struct {
	Word     string   `json:"word"`
	Severity Severity `json:"severity"`
	// Means is the word in a sentence.
	Means string `json:"means"`
}

var words = [...]Word{
	CellNothing:  {"-", OK, "none of the Service's sites, or no node"},
	CellOwn:      {"own", OK, "the Service stays in the site, which has a ready endpoint"},
	CellFallback: {"fallback", OK, "a later topology key allows the endpoints that are reached"},
	CellEmpty:    {"empty", OK, "no endpoint is ready anywhere"},
	CellOpen:     {"open", OK, "every endpoint is reached, and the Service is not meant to stay in the site"},
	CellUnknown: {"unknown", Unverified, "the API server cannot tell what the nodes reach, or whether they keep the " +
		"Service to the site"},
	CellTerminating: {"terminating", Warning, "only endpoints that are ending are left"},
	CellNoneOfNode:  {"none", Warning, "a node has no endpoint of its own, and others have one"},
	CellLeaves:      {"open", Failure, "a node does not keep the Service to its site"},
	CellNone:        {"none", Failure, "connections find no endpoint, and other sites have one"},
	CellUnused:      {"Unused", OK, "no grid and no site-local Service is meant for the site"},
	CellReady:       {"Ready", OK, "the workload is ready"},
	CellReadyOlder:  {"Ready, older revision", OK, "the workload is ready, and the rollout has not come to the site"},
	CellChanging:    {"Changing", OK, "the workload is on its way, or waits for someone"},
	CellUnreachable: {"Unreachable", Warning, "the control plane has lost contact with all nodes of the site"},
	CellFailed:      {"Failed", Failure, "the workload is missing, has failed or makes no progress"},
}

// Word returns the word for the cell.
func (c Cell) Word() Word { return words[c] }

// MarshalText implements encoding.TextMarshaler.
func (c Cell) MarshalText() ([]byte, error) { return []byte(words[c].Word), nil }

// cellOfPhase is the state for a phase. With any other phase the workload changes, or waits for someone.
var cellOfPhase = map[v1.SitePhase]Cell{v1.SiteReady: CellReady, v1.SiteUnreachable: CellUnreachable,
	v1.SiteFailed: CellFailed, v1.SiteStalled: CellFailed, Missing: CellFailed}

// Cell is the state of the grid in the site.
func (u *Site) Cell() Cell { return cmp.Or(cellOfPhase[u.Phase], CellChanging) }
