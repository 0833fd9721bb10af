#!/usr/bin/env bash
# Builds Go programs, and says how far that is: gobuild.sh WHAT DIRECTORY ARGUMENTS...
# The arguments are those of go build; a flag and its value are one of them: -o=FILE. Nothing is said if it takes less than
# 3 seconds. The exit code is that of go build, after its errors.
set -euo pipefail

what=$1 directory=$2
shift 2
flags=() selecting=() packages=()
for argument; do
	case $argument in
	-*) flags+=("$argument") ;;
	*) packages+=("$argument") ;;
	esac
	case $argument in -tags=* | -gcflags=* | -race) selecting+=("$argument") ;; esac
done

log=$(mktemp)
start=$SECONDS
# The compiler collects its garbage four times as rarely as it would by itself: that takes a quarter off the time. The
# largest package needs 1 GB this way.
export GOGC=400

# The report of both steps, every 15 seconds and once after 3.
report() {
	local pause=3
	while sleep $pause; do
		pause=15
		if [ -s "$log.total" ]; then
			echo "… $what: $(grep -cvE '^(go: |#|\s)' "$log" || true) of $(cat "$log.total") packages, $((SECONDS - start)) s"
		else
			echo "… $what: $(grep -c '^go: downloading' "$log" || true) modules downloaded, $((SECONDS - start)) s"
		fi
	done
}
report &
reporter=$!
trap 'kill $reporter 2>/dev/null || true; rm -f "$log" "$log.total" "$log.stale"' EXIT

# How many packages have to be compiled; what is not there yet is downloaded.
go -C "$directory" list -deps "${selecting[@]}" -f '{{if .Stale}}{{.ImportPath}}{{end}}' "${packages[@]}" \
	2>"$log" >"$log.stale" || { cat "$log" >&2; exit 1; }
{ grep -c . "$log.stale" || true; } >"$log.total"
rm -f "$log.stale"

code=0
go -C "$directory" build -v "${flags[@]}" "${packages[@]}" 2>"$log" || code=$?
if [ $code -ne 0 ]; then
	grep -E '^(go: |#|\s|.*:[0-9]+:)' "$log" >&2 || cat "$log" >&2
	echo "$what: failed with exit code $code" >&2
elif [ $((SECONDS - start)) -ge 3 ]; then
	echo "… $what: done in $((SECONDS - start)) s"
fi
exit $code
