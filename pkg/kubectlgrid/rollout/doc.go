// Package rollout implements kubectl grid rollout: it prints the progress of the rollout of a grid, lists and restores
// revisions, and gives approvals. cmd/kubectl-grid has the flags, and calls it.
package rollout
