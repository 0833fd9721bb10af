#!/usr/bin/env bash
# Changes the code of packages, one operator at a time, and runs the package's tests with each change:
# mutate.sh PACKAGE[:JUDGE]... JUDGE is another package whose tests judge this one as well. It fails if the tests notice
# less than 90 % of the changes in lines that they run, or overlook one that hack/mutants.txt does not excuse. It takes
# minutes to hours: a change is one run of the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

gremlins=$PWD/bin/gremlins
# Each change is compiled and linked again.
export GOFLAGS="${GOFLAGS:-} -vet=off -ldflags=-w"
# A change may make a test allocate without end. 8 GiB of addresses are enough for a compiler.
ulimit -v $((8 << 20))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=()
for argument; do
	package=${argument%%:*} judge=${argument#*:}
	package=${package#./} judge=${judge#./}
	result=$work/$(tr / - <<<"$package").json
	echo "… $argument"
	# gremlins copies the whole module, and bin/ is not part of it. It runs the tests of one package, or all that exist.
	rm -rf "$work/module" && mkdir "$work/module"
	git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x -C "$work/module"
	all=()
	if [ "$package" != "$judge" ]; then
		find "$work/module" -name '*_test.go' ! -path "*/$package/*" ! -path "*/$judge/*" -delete
		all=(--integration --coverpkg "./$package")
	fi
	(cd "$work/module" && "$gremlins" unleash "./$package" "${all[@]}" --workers 1 --timeout-coefficient 20 --silent -o "$result")
	results+=("$package=$result")
done
bin/mutants hack/mutants.txt "${results[@]}"
