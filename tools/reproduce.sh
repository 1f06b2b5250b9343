#!/usr/bin/env bash
# Writes docs/reproduce.md and docs/figures/: runs the experiments of papers on testbeds of this machine, which needs root.
# Arguments go to `weft reproduce` (--quick). Figures of docs/figures/ that are not measured anew stay in the page as they were.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=3600
cargo=${CARGO:-cargo}

"$cargo" build --release --quiet --package weft
mkdir -p docs/figures
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -a docs/figures/. "$scratch"

figures=(--all)
case " $* " in *" --figure"*) figures=() ;; esac
timeout --foreground --kill-after=60 "$SECONDS_MAX" \
    target/release/weft reproduce ecpipe "${figures[@]}" --out "$scratch" "$@"

{
    cat <<'INTRODUCTION'
# Papers, reproduced

<!-- Written by `make reproduce`: change tools/reproduce.sh or crates/cli/src/reproduce/ instead. -->

What papers measured, measured again with weft on one machine. Each figure has a testbed of its own (`weft testbed`): every node in
a network namespace, with links that carry what is said below it. The machine is smaller than the papers' clusters, so links are
slower and blocks are smaller; ratios are what can be compared. "Links say" is what the same plans would take if the links were all
that takes time. Points are medians; lines over bars and dots go from the least to the most of all runs.

INTRODUCTION
    sed -E 's#\]\(([a-z]+-[0-9a-z]+\.(svg|png|csv|json))\)#](figures/\1)#g' "$scratch/ecpipe.md"
} >"$scratch/page"
mv "$scratch/page" docs/reproduce.md
rm "$scratch/ecpipe.md"
cp "$scratch"/* docs/figures/
echo "wrote docs/reproduce.md and docs/figures/" >&2
