#!/usr/bin/env bash
# Runs every benchmark of bench/. Each is a workspace of its own, so that the product never depends on the libraries
# that it is compared with. The need.sh of a benchmark installs its other requirements. Arguments are passed to each
# benchmark. All are built before any is measured, and each has a time limit.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=300
cargo=${CARGO:-cargo}

manifests=(bench/*/Cargo.toml)
[ -e "${manifests[0]}" ] || { echo "weft: there is no benchmark in bench/" >&2; exit 1; }

echo "building weft and its benchmarks (some minutes, the first time)" >&2
# Some measure the binary itself, as users run it.
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
