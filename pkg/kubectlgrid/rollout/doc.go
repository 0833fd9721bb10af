// Package rollout is what kubectl grid rollout does: it prints the progress of the rollout of a grid, lists and
// restores revisions, and changes what a rollout waits for. The flags are those of cmd/kubectl-grid, which calls it.
package rollout
