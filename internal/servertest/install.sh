#!/bin/sh
# Installs what the tests need and this machine lacks, from the packages of
# Debian or Ubuntu: the servers that the tests start themselves, and the C
# compiler that the race detector needs. Root or sudo is used only when
# something is missing.
set -eu

missing=
need() { # package, then what it provides: a program or an absolute path with wildcards
	package=$1
	shift
	for provides in "$@"; do
		command -v "$provides" >/dev/null 2>&1 && return
		for path in $provides; do
			# A program's name alone may be that of a folder here.
			case $path in /*) [ -e "$path" ] && return ;; esac
		done
	done
	missing="$missing $package"
}
need make make
need gcc gcc
need libc6-dev /usr/include/stdio.h /usr/lib/*/crt1.o
need redis-server redis-server
need etcd-server etcd
need postgresql postgres '/usr/lib/postgresql/*/bin/postgres'
need mariadb-server mariadbd /usr/sbin/mariadbd
need pgbouncer pgbouncer
need sqlite3 sqlite3

sh "$(dirname "$0")/consul.sh"

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
	echo "these packages are missing, and there is no apt-get to install them:$missing" >&2
	exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
	as_root=sudo
fi
echo "installing:$missing"
# The packages would start servers of their own on the default ports.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null
	$as_root chmod +x $policy
	trap '$as_root rm -f $policy' EXIT
fi
$as_root env DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -q && apt-get install -q -y --no-install-recommends $missing"
