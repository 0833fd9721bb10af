#!/usr/bin/env bash
# Makes sure that programs are there, and files that begin with a slash: require.sh PROGRAM-OR-FILE:DEBIAN-PACKAGE...
# As root on Debian it installs what is missing, and prints that; else it names the command that does.
set -euo pipefail

# Debian keeps nft and ip where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin

missing=()
for pair in "$@"; do
	wanted=${pair%%:*}
	case $wanted in
	/*) [ -e "$wanted" ] ;;
	*) command -v "$wanted" >/dev/null ;;
	esac || missing+=("${pair#*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "Missing: ${missing[*]}. Install with: sudo $install" >&2
	exit 1
fi
echo "Missing: ${missing[*]}. Installing: $install"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive $install; } >"$log" 2>&1; then
	tail -n 20 "$log" >&2
	echo "The installation failed. Try: apt-get update && $install" >&2
	exit 1
fi
