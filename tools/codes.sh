#!/usr/bin/env bash
# Writes docs/codes.md: measures every code (bench/compare) and combines the speeds with the codes' own data. Arguments
# are passed to the measurement. The page is replaced only when it is complete.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=300
cargo=${CARGO:-cargo}
manifest=bench/compare/Cargo.toml

echo "building the benchmark (some minutes, the first time)" >&2
bench/compare/need.sh
"$cargo" build --release --quiet --manifest-path "$manifest"
"$cargo" build --quiet --package weft-codes --example page

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
timeout --foreground --kill-after=20 "$SECONDS_MAX" \
    "$cargo" run --release --quiet --manifest-path "$manifest" -- --only codes --json "$@" >"$scratch/speeds.json"
"$cargo" run --quiet --package weft-codes --example page <"$scratch/speeds.json" >"$scratch/codes.md"
mv "$scratch/codes.md" docs/codes.md
echo "wrote docs/codes.md" >&2
