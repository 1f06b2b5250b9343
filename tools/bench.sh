#!/usr/bin/env bash
# Runs every benchmark of bench/, each a workspace of its own so that the product never depends on what it is compared with.
# What one needs besides a compiler, its own need.sh sees to. Arguments go to each of them. Everything is built before anything
# is measured, and none runs for longer than its bound.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=300
cargo=${CARGO:-cargo}

manifests=(bench/*/Cargo.toml)
[ -e "${manifests[0]}" ] || { echo "weft: there is no benchmark in bench/" >&2; exit 1; }

echo "building weft and its benchmarks (some minutes, the first time)" >&2
# Some measure the binary itself, as people run it.
"$cargo" build --release --quiet --package weft
target=$(realpath "${CARGO_TARGET_DIR:-target}")
export WEFT_BIN=$target/release/weft
for manifest in "${manifests[@]}"; do
    need="${manifest%/*}/need.sh"
    [ ! -x "$need" ] || "$need"
    "$cargo" build --release --quiet --manifest-path "$manifest"
done
for manifest in "${manifests[@]}"; do
    timeout --foreground --kill-after=20 "$SECONDS_MAX" \
        "$cargo" run --release --quiet --manifest-path "$manifest" -- "$@"
done
