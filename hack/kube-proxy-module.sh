#!/usr/bin/env bash
# Makes the module from which `make compat` builds the kube-proxy of one Kubernetes release, or moves it to
# another patch release: kube-proxy-module.sh 1.35.4 writes test/compat/kube-proxy-1.35/{go.mod,go.sum}.
#
# k8s.io/kubernetes names its own parts (k8s.io/api, k8s.io/client-go, …) as directories of its
# repository, which the published module does not contain; they are replaced by the ones published for the same release. The module
# has no code: its go.mod names kube-proxy as a tool. GODEBUG is the release's own, so that a new Go does not
# change how an old kube-proxy behaves.
set -euo pipefail

version=${1:?usage: kube-proxy-module.sh VERSION, for example 1.35.4}
version=${version#v}
minor=${version%.*}
dir=$(dirname "$0")/../test/compat/kube-proxy-$minor
upstream=$(cd / && GOWORK=off go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
[ -n "$upstream" ] || { echo "k8s.io/kubernetes v$version does not exist" >&2; exit 1; }

mkdir -p "$dir"
cd "$dir"
rm -f go.sum
{
	echo "module github.com/application-grid/application-grid/test/compat/kube-proxy-$minor"
	echo
	echo "go 1.26.0"
	echo
	grep '^godebug ' "$upstream" || echo "godebug default=$(sed -n 's/^go \(1\.[0-9]*\).*/go\1/p' "$upstream")"
	echo
	echo "tool k8s.io/kubernetes/cmd/kube-proxy"
	echo
	echo "require k8s.io/kubernetes v$version"
	echo
	echo "replace ("
	sed -n "s#^\t\(k8s.io/[a-z-]*\) => ./staging/src/.*#\t\1 => \1 v0.${version#*.}#p" "$upstream"
	echo ")"
} >go.mod
go mod tidy
