#!/usr/bin/env bash
# Builds the Debian packages into target/debian, with cargo-deb.
#
#   packaging/build.sh [--built PROFILE] [--profile PROFILE] [--architecture ARCHITECTURE] [--revision N]
#
#   --built PROFILE     package what is in target/PROFILE already, compressed fast: for tests
#   --profile PROFILE   build with this profile; release unless given
#   --architecture A    amd64, arm64; this machine's unless given. For another one, a program of this machine must have been built
#                       with the same profile: it writes the man pages
#   --revision N        Debian revision of the packages; 1 unless given
#
# Two builds of the same commit, in any two directories, give the same bytes (packaging/README.md).
set -euo pipefail
cd "$(dirname "$0")/.."

. packaging/architectures.sh
profile=release revision=1 built="" architecture=$(own_architecture)
while [ $# -gt 0 ]; do
    case "$1" in
        --built) profile=${2:?--built needs a profile} built=yes; shift 2 ;;
        --profile) profile=${2:?--profile needs one}; shift 2 ;;
        --architecture) architecture=${2:?--architecture needs one}; check_architecture "$2"; shift 2 ;;
        --revision) revision=${2:?--revision needs a number}; shift 2 ;;
        *) echo "build.sh: unknown option $1; allowed: --built PROFILE, --profile PROFILE, --architecture A, --revision N" >&2; exit 2 ;;
    esac
done

[ -n "$built" ] || packaging/prerequisites.sh packages "$architecture"
. packaging/reproducible.sh
target=${CARGO_TARGET_DIR:-target}
others=()
if [ "$architecture" != "$(own_architecture)" ]; then
    others=(--target "$(rust_target "$architecture")")
    cross_compilers "$architecture"
fi
# The programs that run on this machine.
programs=$target/$profile
if [ "${#others[@]}" -gt 0 ] && ! [ -x "$programs/dormouse" -a -x "$programs/dormouse-lab" ]; then
    echo "build.sh: packages for $architecture need man pages of $programs/dormouse: build those of $(own_architecture) first" >&2
    exit 1
fi
if [ -z "$built" ]; then
    reproducible_flags
    cargo build --profile "$profile" --locked "${others[@]}" --bin dormouse --bin dormouse-lab
fi

# What the programs say of themselves.
made=$(built_directory "$architecture" "$profile")/package
rm -rf "$made"
mkdir -p "$made"/{man,completions}
"$programs/dormouse" man-pages "$made/man"
# Its page of `dormouse lab` gives way to that program's own.
"$programs/dormouse-lab" man-pages "$made/man"
cp packaging/openvswitch/dormouse-openvswitch.8 "$made/man/"
gzip -9n "$made/man/"*
gzip -9nc CHANGELOG.md > "$made/changelog.gz"
# All documents lie in one directory; a link to what is not installed becomes its text.
mkdir "$made/doc" "$made/doc-openvswitch"
cp README.md docs/*.md "$made/doc/"
cp packaging/README.md "$made/doc/README.Debian"
(
    cd "$made/doc"
    perl -pi -e 's{!?\[([^\]]*)\]\((?:\.\./)?(?:docs/)?([^)#:]*)(#[^)]*)?\)}{$2 eq "" || -e $2 ? "[$1]($2" . ($3 // "") . ")" : $1}ge' -- *
)
sed 's|\](\([a-z-]*\.md\)|](../dormouse/\1|g' "$made/doc/openvswitch.md" > "$made/doc-openvswitch/openvswitch.md"
for program in dormouse dormouse-lab; do
    "$programs/$program" completions bash > "$made/completions/$program"
    "$programs/$program" completions zsh > "$made/completions/_$program"
    "$programs/$program" completions fish > "$made/completions/$program.fish"
done
# Every key as a comment, with its default.
{
    echo "# Every key is a comment with its default: take the # off and change the value. The key's table ([node]) needs its # off too."
    "$programs/dormouse" config default | sed -E 's/^([a-z_]+ = |\[)/#\1/'
} > "$made/dormouse.toml"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)-$revision
changelog() {
    printf '%s (%s) unstable; urgency=medium\n\n  * CHANGELOG.md has what changed.\n\n -- The Dormouse authors <dormouse-authors@users.noreply.github.com>  %s\n' \
        "$1" "$version" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" | gzip -9n > "$made/$1.changelog.gz"
}
package() {
    local name=$1
    shift
    changelog "$name"
    cargo deb --quiet --package dormouse --profile "$profile" --no-build --locked "${others[@]}" --deb-version "$version" \
        ${built:+--fast} --dbgsym --output "$target/debian/" "$@"
}
package dormouse
package dormouse-openvswitch --variant openvswitch
ls -l "$target/debian/"*"_${version}_$architecture".*deb
