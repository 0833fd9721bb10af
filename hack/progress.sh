#!/usr/bin/env bash
# Runs a command that may be silent for minutes: progress.sh WHAT COMMAND...
# Says what is being done, and every 30 seconds that it still is. The exit code is the command's.
set -euo pipefail

what=$1
shift
start=$SECONDS
"$@" &
command=$!
trap 'kill "$command" 2>/dev/null || true' INT TERM
(
	sleep 3
	kill -0 "$command" 2>/dev/null && echo "… $what"
	while sleep 30 && kill -0 "$command" 2>/dev/null; do
		echo "… $what: $((SECONDS - start)) s so far"
	done
) &
ticker=$!
code=0
wait "$command" || code=$?
kill "$ticker" 2>/dev/null || true
wait "$ticker" 2>/dev/null || true
if [ $code -ne 0 ]; then
	echo "$what: failed with exit code $code" >&2
fi
exit $code
