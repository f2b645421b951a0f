#!/usr/bin/env bash
# Builds the packages and the image of this commit twice, in two directories, and compares the bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
packaging/prerequisites.sh reproducible
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The repository may have a newer commit when the second build begins.
commit=$(git rev-parse HEAD)
for copy in first second/one/deeper; do
    git clone --quiet . "$scratch/$copy"
    echo "building $commit in $scratch/$copy"
    (
        cd "$scratch/$copy"
        git checkout --quiet "$commit"
        unset CARGO_TARGET_DIR
        packaging/build.sh >/dev/null
        packaging/container/build.sh >/dev/null
        cd target
        sha256sum debian/*deb container/dormouse.tar > "$scratch/${copy%%/*}.sums"
    )
    rm -rf "${scratch:?}/$copy/target"
done
cat "$scratch/first.sums"
diff "$scratch/first.sums" "$scratch/second.sums" || { echo "the builds differ: < the first, > the second" >&2; exit 1; }
echo "both builds have the same bytes"
