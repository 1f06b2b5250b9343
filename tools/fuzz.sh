#!/usr/bin/env bash
# Fuzzes one target after another for WEFT_FUZZ_SECONDS (60), guided by coverage; WEFT_FUZZ_TARGETS selects targets.
# Findings are written to fuzz/found/TARGET/; keep them there, and `make test` replays them.
#
# libFuzzer is compiled in and needs a C++ compiler; LLVM counts the coverage, which works with stable Rust. So neither
# a nightly toolchain nor cargo-fuzz is needed. With both, `cargo +nightly fuzz run TARGET` also finds memory errors.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${WEFT_FUZZ_SECONDS:-60}
read -ra targets <<<"${WEFT_FUZZ_TARGETS:-frames hello sidecar saved_plan code_spec task update_record}"
host=$(rustc -vV | sed -n 's/^host: //p')
sancov='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters'
sancov+=' -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares'

cargo run --quiet --package weft-fuzz-entries --example seeds -- fuzz/corpus
# With an explicit target, so that build scripts and macros are not instrumented.
RUSTFLAGS="$sancov --cfg fuzzing -Ccodegen-units=1 ${RUSTFLAGS:-}" \
    cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir fuzz/target
for target in "${targets[@]}"; do
    echo "fuzzing $target for $seconds s"
    mkdir -p "fuzz/corpus/$target" "fuzz/found/$target"
    "fuzz/target/$host/release/$target" "fuzz/corpus/$target" "fuzz/found/$target" -max_total_time="$seconds" -timeout=20 \
        -rss_limit_mb=2048 -max_len=65536 -artifact_prefix="fuzz/found/$target/" -print_final_stats=1 -verbosity=0
    rmdir --ignore-fail-on-non-empty "fuzz/found/$target"
done
rmdir --ignore-fail-on-non-empty fuzz/found
