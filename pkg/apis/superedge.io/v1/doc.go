// Package v1 is group superedge.io/v1 and the names the project shares with its users' clusters: every
// label, annotation and reason string stands here once. It imports nothing of the project.
package v1

// GroupName is the API group of the grids.
const GroupName = "superedge.io"
