#!/usr/bin/env bash
# Builds what a release consists of, from the current commit, into target/release-VERSION: Debian packages, static programs in archives, images,
# the components (CycloneDX), the notes, the checksums.
#
#   packaging/release.sh [--draft] [--profile PROFILE] VERSION [ARCHITECTURE...]
#
#   VERSION        the one in Cargo.toml; CHANGELOG.md has a section for it, with its date
#   ARCHITECTURE   amd64, arm64; both unless given
#   --draft        for trying it: changes that are not committed, and a section "not released yet", are accepted
#   --profile P    another profile than release, also for trying it: quick is built in minutes, and is no release
#
# The same commit gives the same bytes with the same toolchain (packaging/README.md).
set -euo pipefail
cd "$(dirname "$0")/.."
. packaging/architectures.sh

draft="" profile=release
while [ $# -gt 0 ]; do
    case "$1" in
        --draft) draft=--draft; shift ;;
        --profile) profile=${2:?--profile needs one} draft=--draft; shift 2 ;;
        -*) echo "release.sh: unknown option $1; allowed: --draft, --profile PROFILE" >&2; exit 2 ;;
        *) break ;;
    esac
done
version=${1:?"release.sh: which version? make release VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)"}
shift
[ $# -gt 0 ] || set -- amd64 arm64

# All that can be wrong is found before anything is compiled.
packaging/prerequisites.sh release "$@"
in_cargo=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
[ "$version" = "$in_cargo" ] || { echo "release.sh: Cargo.toml has version $in_cargo, not $version" >&2; exit 1; }
notes=$(python3 packaging/notes.py $draft "$version")
if [ -z "$draft" ] && [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "release.sh: there are changes that are not committed" >&2
    exit 1
fi

. packaging/reproducible.sh
target=${CARGO_TARGET_DIR:-target}
made=$target/release-$version
rm -rf "$made"
mkdir -p "$made"
{
    printf '%s\n\n' "$notes"
    echo "Built from commit $(git rev-parse HEAD) with $(rustc -V) and $(gcc --version | head -1)."
} > "$made/NOTES.md"

# The program that runs here describes itself for all architectures, so this machine's packages come first.
own=$(own_architecture)
[[ " $* " != *" $own "* ]] || set -- "$own" $(printf '%s\n' "$@" | grep -vx "$own" || true)
for architecture in "$@"; do
    packaging/build.sh --profile "$profile" --architecture "$architecture"
    cp "$target/debian/"dormouse*_"$version"-1_"$architecture".*deb "$made/"
    packaging/container/build.sh --profile "$profile" --architecture "$architecture"
    cp "$target/container/$architecture/dormouse.tar" "$made/dormouse-$version-image-$architecture.tar"

    # The image's program, with what a package has beside it.
    name=dormouse-$version-linux-$architecture
    files=$target/container/$architecture/$name
    mkdir -p "$files"
    cp "$target/container/$architecture/root/usr/bin/dormouse" LICENSE README.md CHANGELOG.md packaging/systemd/dormouse.service "$files/"
    cp "$(built_directory "$architecture" "$profile")/package/dormouse.toml" "$files/"
    tar --format=ustar --sort=name --numeric-owner --owner=0 --group=0 --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" \
        -cf - -C "$target/container/$architecture" "$name" | gzip -9n > "$made/$name.tar.gz"
    python3 packaging/components.py "$architecture" > "$made/dormouse-$version-$architecture.cdx.json"
done

# The archives of the images are not compressed, so that their bytes do not depend on a compressor.
(cd "$made" && sha256sum -- * > ../SHA256SUMS && mv ../SHA256SUMS .)
ls -l "$made"
[ -z "$draft" ] || echo "a draft of $version, built with the profile $profile: not for publishing"
