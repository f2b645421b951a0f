# The front door. `make help` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help run test test-allocators check lab lab-allocators soak soak-memory soak-replicas replica-histories replica-mutations nemesis soak-hostile soak-limits miri differential ovsdb-differential ovsdb-crash kv-crash kv-linear subdocument-model lab-sensitivity gocaves packages image booted reproducible release figures picture

TARGET := $(or $(CARGO_TARGET_DIR),target)
DORMOUSE := $(TARGET)/release/dormouse

help: ## What can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 28

run: ## Build and start a node on loopback with the ephemeral bucket "default"
	cargo build --release --locked --bin dormouse
	$(DORMOUSE) serve $(ARGS)

test: ## Install what the tests need, then run all of them (STAGES="build unit" for some)
	tests/run.sh $(STAGES)

test-allocators: ## Test the crates that allocate with mimalloc and with the system's malloc
	tests/run.sh allocators-long

check: ## The quick part before a commit: format, lints, unit tests
	tests/run.sh lints unit

lab: ## Measure this server and its peers: make lab ARGS="throughput --quick"
	cargo build --release --locked --bin dormouse --bin dormouse-lab
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(DORMOUSE) lab $(ARGS)

EXPERIMENT ?= ovsdb
PEERS_ovsdb := stock,stock-jemalloc,stock-tcmalloc
PEERS_fragmentation := memcached,redis,redis-defrag,valkey,valkey-defrag

# The default allocator is built last, so that it is what stays in the build directory.
lab-allocators: ## Measure builds with each allocator: make lab-allocators EXPERIMENT=fragmentation (or ovsdb) ARGS="--quick"
	mkdir -p $(TARGET)/allocators
	set -e; for allocator in system mimalloc jemalloc; do \
	    cargo build --release --locked --bin dormouse --no-default-features --features alloc-$$allocator; \
	    cp $(DORMOUSE) $(TARGET)/allocators/$$allocator; \
	done
	cargo build --release --locked --bin dormouse-lab
	$(DORMOUSE) lab $(EXPERIMENT) --peers $(PEERS_$(EXPERIMENT)) --preload jemalloc,tcmalloc \
	    $(foreach name,jemalloc mimalloc system,--dormouse $(name)=$(TARGET)/allocators/$(name)) $(ARGS)

packages: ## The Debian packages, from a release build, into target/debian
	packaging/build.sh

image: ## The container image, from a static release build, into target/container
	packaging/container/build.sh $(TAG)

release: ## All that is published: make release VERSION=0.1.0 (ARCHITECTURES=amd64 for one; DRAFT=1 to try it on a commit that is no release)
	packaging/release.sh $(if $(DRAFT),--draft) $(VERSION) $(ARCHITECTURES)

figures: ## The README's plots and table, from docs/results
	python3 docs/results/figures.py

picture: ## The README's picture of the page, from a node under load (needs the tests' Chromium)
	.venv/bin/python -m tests.console.picture docs/images/console-load.png

booted: ## Install the packages on a Debian with systemd, booted in a container (root, mmdebstrap, systemd-container)
	packaging/booted.sh

reproducible: ## Build packages and image twice, in two directories, and compare the bytes
	packaging/compare.sh

soak: ## Ten minutes of everything at once (SOAK_SECONDS=60 for a slice)
	SOAK_SECONDS=$${SOAK_SECONDS:-600} tests/run.sh install build soak

soak-replicas: ## Ten minutes of three nodes that copy from each other, killed, paused, promoted (SOAK_SECONDS=60 for a slice)
	SOAK_SECONDS=$${SOAK_SECONDS:-600} tests/run.sh install build soak-replicas

replica-histories: ## Ten minutes of histories of such nodes, judged by porcupine (SOAK_SECONDS=60 for a slice)
	SOAK_SECONDS=$${SOAK_SECONDS:-600} tests/run.sh install build replica-histories

replica-mutations: ## Ten million mutations that a replica follows, in both kinds of bucket (COUNT=200k for a slice)
	tests/run.sh install build replica-mutations

nemesis: ## Half an hour of three nodes under faults that overlap, promoted by the documented command (SOAK_SECONDS=60 for a slice)
	SOAK_SECONDS=$${SOAK_SECONDS:-1800} tests/run.sh install build nemesis

soak-memory: ## Half an hour of full buckets whose values shrink, grow, expire and move (SOAK_SECONDS=120 for a slice)
	SOAK_SECONDS=$${SOAK_SECONDS:-1800} tests/run.sh install build soak-memory

soak-hostile: ## Five minutes of everything hostile at once, then every attack alone, beside honest clients whose p99 is bounded (SOAK_SECONDS=60)
	SOAK_SECONDS=$${SOAK_SECONDS:-300} tests/run.sh install build soak-hostile

soak-limits: ## Resident memory against node.memory in every mix that holds much: 50 runs of 40 s at four sizes (RUNS=1 SECONDS_EACH=10 for a slice)
	tests/run.sh install build soak-limits

miri: ## The crate memory under Miri: slabs, blocks, large values, records (needs the nightly toolchain with miri)
	tests/run.sh miri

differential: ## Random scripts against memcached with a seed of the moment, for ten minutes
	DIFFERENTIAL_SEED=$${DIFFERENTIAL_SEED:-$$(date +%s)} DIFFERENTIAL_SECONDS=$${DIFFERENTIAL_SECONDS:-600} tests/run.sh install build differential

ovsdb-differential: ## Random transactions against Debian's ovsdb-server with a seed of the moment, for ten minutes
	OVSDB_SECONDS=$${OVSDB_SECONDS:-600} tests/run.sh install build ovsdb-differential

ovsdb-crash: ## 200 rounds of killing the OVSDB server at random moments
	OVSDB_CRASH_ROUNDS=$${OVSDB_CRASH_ROUNDS:-200} tests/run.sh install build ovsdb-crash

kv-crash: ## 500 rounds of killing a persistent bucket at random moments (KV_SEED=N for the load of a failure)
	KV_CRASH_ROUNDS=$${KV_CRASH_ROUNDS:-500} tests/run.sh install build kv-crash

subdocument-model: ## A million random documents and sub-document operations beside a tree
	SUBDOCUMENT_CASES=1000000 cargo test --release --locked -p wire --test subdocument_model

lab-sensitivity: ## Finds a server that is slowed by 3 %, by CPU time, with `lab run`
	cargo test --profile quick --locked -p lab --test run -- --ignored

gocaves: ## The checks of the SDK for Go against gocaves, the mock of its makers (needs the network)
	tests/run.sh install && .venv/bin/python -m tests.clients.gocaves

kv-linear: ## 200 epochs of histories with kills, checked for linearizability (KV_SEED=N)
	KV_LINEAR_EPOCHS=$${KV_LINEAR_EPOCHS:-200} tests/run.sh install build kv-linear
