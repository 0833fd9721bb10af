#!/usr/bin/env bash
# Builds the programs of the last release, or of the commit that hack/skew-commit names until there is one, into a directory:
# skew.sh DIRECTORY. That file has a tag, a commit or the subject of a commit, which stays the same when history is written
# again. What is not in this clone is not fetched: nothing is built then, the exit code is 3, and the reason is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

directory=$1
name=$(cat hack/skew-commit)
commit=$(git rev-parse --verify --quiet "$name^{commit}" 2>/dev/null ||
	git log --fixed-strings --grep="$name" --format='%H %s' 2>/dev/null | awk -v s="$name" 'substr($0, 42) == s { print $1; exit }')
if [ -z "$commit" ]; then
	echo "the commit \"$name\" of hack/skew-commit is not in this clone, and is not fetched: there is nothing to compare with"
	exit 3
fi
if [ -e "$directory/commit" ] && [ "$(cat "$directory/commit")" = "$commit" ]; then exit 0; fi
echo "the older programs are of $(git log -1 --format='%h %s' "$commit")"
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git archive "$commit" | tar -x -C "$source"
mkdir -p "$directory"
hack/gobuild.sh "building the older programs" "$source" -ldflags='-s -w' -o="$directory/" ./cmd/application-grid-wrapper \
	./cmd/application-grid-hub ./cmd/application-grid-controller ./cmd/lite-apiserver
echo "$commit" >"$directory/commit"
