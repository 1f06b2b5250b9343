#!/usr/bin/env bash
# Writes docs/reproduce.md and docs/figures/: runs the papers' experiments on testbeds of this machine, as root. The
# first argument may name a paper; the others are passed to `weft reproduce` (--quick, --figure 9). Figures of
# docs/figures/ that are not measured again stay in the page.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=3600
PAPERS=(ecpipe mist)
cargo=${CARGO:-cargo}

measured=("${PAPERS[@]}")
case "${1:-}" in
    -* | "") ;;
    *)
        case " ${PAPERS[*]} " in
            *" $1 "*) ;;
            *)
                echo "there is no paper '$1': use one of ${PAPERS[*]}" >&2
                exit 2
                ;;
        esac
        measured=("$1")
        shift
        ;;
esac
figures=(--all)
case " $* " in
    *" --figure"*)
        figures=()
        if [ ${#measured[@]} -gt 1 ]; then
            echo "name the paper of the figures: ${PAPERS[*]}" >&2
            exit 2
        fi
        ;;
esac

"$cargo" build --release --quiet --package weft --package weft-lab
mkdir -p docs/figures
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp -a docs/figures/. "$scratch"

weft() {
    timeout --foreground --kill-after=60 "$SECONDS_MAX" target/release/weft "$@"
}

for paper in "${PAPERS[@]}"; do
    case " ${measured[*]} " in
        *" $paper "*) weft reproduce "$paper" "${figures[@]}" --out "$scratch" "$@" ;;
        *)
            # The existing figures stay.
            had=$(cd "$scratch" && find . -name "$paper-*.json" | sed -E 's#^\./[a-z]+-(.*)\.json$#\1#' | paste -sd, -)
            if [ -n "$had" ]; then
                weft reproduce "$paper" --figure "$had" --redraw --out "$scratch" >/dev/null
            fi
            ;;
    esac
done

{
    cat <<'INTRODUCTION'
# Figures of papers, reproduced

<!-- Written by `make reproduce`: change tools/reproduce.sh or crates/lab/src/reproduce/ instead. -->

This page repeats experiments of two papers with weft on one machine. Each figure has its own testbed ([testbed.md](testbed.md)): every
node runs in a network namespace, with links of the stated rate. The machine is smaller than the papers' clusters, so links are slower
and blocks are smaller. Compare ratios, not times.

Points are medians. Bars and whiskers show the range of all runs. The *link bound* is the value that the same plans would give if only
the links took time. Repairs do not avoid stalled nodes here (`repair_stall_ms` is 0).

INTRODUCTION
    between=
    for paper in "${PAPERS[@]}"; do
        if [ -f "$scratch/$paper.md" ]; then
            printf '%s' "$between"
            sed -E 's#\]\(([a-z]+-[0-9a-z]+\.(svg|png|csv|json))\)#](figures/\1)#g' "$scratch/$paper.md"
            rm "$scratch/$paper.md"
            between=$'\n'
        fi
    done
} >"$scratch/page"
mv "$scratch/page" docs/reproduce.md
cp "$scratch"/* docs/figures/
echo "wrote docs/reproduce.md and docs/figures/" >&2
