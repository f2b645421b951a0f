#!/usr/bin/env bash
# Says what is missing to build what is published, with the command that installs it. The scripts that build ask it before they compile.
#
#   packaging/prerequisites.sh [--commands] packages|image|release|reproducible|booted [ARCHITECTURE...]
#
#   ARCHITECTURE   amd64, arm64; this machine's unless given
#   --commands     prints the commands only, one a line, and succeeds: packaging/prerequisites.sh --commands release | sh -e
#
# Exit code 1 if something is missing.
set -euo pipefail
. "$(dirname "$0")/architectures.sh"

only_commands=""
[ "${1-}" != --commands ] || { only_commands=yes; shift; }
goal=${1:?"prerequisites.sh: what is to be built? allowed: packages, image, release, reproducible, booted"}
shift
case "$goal" in
    packages | image | release | reproducible | booted) ;;
    *) echo "prerequisites.sh: unknown goal $goal; allowed: packages, image, release, reproducible, booted" >&2; exit 2 ;;
esac
[ $# -gt 0 ] || set -- "$(own_architecture)"
for architecture in "$@"; do check_architecture "$architecture"; done

root=""
[ "$(id -u)" = 0 ] || root="sudo "
missing=() debian=() targets=() others=()
# What is missing, what it is for, and where it comes from.
lacks() {
    local name=$1 use=$2 kind=$3 source=$4
    case "$kind" in
        debian) debian+=("$source"); missing+=("$name|$use|${root}apt-get install $source") ;;
        target) targets+=("$source"); missing+=("$name|$use|rustup target add $source") ;;
        other) others+=("$source"); missing+=("$name|$use|$source") ;;
    esac
}
needs() { command -v "$1" >/dev/null || lacks "$@"; }
needs_target() {
    local libraries
    libraries=$(rustc --print target-libdir --target "$1" 2>/dev/null) && [ -d "$libraries" ] || lacks "$1" "Rust's own libraries" target "$1"
}

rust="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . \"\$HOME/.cargo/env\""
needs cargo "compiles the programs" other "$rust"
needs git "names the commit and its date" debian git
needs gcc "compiles jemalloc and ring" debian gcc
needs make "builds jemalloc" debian make
needs tar "packs" debian tar
needs gzip "packs" debian gzip
builds_packages() {
    needs perl "turns the documents' links into those of the package" debian perl
    needs dpkg-shlibdeps "finds the libraries a package depends on" debian dpkg-dev
    needs cargo-deb "makes Debian packages" other "cargo install --locked --no-default-features cargo-deb"
}
# $1: an architecture that is not this machine's.
builds_for_others() {
    local prefix
    prefix=$(gnu_prefix "$1")
    needs "$prefix-gcc" "compiles C for $1" debian "gcc-${prefix//_/-}"
    [ -f "${CROSS_ROOT-}/usr/$prefix/lib/libc.a" ] || lacks "libc of $1" "is linked" debian "libc6-dev-$1-cross"
    needs_target "$(rust_target "$1")"
}
case "$goal" in
    packages) builds_packages ;;
    reproducible) builds_packages ;;
    booted)
        needs mmdebstrap "makes a Debian" debian mmdebstrap
        needs systemd-nspawn "boots it" debian systemd-container ;;
    release)
        builds_packages
        needs python3 "writes the notes and the list of components" debian python3
        needs sha256sum "writes the checksums" debian coreutils ;;
esac
for architecture in "$@"; do
    [ "$architecture" = "$(own_architecture)" ] || builds_for_others "$architecture"
done

if [ -n "$only_commands" ]; then
    # In an order that works: cargo before what it installs.
    distinct() { printf '%s\n' "$@" | sort -u | tr '\n' ' ' | sed 's/ $//'; }
    if [ "${#debian[@]}" -gt 0 ]; then
        echo "${root}apt-get update -qq"
        echo "${root}apt-get install -qq -y --no-install-recommends $(distinct "${debian[@]}")"
    fi
    [ "${#others[@]}" = 0 ] || printf '%s\n' "${others[@]}"
    [ "${#targets[@]}" = 0 ] || echo "rustup target add $(distinct "${targets[@]}")"
    exit 0
fi
if [ "${#missing[@]}" -gt 0 ]; then
    echo "$goal: nothing was built, since this is missing:"
    for line in "${missing[@]}"; do
        IFS='|' read -r name use command <<<"$line"
        printf '  %-28s %-52s %s\n' "$name" "$use" "$command"
    done
    exit 1
fi >&2
