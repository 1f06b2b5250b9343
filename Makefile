# The commands for developers. Each installs what it needs, or prints the one line to run.
# A fresh Debian 12 machine with a Rust toolchain is enough for all of them.

CARGO ?= cargo
export CARGO_TERM_PROGRESS_WHEN ?= auto
# rustup's directory, which a shell that was started before its installation does not know.
export PATH := $(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help demo build lab test simulate fuzz lint audit bless bench bench-minio codes reproduce docs

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## the main use case: 16 agents store a real file; a node is killed; the file is read in three ways and repaired
	@tools/need.sh cc cargo
	@echo "building weft (some minutes, the first time)"
	@rm -f $${CARGO_TARGET_DIR:-target}/release/weft-lab
	@$(CARGO) build --release --package weft
	@$(CARGO) run --release --quiet --package weft -- demo $(DEMO)

build: ## the weft binary, as target/release/weft, and its debug information beside it
	@tools/need.sh cc cargo
	@tools/build.sh weft

lab: ## weft-lab beside weft: bench, testbed, reproduce
	@tools/need.sh cc cargo
	@tools/build.sh weft weft-lab

test: ## every test of the workspace, several test programs at a time
	@tools/need.sh cc cargo $(if $(filter 0,$(shell id -u)),net)
	@tools/test.sh

simulate: ## simulate whole clusters under faults, with WEFT_SIM_SEEDS seeds (200); explore the update protocol, WEFT_UPDATE_STATES (2000000) each; crash updates, WEFT_UPDATE_CRASHES (5000) for each code
	@tools/need.sh cc cargo
	WEFT_SIM_SEEDS=$${WEFT_SIM_SEEDS:-200} $(CARGO) test --package weft-tests --test simulation -- --nocapture
	WEFT_UPDATE_STATES=$${WEFT_UPDATE_STATES:-2000000} $(CARGO) test --package weft-update no_larger -- --nocapture
	WEFT_UPDATE_CRASHES=$${WEFT_UPDATE_CRASHES:-5000} $(CARGO) test --package weft-updater survive -- --nocapture

fuzz: ## coverage-guided fuzzing of all parsers of untrusted bytes, WEFT_FUZZ_SECONDS (60) per target
	@tools/need.sh cc cxx cargo
	@tools/fuzz.sh

lint: ## formatting, clippy, and the project's own rules
	@tools/need.sh cc cargo fmt clippy
	@tools/tidy.sh --self-test
	@tools/tidy.sh
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

audit: ## check all dependencies: licences, advisories, duplicates, sources; WEFT_ADVISORY_DB=DIR uses a clone of the advisories
	@tools/need.sh cc git cargo
	@tools/audit.sh --self-test
	@tools/audit.sh

bless: ## regenerate committed files: the control plane's messages, docs/settings.md, docs/metrics.md, docs/reproduce.md with its charts
	@tools/need.sh cc cargo
	WEFT_BLESS=1 $(CARGO) test --package weft-proto --test wire generated
	WEFT_BLESS=1 $(CARGO) test --package weft --bin weft s_page
	WEFT_BLESS=1 $(CARGO) test --package weft-lab --bin weft-lab the_docs_have_the_predictions
	WEFT_BLESS=1 $(CARGO) test --package weft-lab --bin weft-lab the_docs_are_drawn

bench: ## benchmarks: ratios to other libraries and to this machine's limits, measured in one run
	@tools/need.sh cc cargo
	@tools/bench.sh

bench-minio: ## put and get compared with MinIO in one run (needs Go)
	@tools/need.sh cc cargo
	@tools/bench-minio.sh

codes: ## measure all codes and write docs/codes.md, which compares them
	@tools/need.sh cc cargo
	@tools/codes.sh

reproduce: ## repeat experiments of papers on shaped links (as root) and write docs/reproduce.md; REPRODUCE=mist for one paper
	@tools/need.sh cc cargo
	@tools/reproduce.sh $(REPRODUCE)

docs: ## the API documentation, target/doc/weft_types/index.html and its siblings
	@tools/need.sh cc cargo
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
