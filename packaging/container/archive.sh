#!/usr/bin/env bash
# Makes an image of DIR/root, with usr/bin/dormouse in it, as DIR/dormouse.tar: one layer, its configuration, and a list of both, in the
# form of `docker save`.
#
#   packaging/container/archive.sh DIR TAG
set -euo pipefail
made=$1 tag=$2
here=$(dirname "$0")
: "${SOURCE_DATE_EPOCH:?}" "${ARCHITECTURE:?amd64 or arm64}"

mkdir -p "$made"/root/{etc/dormouse,var/lib/dormouse,tmp}
cp "$here/dormouse.toml" "$made/root/etc/dormouse/"
printf 'root:x:0:0:root:/:/\ndormouse:x:65532:65532:Dormouse:/var/lib/dormouse:/\n' > "$made/root/etc/passwd"
printf 'root:x:0:\ndormouse:x:65532:\n' > "$made/root/etc/group"

# Nothing of this machine is in the archives: neither owners, times nor modes.
pack() { tar --format=ustar --sort=name --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$@"; }
pack --owner=0 --group=0 --mode=u=rwX,go=rX --exclude=./var/lib/dormouse --exclude=./tmp -cf "$made/layer.tar" -C "$made/root" .
pack --owner=0 --group=0 --mode=1777 -rf "$made/layer.tar" -C "$made/root" ./tmp
# A volume that is made from this directory takes its owner.
pack --owner=65532 --group=65532 --mode=0700 -rf "$made/layer.tar" -C "$made/root" ./var/lib/dormouse

created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)
sed -e "s/CREATED/$created/g; s/LAYER/$(sha256sum < "$made/layer.tar" | cut -d ' ' -f 1)/; s/ARCHITECTURE/$ARCHITECTURE/" \
    "$here/image.json" > "$made/config.json"
printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]\n' "$tag" > "$made/manifest.json"
pack --owner=0 --group=0 --mode=0644 -cf "$made/dormouse.tar" -C "$made" config.json layer.tar manifest.json
rm "$made"/{layer.tar,config.json,manifest.json}
