# Sourced by the scripts that build: architectures as Debian names them, and what Rust and GCC call them.

own_architecture() {
    case "$(uname -m)" in
        x86_64) echo amd64 ;;
        aarch64) echo arm64 ;;
        *) echo "packages are built on amd64 and arm64, not on $(uname -m)" >&2; return 2 ;;
    esac
}

check_architecture() {
    case "$1" in
        amd64 | arm64) ;;
        *) echo "unknown architecture $1; allowed: amd64, arm64" >&2; exit 2 ;;
    esac
}

rust_target() {
    case "$1" in
        amd64) echo x86_64-unknown-linux-gnu ;;
        arm64) echo aarch64-unknown-linux-gnu ;;
    esac
}

gnu_prefix() {
    case "$1" in
        amd64) echo x86_64-linux-gnu ;;
        arm64) echo aarch64-linux-gnu ;;
    esac
}

# Tells cargo and the build scripts of C code which compiler makes programs for another architecture.
cross_compilers() {
    local prefix target name
    [ "$1" != "$(own_architecture)" ] || return 0
    prefix=$(gnu_prefix "$1") target=$(rust_target "$1")
    name=${target//-/_}
    export "CC_$name=$prefix-gcc" "AR_$name=$prefix-ar" "CARGO_TARGET_${name^^}_LINKER=$prefix-gcc"
    # A page has 4 KiB in the program's own memory management too (crates/memory).
    export JEMALLOC_SYS_WITH_LG_PAGE=12
}

# Where cargo puts what it builds for an architecture with a profile.
built_directory() {
    if [ "$1" = "$(own_architecture)" ]; then
        echo "${CARGO_TARGET_DIR:-target}/$2"
    else
        echo "${CARGO_TARGET_DIR:-target}/$(rust_target "$1")/$2"
    fi
}
