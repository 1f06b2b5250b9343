#!/usr/bin/env bash
# Runs every benchmark of bench/, each a workspace of its own so that the product never depends on what it is compared with.
# What one needs besides a compiler, its own need.sh sees to. Arguments go to each of them.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
for manifest in bench/*/Cargo.toml; do
    [ -e "$manifest" ] || continue
    found=1
    need="${manifest%/*}/need.sh"
    [ ! -x "$need" ] || "$need"
    "${CARGO:-cargo}" run --release --quiet --manifest-path "$manifest" -- "$@"
done
[ $found = 1 ] || { echo "weft: there is no benchmark in bench/" >&2; exit 1; }
