# The front door. `make help` lists what there is.
.DEFAULT_GOAL := help
.PHONY: help run test check lab soak differential ovsdb-differential ovsdb-crash

DORMOUSE := $(or $(CARGO_TARGET_DIR),target)/release/dormouse

help: ## What can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 28

run: ## Build and start a node on loopback with the ephemeral bucket "default"
	cargo build --release --locked --bin dormouse
	$(DORMOUSE) serve $(ARGS)

test: ## Install what the tests need, then run all of them (STAGES="build unit" for some)
	tests/run.sh $(STAGES)

check: ## The quick part before a commit: format, lints, unit tests
	tests/run.sh lints unit

lab: ## Measure this server and its peers: make lab ARGS="throughput --quick"
	cargo build --release --locked --bin dormouse
	$(DORMOUSE) lab $(ARGS)

soak: ## Ten minutes of everything at once (SOAK_SECONDS=60 for a slice)
	SOAK_SECONDS=$${SOAK_SECONDS:-600} tests/run.sh install build soak

differential: ## Random scripts against memcached with a seed of the moment, for ten minutes
	DIFFERENTIAL_SEED=$${DIFFERENTIAL_SEED:-$$(date +%s)} DIFFERENTIAL_SECONDS=$${DIFFERENTIAL_SECONDS:-600} tests/run.sh install build differential

ovsdb-differential: ## Random transactions against Debian's ovsdb-server with a seed of the moment, for ten minutes
	OVSDB_SECONDS=$${OVSDB_SECONDS:-600} tests/run.sh install build ovsdb-differential

ovsdb-crash: ## 200 rounds of killing the OVSDB server at random moments
	OVSDB_CRASH_ROUNDS=$${OVSDB_CRASH_ROUNDS:-200} tests/run.sh install build ovsdb-crash
