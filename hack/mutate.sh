#!/usr/bin/env bash
# Changes the code of packages, one operator at a time, and runs the package's tests with each change:
# mutate.sh PACKAGES... It fails if the tests notice less than 90 % of the changes in lines that they run, or overlook one
# that hack/mutants.txt does not excuse. It takes minutes to hours: a change is one run of the package's tests.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# gremlins copies the whole module, and bin/ is not part of it.
mkdir "$work/module"
git ls-files -z --cached --others --exclude-standard | tar --null -T - -c | tar -x -C "$work/module"
results=()
for package; do
	package=${package#./}
	result=$work/$(tr / - <<<"$package").json
	echo "… $package"
	(cd "$work/module" && "$OLDPWD/bin/gremlins" unleash "./$package" --workers 1 --timeout-coefficient 20 --silent -o "$result")
	results+=("$package=$result")
done
bin/mutants hack/mutants.txt "${results[@]}"
