#!/usr/bin/env bash
# Runs every benchmark of bench/, each a workspace of its own so that the product never depends on what it is compared with.
# Arguments go to each of them.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
for manifest in bench/*/Cargo.toml; do
    [ -e "$manifest" ] || continue
    found=1
    # What the benchmark compares with may need more than the product does.
    if [ -x "${manifest%/*}/need.sh" ]; then "${manifest%/*}/need.sh"; fi
    "${CARGO:-cargo}" run --release --quiet --manifest-path "$manifest" -- "$@"
done
[ $found = 1 ] || { echo "weft: there is no benchmark in bench/" >&2; exit 1; }
