#!/usr/bin/env bash
# Boots a Debian with systemd in a container and installs the packages there: units, SIGKILL, reload, reinstallation,
# Open vSwitch forward and back, purge. Needs root, mmdebstrap and systemd-container, and packages (packaging/build.sh).
#
#   packaging/booted.sh [DIRECTORY]    where the packages are; target/debian unless given
set -euo pipefail
cd "$(dirname "$0")/.."
packaging/prerequisites.sh booted
packages=$(realpath "${1:-target/debian}")
scratch=$(mktemp -d)
container="" init=""
finish() {
    [ -z "$init" ] || inside systemctl poweroff || true
    [ -z "$container" ] || wait "$container" || true
    rm -rf "$scratch"
}
trap finish EXIT

inside() { nsenter --target "$init" --mount --uts --ipc --net --pid --cgroup "$@"; }
say() { printf '%s\n' "-- $*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; inside journalctl --no-pager -n 40 -u dormouse -u ovsdb-server >&2; exit 1; }
# Repeats a command until it succeeds.
until_true() {
    for _ in $(seq 100); do
        if "$@"; then return; fi
        sleep 0.1
    done
    fail "not within 10 s: $*"
}
active() { until_true inside systemctl is-active --quiet "$1"; }
install() {
    inside env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
        apt-get install --quiet --quiet -y --no-install-recommends "$@" >/dev/null
}
document=http://127.0.0.1:8091/pools/default/buckets/orders/scopes/_default/collections/_default/docs/k
ask() { inside curl --silent --fail --user Administrator:password "$@"; }
has_document() { ask "$document" | grep -q '"value":"kept"'; }

say "a Debian with systemd"
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,procps,curl bookworm "$scratch/root"
cp "$packages"/dormouse_*.deb "$scratch/root/root/dormouse.deb"
cp "$packages"/dormouse-openvswitch_*.deb "$scratch/root/root/dormouse-openvswitch.deb"
systemd-nspawn --quiet --directory "$scratch/root" --boot --register=no --keep-unit --console=pipe --machine=dormouse >"$scratch/boot.log" 2>&1 &
container=$!
child() { init=$(pgrep --parent "$container" | head -1); [ -n "$init" ]; }
for _ in $(seq 50); do child && break || sleep 0.1; done
[ -n "$init" ] || { cat "$scratch/boot.log" >&2; exit 1; }
is_up() { [ "$(inside systemctl is-system-running 2>/dev/null)" = running ]; }
until_true is_up

say "installed, it serves"
inside apt-get update --quiet --quiet
install /root/dormouse.deb
active dormouse
until_true inside dormouse status --health
printf password > "$scratch/root/root/password"
inside dormouse bucket create orders --kind persistent --memory 64MiB --user Administrator --password-file /root/password
ask --request PUT --data value=kept "$document" >/dev/null

say "SIGKILL, and what was acknowledged is there again"
process=$(inside systemctl show --property MainPID --value dormouse)
inside kill -KILL "$process"
restarted() { [ "$(inside systemctl show --property NRestarts --value dormouse)" = 1 ]; }
until_true restarted
active dormouse
until_true has_document

say "a wrong configuration is refused by reload, and named"
echo 'nonsense = 1' >> "$scratch/root/etc/dormouse/dormouse.toml"
if inside systemctl reload dormouse 2>/dev/null; then fail "reload took a wrong configuration"; fi
active dormouse
has_document || fail "the node does not serve after a refused reload"
inside journalctl --no-pager -u dormouse | grep 'unknown key .*nonsense' >/dev/null || fail "the journal does not name the key"
sed -i '/^nonsense/d' "$scratch/root/etc/dormouse/dormouse.toml"
inside systemctl reload dormouse

say "installed again, it keeps its data"
install --reinstall /root/dormouse.deb
active dormouse
until_true has_document

say "in the place of Open vSwitch's server, and back"
install openvswitch-switch
install /root/dormouse-openvswitch.deb
inside dormouse-openvswitch on
is_ours() { inside ovs-appctl -t ovsdb-server version 2>/dev/null | grep -q dormouse; }
is_theirs() { inside ovs-appctl -t ovsdb-server version 2>/dev/null | grep -qv dormouse; }
until_true is_ours
inside ovs-vsctl --no-wait add-br kept
inside dormouse-openvswitch off
until_true is_theirs
until_true inside ovs-vsctl --no-wait br-exists kept
active ovs-vswitchd

say "removed, its data stay; purged, they are gone"
inside apt-get remove --quiet --quiet -y dormouse >/dev/null
[ -d "$scratch/root/var/lib/dormouse/buckets" ] || fail "removing the package removed data: $(ls "$scratch/root/var/lib/dormouse")"
inside apt-get purge --quiet --quiet -y dormouse >/dev/null
[ ! -e "$scratch/root/var/lib/dormouse" ] || fail "data left after a purge"
[ -z "$(inside systemctl --failed --no-legend)" ] || fail "units failed: $(inside systemctl --failed --no-legend)"
say "passed"
