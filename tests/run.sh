#!/usr/bin/env bash
# Runs all test stages, or those named, and prints the seconds of each.
#
#   install       what the tests need (tests/install.sh)
#   build         the binary the tests start: target/quick/dormouse
#   lints         rustfmt and clippy
#   unit          unit, property and integration tests of the crates
#   allocators    the crate memory built with the other two allocators (allocators-long: all crates that allocate), and the
#                 binary with each: settings, memory given back, preloaded libraries, heap profiles
#   packaging     the systemd unit with each drop-in; the Debian packages, installed, upgraded and purged on this machine (as
#                 root); the server in Open vSwitch's place and back; alerts, board, manifests, completions, man pages; what a
#                 release needs, its notes and components; the README's plots, figures and session
#   clients       memccapable, pymemcache, the Couchbase SDKs, raw protocol tests
#   persistence   persistent buckets: restarts, kills at random moments, full disks, damaged files, backups, linearizability,
#                 the SDK's durability (mounts a tmpfs: needs root)
#   differential  random scripts against Debian's memcached
#   ovsdb         the OVSDB server against Debian's, under Open vSwitch and its clients, killed and sent malformed input
#   console       the page at / in headless Chromium, and what it asks the node; the commands that ask a node, and top in tmux
#   lab           the experiment files in examples/lab, quickly
#   soak          everything at once for SOAK_SECONDS (60), the memory soak for SOAK_MEMORY_SECONDS (120), hostile clients for
#                 SOAK_HOSTILE_SECONDS (30), every attack on the workers' time and some on OVSDB's thread for 200 honest requests,
#                 resident memory against node.memory for SOAK_LIMITS_SECONDS (10)
#   fuzz          every fuzz target for FUZZ_SECONDS (12)
#
# A failing stage does not stop the others, but without a build only lints and unit run. The output of each is in
# target/stages/; the end of a failed stage's output is repeated after the table.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(install build lints unit allocators packaging clients persistence differential ovsdb console lab soak fuzz)
stages=("$@")
[ "${#stages[@]}" -gt 0 ] || stages=("${all[@]}")
for stage in "${stages[@]}"; do
    case " ${all[*]} allocators-long ovsdb-differential ovsdb-crash kv-crash kv-linear soak-memory soak-replicas replica-histories replica-mutations nemesis soak-hostile soak-limits miri " in
        *" $stage "*) ;;
        *) echo "run.sh: unknown stage $stage; allowed: ${all[*]}" >&2; exit 2 ;;
    esac
done

export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
target=${CARGO_TARGET_DIR:-target}
export DORMOUSE=${DORMOUSE:-$PWD/$target/quick/dormouse}
case "$target" in /*) DORMOUSE=${DORMOUSE/"$PWD/$target"/$target} ;; esac
python=.venv/bin/python

# Three files at a time: most tests wait for a server or a client more than they compute.
pytest_beside() { "$python" -m pytest -q -n 3 --dist loadfile "$@"; }

stage_install() { tests/install.sh; }

stage_build() { cargo build --profile quick --locked --bin dormouse; }

stage_lints() {
    cargo fmt --all --check
    cargo clippy --profile quick --locked --workspace --all-targets -- -D warnings
}

stage_unit() {
    cargo test --profile quick --locked --workspace
    # The slot protocol in every interleaving; loom replaces the atomics, so this is a build of its own. The protocol is the
    # same over every allocator, and the system's needs no building.
    RUSTFLAGS="--cfg loom" cargo test --profile quick --locked --target-dir "$target/loom" \
        -p memory --no-default-features --features alloc-system --test slot_protocol
}

stage_allocators() {
    local allocator tests built
    "$python" -m pytest -q tests/allocators/test_settings.py tests/allocators/test_memory_returns.py
    built=$(build_variant heap-profile --features heap-profile)
    DORMOUSE=$built "$python" -m pytest -q tests/allocators/test_heap_profile.py
    for allocator in mimalloc system; do
        local features=(--no-default-features --features "alloc-$allocator")
        cargo test --profile quick --locked "${features[@]}" "${@:--pmemory}"
        built=$(build_variant "$allocator" "${features[@]}")
        tests=(tests/allocators/test_memory_returns.py)
        [ "$allocator" = mimalloc ] || tests+=(tests/allocators/test_preloaded.py)
        DORMOUSE=$built "$python" -m pytest -q "${tests[@]}"
    done
}

# Builds the binary with other features and prints its path; afterwards the one with the default features is back in
# place for the other stages. Nothing is built twice: dependencies are the same, and the default build is not stale. What
# is above the allocators is built without optimisation, in a third of the time.
build_variant() {
    local kept=$target/allocators/$1 crate unoptimised=()
    for crate in kv net ovsdb sessions; do unoptimised+=(--config "profile.quick.package.$crate.opt-level=0"); done
    mkdir -p "$target/allocators"
    cargo build --profile quick --locked "${unoptimised[@]}" --bin dormouse "${@:2}"
    cp "$target/quick/dormouse" "$kept"
    stage_build
    realpath "$kept"
}

# For `make test-allocators`.
stage_allocators-long() { stage_allocators -p memory -p kv -p sessions -p ovsdb; }

stage_packaging() {
    cargo build --profile quick --locked --bin dormouse-lab
    "$python" -m pytest -q tests/packaging
}

stage_clients() { pytest_beside tests/wire tests/tls tests/clients; }

stage_differential() {
    # First check that the comparison detects faulty servers, then compare Dormouse with memcached.
    "$python" -m pytest -q tests/differential
    # A fixed seed, so that a failure is due to the change and not to chance; `make differential` uses random seeds.
    "$python" -m tests.differential --seed "${DIFFERENTIAL_SEED:-20261120}" --seconds "${DIFFERENTIAL_SECONDS:-60}"
}

stage_ovsdb() {
    # This also checks that the comparison detects faulty servers; then comes the long differential run.
    pytest_beside tests/ovsdb
    "$python" -m tests.ovsdb --seed "${OVSDB_SEED:-20261121}" --transactions "${OVSDB_TRANSACTIONS_LONG:-10000}"
}

# For `make ovsdb-differential` and `make ovsdb-crash`.
stage_ovsdb-differential() { "$python" -m tests.ovsdb --seconds "${OVSDB_SECONDS:-600}"; }
stage_ovsdb-crash() { "$python" -m tests.ovsdb.crash --rounds "${OVSDB_CRASH_ROUNDS:-200}"; }

# 30 rounds of kills and 12 epochs of histories among them, with a seed that a failure reports; KV_SEED=N repeats the
# same load.
stage_persistence() { pytest_beside tests/persistence; }

# For `make kv-crash` and `make kv-linear`.
stage_kv-crash() { "$python" -m tests.persistence.crash --rounds "${KV_CRASH_ROUNDS:-500}" ${KV_SEED:+--seed "$KV_SEED"}; }
stage_kv-linear() { "$python" -m tests.persistence.histories --epochs "${KV_LINEAR_EPOCHS:-200}" ${KV_SEED:+--seed "$KV_SEED"}; }

stage_console() { pytest_beside tests/console tests/terminal; }

stage_lab() {
    cargo build --profile quick --locked --bin dormouse-lab
    "$python" -m pytest -q tests/lab
}

stage_soak() {
    "$python" -m pytest -q tests/soak
    "$python" -m tests.soak --seconds "${SOAK_SECONDS:-60}"
    "$python" -m tests.soak.memory --seconds "${SOAK_MEMORY_SECONDS:-120}" --seed "${SOAK_SEED:-20261122}"
    "$python" -m tests.soak.hostile --seconds "${SOAK_HOSTILE_SECONDS:-30}"
    "$python" -m tests.soak.work --slice
    "$python" -m tests.soak.ovsdb_work --slice
    # The mix that stays far below the bound; `make soak-limits` runs all.
    "$python" -m tests.soak.limits --seconds "${SOAK_LIMITS_SECONDS:-10}" --mix streams
}

# For `make soak-memory`, `make soak-replicas`, `make replica-histories`, `make replica-mutations`, `make nemesis`, `make soak-hostile`, `make soak-limits` and `make miri`.
stage_soak-limits() {
    "$python" -m tests.soak.limits --runs "${RUNS:-50}" --seconds "${SECONDS_EACH:-40}" --limit-mib 64 --limit-mib 128 --limit-mib 256 --limit-mib 512
}
stage_soak-hostile() {
    "$python" -m tests.soak.hostile --seconds "${SOAK_SECONDS:-300}" --bound 3
    "$python" -m tests.soak.work --bound-median 10 --bound-p99 5
    "$python" -m tests.soak.ovsdb_work --bound-median 10 --bound-p99 5
}
stage_soak-replicas() { "$python" -m tests.soak.replicas --seconds "${SOAK_SECONDS:-600}" ${SOAK_SEED:+--seed "$SOAK_SEED"}; }
stage_replica-histories() { "$python" -m tests.soak.histories --seconds "${SOAK_SECONDS:-600}" ${SOAK_SEED:+--seed "$SOAK_SEED"}; }
stage_nemesis() { "$python" -m tests.soak.nemesis --seconds "${SOAK_SECONDS:-1800}" ${SOAK_SEED:+--seed "$SOAK_SEED"}; }
stage_replica-mutations() { "$python" -m tests.soak.mutations --count "${COUNT:-10M}" ${SOAK_SEED:+--seed "$SOAK_SEED"}; }
stage_soak-memory() { "$python" -m tests.soak.memory --seconds "${SOAK_SECONDS:-1800}" ${SOAK_SEED:+--seed "$SOAK_SEED"}; }

# With malloc, which Miri supports; pointers are recovered from locations and the page map, hence exposed provenance.
stage_miri() {
    MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-disable-isolation" \
        cargo +nightly miri test --locked --target-dir "$target/miri" -p memory --no-default-features --features alloc-system --lib -- --skip backend::
}

stage_fuzz() {
    local targets fuzzed jemalloc log
    "$python" -m tests.corpus
    targets=$(cargo fuzz list)
    # The jemalloc that is built already: another build of it would take as long as half of the stage.
    jemalloc=$(find "$target/quick/build" -path '*/tikv-jemalloc-sys-*/out/lib/libjemalloc_pic.a' -print -quit 2>/dev/null)
    [ -z "$jemalloc" ] || export JEMALLOC_OVERRIDE=$(realpath "$jemalloc")
    for fuzzed in $targets; do
        # Without the address sanitiser the stable compiler is enough.
        log=fuzz/$fuzzed.log
        if ! cargo fuzz run --sanitizer none "$fuzzed" -- -max_total_time="${FUZZ_SECONDS:-12}" -print_final_stats=1 >"$log" 2>&1; then
            tail -n 40 "$log"
            return 1
        fi
        echo "fuzz $fuzzed: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, none fails"
    done
}

logs=$target/stages
mkdir -p "$logs"
passed=0
failed=()
summary=
for stage in "${stages[@]}"; do
    printf '\n==== %s\n' "$stage"
    started=$SECONDS
    verdict=passed
    rm -f "$logs/$stage.log"
    case " ${failed[*]-} " in
        *" build "*)
            case "$stage" in allocators* | packaging | clients | differential | ovsdb* | persistence | kv-* | soak*) verdict="failed (no build)" ;; esac ;;
    esac
    # A subshell, so that `set -e` applies inside the stage although its result is checked.
    if [ "$verdict" = passed ]; then
        set +e
        (set -e; "stage_$stage") 2>&1 | tee "$logs/$stage.log"
        [ "${PIPESTATUS[0]}" = 0 ] || verdict=failed
        set -e
    fi
    if [ "$verdict" = passed ]; then passed=$((passed + 1)); else failed+=("$stage"); fi
    summary+=$(printf '%-14s %5d s  %s' "$stage" $((SECONDS - started)) "$verdict")$'\n'
    printf '==== %s: %s after %d s\n' "$stage" "$verdict" $((SECONDS - started))
done

printf '\n%s\n' "$summary"
for stage in "${failed[@]}"; do
    [ ! -f "$logs/$stage.log" ] || printf '==== the end of %s\n%s\n\n' "$stage" "$(tail -n 20 "$logs/$stage.log" | cut -c1-400)"
done
printf '%d passed, %d failed\n' "$passed" "${#failed[@]}"
[ "${#failed[@]}" = 0 ]
