#!/usr/bin/env bash
# Builds the container image from a static binary, as an archive that docker and podman load: target/container/dormouse.tar.
# Needs neither a daemon nor root.
#
#   packaging/container/build.sh [--profile PROFILE] [--architecture ARCHITECTURE] [TAG]
#
#   --profile PROFILE   release unless given
#   --architecture A    amd64, arm64: the image is then target/container/A/dormouse.tar
#   TAG                 localhost/dormouse:VERSION unless given
set -euo pipefail
cd "$(dirname "$0")/../.."
. packaging/architectures.sh

profile=release architecture="" target=${CARGO_TARGET_DIR:-target}
made=$target/container
while [ $# -gt 0 ]; do
    case "$1" in
        --profile) profile=${2:?--profile needs one}; shift 2 ;;
        --architecture) architecture=${2:?--architecture needs one}; check_architecture "$2"; made=$made/$2; shift 2 ;;
        -*) echo "build.sh: unknown option $1; allowed: --profile PROFILE, --architecture A" >&2; exit 2 ;;
        *) break ;;
    esac
done
architecture=${architecture:-$(own_architecture)}
tag=${1:-localhost/dormouse:$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)}
packaging/prerequisites.sh image "$architecture"

. packaging/reproducible.sh
reproducible_flags -C target-feature=+crt-static
cross_compilers "$architecture"
triple=$(rust_target "$architecture")
# With a target named, build scripts and procedural macros stay dynamic. In a directory of its own: dynamic programs of the same target,
# for packages, do not replace this one.
cargo build --profile "$profile" --locked --target "$triple" --target-dir "$target/static" --bin dormouse

rm -rf "$made"
mkdir -p "$made"/root/{usr/bin,etc/dormouse,var/lib/dormouse,tmp}
"$(gnu_prefix "$architecture")-strip" -o "$made/root/usr/bin/dormouse" "$target/static/$triple/$profile/dormouse"
ARCHITECTURE=$architecture packaging/container/archive.sh "$made" "$tag"
ls -l "$made/dormouse.tar"
