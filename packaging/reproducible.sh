# Sourced by the scripts that build what is published: the same commit gives the same bytes in any directory.

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C

# Takes the names of this machine's directories out of what rustc and the C compiler write.
reproducible_flags() {
    local cargo=${CARGO_HOME:-$HOME/.cargo} target
    target=$(readlink -m "${CARGO_TARGET_DIR:-target}")
    # Not RUSTFLAGS, which is split at blanks.
    local flags=("--remap-path-prefix=$target=/target" "--remap-path-prefix=$cargo=/cargo" "--remap-path-prefix=$PWD=/dormouse" "$@")
    CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; echo "${flags[*]}")
    export CARGO_ENCODED_RUSTFLAGS
    export CFLAGS="-ffile-prefix-map=$target=/target -ffile-prefix-map=$cargo=/cargo"
}
