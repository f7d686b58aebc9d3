#!/bin/sh
# Makes Consul available to the tests, if it is not on the PATH. Debian 12 has no
# package of it; what Debian 11 had is one program without libraries. It comes from
# the archive that apt takes this system from, and goes into /usr/local/bin, or, for
# anybody but root, into a folder of one's own where the tests look. Nothing else of
# the system is touched.
set -eu

bin=${XDG_CACHE_HOME:-$HOME/.cache}/piton/bin
[ "$(id -u)" -ne 0 ] || bin=/usr/local/bin
if command -v consul >/dev/null 2>&1 || [ -x "$bin/consul" ]; then
	exit 0
fi

# The URIs of the sources in both of apt's formats that have this release.
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
uris() {
	for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ ! -e "$list" ] || awk -v release="$release" '$1 == "deb" {
			at = 2
			if ($at ~ /^\[/) { while ($at !~ /\]$/) at++; at++ }
			if ($(at + 1) == release) print $at
		}' "$list"
	done
	for list in /etc/apt/sources.list.d/*.sources; do
		[ ! -e "$list" ] || awk -v release="$release" '
			function stanza() { if (uri != "" && ours && !off) print uri; uri = ""; ours = off = 0 }
			/^[ \t]*$/ { stanza() }
			tolower($1) == "uris:" { uri = $2 }
			tolower($1) == "enabled:" { off = tolower($2) == "no" }
			tolower($1) == "suites:" { for (i = 2; i <= NF; i++) if ($i == release) ours = 1 }
			END { stanza() }' "$list"
	done
}
uri=$(uris | head -n 1)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
if [ -z "$uri" ] || [ ! -e $keys ] || ! command -v apt-get >/dev/null; then
	echo "consul is missing, and this is no Debian whose archive has it: put it on the PATH" >&2
	exit 1
fi

echo "installing: consul into $bin"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$bin"
cd "$work" # where apt-get puts what it downloads
echo "deb [signed-by=$keys] $uri bullseye main" >sources.list
apt() {
	apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- \
		-o Dir::State="$work/state" -o Dir::State::status=/var/lib/dpkg/status \
		-o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" "$@"
}
apt update
apt download consul
dpkg -x consul_*.deb .
# Others see the whole program or none.
cp usr/bin/consul "$bin/consul.$$"
mv "$bin/consul.$$" "$bin/consul"
