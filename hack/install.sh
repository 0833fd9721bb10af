#!/usr/bin/env bash
# What make install and make uninstall do: install.sh install|uninstall. PREFIX (/usr/local) is for programs and units,
# SYSCONFDIR (/etc) for what an administrator edits, DESTDIR before all of them for packages.
set -euo pipefail
cd "$(dirname "$0")/.."

DESTDIR=${DESTDIR:-}
PREFIX=${PREFIX:-/usr/local}
config=$DESTDIR${SYSCONFDIR:-/etc}/application-grid
units=$DESTDIR$PREFIX/lib/systemd/system
node_programs=(application-grid-wrapper statefulset-grid-daemon lite-apiserver)
programs=("${node_programs[@]}" application-grid-controller application-grid-hub kubectl-grid)
doc=$DESTDIR$PREFIX/share/doc/application-grid
man=$DESTDIR$PREFIX/share/man/man1

# The unit file, with the paths of this installation.
unit() {
	sed -e "s#/usr/local/bin/#$PREFIX/bin/#" -e "s#/etc/application-grid/#${SYSCONFDIR:-/etc}/application-grid/#" "manifests/systemd/$1.service"
}

# Makes systemd read the unit files again, if it runs here. Not for a package (DESTDIR): that has scripts of its own.
reload() {
	if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
}

case "${1:-}" in
install)
	for program in "${programs[@]}"; do
		install -D -m 0755 "bin/$program" "$DESTDIR$PREFIX/bin/$program"
	done
	install -m 0755 hack/kubectl_complete-grid "$DESTDIR$PREFIX/bin/kubectl_complete-grid"
	install -d -m 0755 "$units" "$config" "$doc"
	install -m 0644 LICENSE THIRD_PARTY_NOTICES "$doc"
	install -d -m 0755 "$man"
	install -m 0644 docs/man/*.1 "$man"
	for program in "${node_programs[@]}"; do
		unit "$program" >"$units/$program.service"
		chmod 0644 "$units/$program.service"
		env=$config/$program.env
		if [ ! -e "$env" ]; then
			install -m 0644 "manifests/systemd/$program.env" "$env"
		elif ! cmp -s "manifests/systemd/$program.env" "$env"; then
			echo "kept, because it was edited: $env (the new one is manifests/systemd/$program.env)"
		fi
	done
	reload
	echo "installed in $DESTDIR$PREFIX; docs/systemd.md says what each node still needs, a kubeconfig in $config first of all"
	;;
uninstall)
	if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then
		for program in "${node_programs[@]}"; do systemctl disable --now "$program.service" || true; done
	fi
	for program in "${programs[@]}"; do rm -f "$DESTDIR$PREFIX/bin/$program" "$man/$program.1" "$man/$program"-*.1; done
	rm -f "$DESTDIR$PREFIX/bin/kubectl_complete-grid" "$doc/LICENSE" "$doc/THIRD_PARTY_NOTICES"
	for program in "${node_programs[@]}"; do
		rm -f "$units/$program.service"
		env=$config/$program.env
		if cmp -s "manifests/systemd/$program.env" "$env"; then rm -f "$env"; fi
	done
	reload
	# Directories that installing made, as far as they are empty; of the system itself none.
	rmdir "$units" "$(dirname "$units")" "$config" "$doc" "$man" 2>/dev/null || true
	if [ -n "$DESTDIR" ]; then rmdir -p "$DESTDIR$PREFIX/share/doc" "$DESTDIR$PREFIX/share/man" "$DESTDIR$PREFIX/lib" "$DESTDIR$PREFIX/bin" "$(dirname "$config")" 2>/dev/null || true; fi
	for kept in "$config" "$DESTDIR/var/lib/application-grid-wrapper" "$DESTDIR/var/lib/private/application-grid-wrapper" "$DESTDIR/var/lib/lite-apiserver" "$DESTDIR/data/edge/hosts"; do
		if [ -e "$kept" ]; then echo "kept, for you to remove: rm -r $kept"; fi
	done
	echo "uninstalled. Has kube-proxy lost its --master=http://localhost:51006 again, and the kubelet the --kubeconfig of lite-apiserver?"
	;;
*)
	echo "usage: install.sh install|uninstall" >&2
	exit 2
	;;
esac
