#!/usr/bin/env bash
# Builds the container image from a static binary, as an archive that docker and podman load: target/container/dormouse.tar.
# Needs neither a daemon nor root.
#
#   packaging/container/build.sh [TAG]      localhost/dormouse:latest unless given
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=${1:-localhost/dormouse:latest}

. packaging/reproducible.sh
reproducible_flags -C target-feature=+crt-static
target=${CARGO_TARGET_DIR:-target}
triple=$(rustc -vV | sed -n 's/^host: //p')
# With a target named, build scripts and procedural macros stay dynamic.
cargo build --release --locked --target "$triple" --bin dormouse

made=$target/container
rm -rf "$made"
mkdir -p "$made"/root/{usr/bin,etc/dormouse,var/lib/dormouse,tmp}
strip -o "$made/root/usr/bin/dormouse" "$target/$triple/release/dormouse"
packaging/container/archive.sh "$made" "$tag"
ls -l "$made/dormouse.tar"
