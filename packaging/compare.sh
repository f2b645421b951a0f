#!/usr/bin/env bash
# Builds the packages and the image of this commit twice, in two directories, and compares the bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for copy in first second/one/deeper; do
    git clone --quiet . "$scratch/$copy"
    echo "building in $scratch/$copy"
    (cd "$scratch/$copy" && unset CARGO_TARGET_DIR && packaging/build.sh >/dev/null && packaging/container/build.sh >/dev/null)
    (cd "$scratch/$copy/target" && sha256sum debian/*deb container/dormouse.tar) > "$scratch/${copy%%/*}.sums"
    rm -rf "${scratch:?}/$copy/target"
done
cat "$scratch/first.sums"
cmp "$scratch/first.sums" "$scratch/second.sums" && echo "both builds have the same bytes"
