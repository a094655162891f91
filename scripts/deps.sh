#!/bin/sh
# Installs the Debian or Ubuntu packages that a target needs and the machine
# lacks. Usage: scripts/deps.sh build|demo|cluster|bench|test. Safe to repeat; installs nothing
# when all is there.
set -eu

case "${1:-}" in
build) want="" ;;
demo) want="runc busybox-static nftables iproute2" ;;
cluster | bench) want="runc busybox-static nftables iproute2 postgresql" ;;
test) want="runc busybox-static nftables iproute2 mmdebstrap gcc libc6-dev curl postgresql e2fsprogs" ;;
*) echo "usage: $0 build|demo|cluster|bench|test" >&2; exit 2 ;;
esac

command -v go >/dev/null 2>&1 || { echo "Go is missing: install Go 1.26 or newer, then repeat." >&2; exit 1; }

missing=""
for package in $want; do
	dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	echo "Not a Debian or Ubuntu machine. Install with its own tools:$missing" >&2
	exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null 2>&1 || { echo "Not root, and there is no sudo. As root: apt-get install$missing" >&2; exit 1; }
	sudo="sudo"
fi
echo "Installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# Tests start servers of their own: no cluster of the system's is made or started.
case "$missing" in *postgresql*)
	$sudo mkdir -p /etc/postgresql-common
	[ -e /etc/postgresql-common/createcluster.conf ] ||
		echo "create_main_cluster = false" | $sudo tee /etc/postgresql-common/createcluster.conf >/dev/null ;;
esac
# shellcheck disable=SC2086 # the lists are words
$sudo apt-get install -y --no-install-recommends $missing >/dev/null 2>&1 && exit 0
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing
