// Package install proves manifests/ on a real control plane: what kustomize makes of them is what kube-apiserver
// takes, word for word; labelled nodes, and no others, get what they should; nothing is left when it is deleted;
// and the roles are as small as they can be: a run of everything meets no refusal, and leaves no permission unused.
package install
