#!/usr/bin/env bash
# Makes sure that programs are there, and files that begin with a slash:
#   require.sh [--nodes] PROGRAM-OR-FILE:DEBIAN-PACKAGE...
# As root on Debian it installs what is missing, and prints that; else it names the command that does. With --nodes it
# also makes sure that a test can make nodes: the programs that each node runs, root, and the namespaces that the tests
# try themselves (test/suite.Privileged), but after minutes of building.
set -euo pipefail

# Debian keeps nft and ip where an ordinary user's PATH does not look.
PATH=$PATH:/usr/sbin:/sbin

refuse() {
	echo "No node can be made here: $1" >&2
	exit 1
}

nodes=
if [ "${1:-}" = --nodes ]; then
	nodes=1
	shift
	set -- nft:nftables conntrack:conntrack iptables:iptables ip:iproute2 unshare:util-linux "$@"
	[ "$(id -u)" -eq 0 ] || refuse "nodes are network namespaces, and this is user $(id -u). Run this as root."
fi

missing=()
for pair in "$@"; do
	wanted=${pair%%:*}
	case $wanted in
	/*) [ -e "$wanted" ] ;;
	*) command -v "$wanted" >/dev/null ;;
	esac || missing+=("${pair#*:}")
done

if [ ${#missing[@]} -gt 0 ]; then
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
fi

[ "$nodes" ] || exit 0
why=$(unshare --net true 2>&1) ||
	refuse "this process may not make network namespaces ($why). In a container it needs --privileged."
why=$(unshare --mount --propagation unchanged true 2>&1) ||
	refuse "this process may not make mount namespaces ($why). In a container it needs --privileged."
why=$(unshare --mount --propagation private true 2>&1) ||
	refuse "the root directory must be a mount point ($why). Before a chroot: mount --bind DIRECTORY DIRECTORY."
