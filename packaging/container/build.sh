#!/usr/bin/env bash
# Builds the container image with buildah, from a static binary, and writes it as an archive that docker and podman load:
# target/container/dormouse.tar. Needs buildah; no daemon.
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

context=$target/container/context
rm -rf "$target/container"
mkdir -p "$context"/root/{usr/bin,etc/dormouse,var/lib/dormouse,tmp}
strip -o "$context/root/usr/bin/dormouse" "$target/$triple/release/dormouse"
cp packaging/container/dormouse.toml "$context/root/etc/dormouse/"
printf 'root:x:0:0:root:/:/\ndormouse:x:65532:65532:Dormouse:/var/lib/dormouse:/\n' > "$context/root/etc/passwd"
printf 'root:x:0:\ndormouse:x:65532:\n' > "$context/root/etc/group"
cp packaging/container/Containerfile "$context/"
# A volume that is made from this directory takes its owner.
chown 65532:65532 "$context/root/var/lib/dormouse" && chmod 0700 "$context/root/var/lib/dormouse" && chmod 1777 "$context/root/tmp"
find "$context" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# Files and directories of its own: nothing of the machine's containers is touched.
store=$target/container/store
image() { buildah --storage-driver vfs --root "$PWD/$store" --runroot "$PWD/$store-run" "$@"; }
image build --isolation chroot --format docker --timestamp "$SOURCE_DATE_EPOCH" --tag "$tag" "$context" >/dev/null
image push --quiet "$tag" "docker-archive:$target/container/dormouse.tar:$tag"
rm -rf "$store" "$store-run"
ls -l "$target/container/dormouse.tar"
