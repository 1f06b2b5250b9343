#!/usr/bin/env bash
# Writes docs/reproduce.md and docs/figures/: runs the papers' experiments on testbeds of this machine, as root. The
# first argument may name a paper; the others are passed to `weft reproduce` (--quick, --figure 9). Figures of
# docs/figures/ that are not measured again stay in the page. With --redraw nothing is measured.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_MAX=3600
PAPERS=(ecpipe mist repairboost cpu)
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

sed -E 's#\]\(([a-z]+-[0-9a-z]+\.(svg|png|csv|json))\)#](figures/\1)#g' "$scratch/reproduce.md" >docs/reproduce.md
rm "$scratch/reproduce.md"
cp "$scratch"/* docs/figures/
echo "wrote docs/reproduce.md and docs/figures/" >&2
