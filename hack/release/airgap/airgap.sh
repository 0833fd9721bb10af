#!/bin/sh
# Checks what is in this bundle, and imports its images into containerd:
#   airgap.sh check
#   airgap.sh import
# CTR is the command that asks containerd, with its options: "ctr" or "k3s ctr", whichever is there, if it is not set.
set -eu
cd "$(dirname "$0")"

check() {
	if ! sha256sum --quiet --strict --check SHA256SUMS; then
		echo "airgap.sh: this bundle is damaged: fetch it again" >&2
		exit 1
	fi
	# Nothing may be here that no sum is known of.
	find . -type f ! -name SHA256SUMS | sed 's#^\./##' | sort >"$known.found"
	sed 's/^[0-9a-f]*  //' SHA256SUMS | sort >"$known.listed"
	if ! cmp -s "$known.found" "$known.listed"; then
		echo "airgap.sh: these files are not listed in SHA256SUMS, or the other way round:" >&2
		diff "$known.found" "$known.listed" >&2 || true
		exit 1
	fi
	echo "all $(wc -l <SHA256SUMS) files are as they were released"
}

import() {
	if [ -z "${CTR:-}" ]; then
		if command -v k3s >/dev/null; then
			CTR="k3s ctr"
		elif command -v ctr >/dev/null; then
			CTR=ctr
		else
			echo "airgap.sh: neither ctr nor k3s is there: set CTR to the command that asks containerd" >&2
			exit 1
		fi
	fi
	for archive in images/*.tar; do
		$CTR --namespace k8s.io images import "$archive"
	done
	while IFS=@ read -r name digest; do
		if ! $CTR --namespace k8s.io images list "name==$name" | grep -qF "$digest"; then
			echo "airgap.sh: containerd has no $name of $digest after the import" >&2
			exit 1
		fi
		echo "imported: $name"
	done <images.txt
}

known=$(mktemp -d)/files
trap 'rm -rf "$(dirname "$known")"' EXIT
case "${1:-}" in
check) check ;;
import)
	check
	import
	;;
*)
	echo "usage: airgap.sh check|import" >&2
	exit 2
	;;
esac
