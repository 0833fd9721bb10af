// Package rollout is what kubectl grid rollout does: it prints how far the rollout of a grid has come, lists and
// restores revisions, and changes what a rollout waits for. The flags are those of cmd/kubectl-grid, which calls it.
package rollout
