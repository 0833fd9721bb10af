#!/usr/bin/env bash
# Looks for known vulnerabilities that code reaches: vulncheck.sh PACKAGES...
#
# That needs the Go vulnerability database. VULNDB names another place than https://vuln.go.dev: a mirror's address,
# or file:///DIR with an unpacked https://vuln.go.dev/vulndb.zip. Where no database is reached this prints that and ends
# well, as the other checks are worth having there; with REQUIRE_VULNCHECK=1 it fails. A finding always does.
set -euo pipefail
cd "$(dirname "$0")/.."

db=${VULNDB:-https://vuln.go.dev}
# govulncheck takes any directory for a database, an empty one too, and finds nothing in it.
case $db in
http://* | https://*) index=${db%/}/index/modules.json.gz ;;
file:///*) index=${db%/}/index/modules.json ;;
*)
	echo "VULNDB=$db: it takes https://HOST or file:///DIR" >&2
	exit 1
	;;
esac

hack/require.sh curl:curl
if ! said=$(curl --silent --show-error --fail --location --max-time 20 --output /dev/null "$index" 2>&1); then
	said="known vulnerabilities: NOT CHECKED, $index is not reached: ${said:-curl failed}"
	hint="VULNDB=https://HOST or file:///DIR names another database"
	if [ "${REQUIRE_VULNCHECK:-0}" = 1 ] || [ -n "${VULNDB:-}" ]; then
		echo "$said; $hint" >&2
		exit 1
	fi
	echo "$said; $hint, REQUIRE_VULNCHECK=1 makes this an error"
	exit 0
fi

make --silent "$PWD/bin/govulncheck"
bin/govulncheck -db "$db" -show version "$@"
