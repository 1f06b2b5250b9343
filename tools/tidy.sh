#!/usr/bin/env bash
# Checks the project's rules that rustfmt and clippy do not cover. Prints each violation as file:line: reason, and
# fails.
#
#   tools/tidy.sh [ROOT]        check a tree (this one)
#   tools/tidy.sh --self-test   plant one breach of every rule in a scratch tree and see that each is found
set -euo pipefail

tools=$(dirname "$(realpath "$0")")
FILE_LINES_MAX=500
TEST_LINES_MAX=800
# The most files of a crate that may import each other in a circle.
CIRCLE_FILES_MAX=8

# The permitted direct dependencies (dev-dependencies are free). Anything else is refused, so that the engine can never
# depend on a code, nor a plan on a socket.
MAY_USE='
types:
gf:          types
codes:       types gf
plan:        types gf
schemes:     types gf codes plan
update:      types
control:     types codes plan schemes update
proto:       types plan update
store:       types
updater:     types gf codes update store
engine:      types gf plan
meta:        types update
agent:       types gf codes plan engine store proto update updater
coordinator: types gf codes plan schemes control meta proto update
client:      types gf plan engine proto update
cli:         types codes plan schemes control proto meta agent coordinator client
lab:         types codes plan schemes control proto coordinator client cli
'
# These crates describe, compute and decide; they never wait, and know neither a database nor the wire.
NEVER_ASYNC='types gf codes plan schemes update updater control'
ASYNC_CRATES='tokio|tokio-.*|async-trait|futures|futures-.*|tonic.*|prost.*|hyper.*|tower|rusqlite'

# Generated code (src/generated/) follows the generator's rules.
rust_files() { find "$1/crates" "$1/tests" "$1/bench" "$1/fuzz" \( -name target -o -name generated \) -prune -o -name '*.rs' -print 2>/dev/null | sort || true; }

check_dependencies() {
    local manifest
    for manifest in "$1"/crates/*/Cargo.toml; do
        awk -v crate="$(basename "$(dirname "$manifest")")" -v table="$MAY_USE" -v never="$NEVER_ASYNC" -v async="^($ASYNC_CRATES)$" '
            BEGIN {
                count = split(table, lines, "\n")
                for (i = 1; i <= count; i++) {
                    if (split(lines[i], words, /[: ]+/) && words[1] != "") {
                        known[words[1]] = 1
                        for (w = 2; w in words; w++) may[words[1], words[w]] = 1
                        delete words
                    }
                }
                count = split(never, words, " ")
                for (i = 1; i <= count; i++) quiet[words[i]] = 1
                if (!(crate in known)) printf "%s:1: the crate %s is not in the table of tools/tidy.sh\n", FILENAME, crate
            }
            /^\[/ { section = $0 }
            section ~ /dependencies/ && section !~ /dev-dependencies/ && /^[a-z]/ {
                name = $1
                sub(/[.=].*/, "", name)
                # The package in crates/cli has the name of its binary.
                if (name == "weft") name = "weft-cli"
                if (name ~ /^weft-/) {
                    used = substr(name, 6)
                    if (!((crate, used) in may)) printf "%s:%d: %s must not depend on %s\n", FILENAME, FNR, crate, used
                } else if ((crate in quiet) && name ~ async) {
                    printf "%s:%d: %s must not be asynchronous: remove %s\n", FILENAME, FNR, crate, name
                }
            }' "$manifest"
    done
}

check_files() {
    local file lines most
    rust_files "$1" | while read -r file; do
        lines=$(wc -l <"$file")
        most=$FILE_LINES_MAX
        case $file in */tests/* | *tests.rs | */benches/* | */bench/*) most=$TEST_LINES_MAX ;; esac
        [ "$lines" -le "$most" ] || echo "$file:$lines: more than $most lines: split it"
        case $file in
            */src/*tests.rs) ;;
            */src/*) head -n 1 "$file" | grep -q '^//!' || echo "$file:1: it does not begin with its purpose (//!)" ;;
        esac
        case $file in
            */crates/gf/*) ;;
            *) grep -nE '(allow|expect)\(unsafe_code' "$file" | sed "s|^\([0-9]*\):.*|$file:\1: unsafe code belongs into crates/gf|" || true ;;
        esac
        grep -nE 'todo!|unimplemented!|dbg!\(|\b(TODO|FIXME|XXX|HACK)\b|#\[ignore' "$file" |
            sed "s|^\([0-9]*\):.*|$file:\1: unfinished: todo, fixme, dbg or an ignored test|" || true
    done
}

# An unbiased select! polls its branches in random order, so a simulation's seed would not determine the run.
check_selects() {
    local crate
    for crate in engine proto client agent coordinator; do
        find "$1/crates/$crate/src" -name '*.rs' ! -name '*tests.rs' 2>/dev/null | sort | xargs -r awk '
            FNR == 1 { tests = 0; last = 0 }
            /^#\[cfg\(test\)\]/ { tests = 1 }
            last && /^ *\/\// { next }
            last && $0 !~ /biased;/ { printf "%s:%d: this select! is not biased\n", FILENAME, last }
            { last = (!tests && $0 !~ /^ *\/\// && /select! \{$/) ? FNR : 0 }'
    done
}

check_circles() {
    local src
    for src in "$1"/crates/*/src; do
        find "$src" -name '*.rs' ! -path "$src/*/generated/*" ! -path "$src/generated/*" ! -path "$src/*/tests/*" ! -name '*tests.rs' | sort |
            xargs -r awk -v root="$src" -v max=$CIRCLE_FILES_MAX -f "$tools/circles.awk" || echo "$src: cannot search for circles"
    done
}

check() {
    local found
    found=$(check_dependencies "$1"; check_files "$1"; check_selects "$1"; check_circles "$1")
    [ -z "$found" ] && return
    printf '%s\n' "$found"
    return 1
}

self_test() {
    local breach
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    mkdir -p "$tree"/crates/{engine,plan,types,stray}/src
    printf '[dependencies]\nweft-plan.workspace = true\n[dev-dependencies]\nweft-codes.workspace = true\n' >"$tree/crates/engine/Cargo.toml"
    printf '[dependencies]\nweft-gf.workspace = true\n' >"$tree/crates/plan/Cargo.toml"
    printf '[dependencies]\nserde.workspace = true\n' >"$tree/crates/types/Cargo.toml"
    printf '//! Fine.\nfn main() {}\n' | tee "$tree"/crates/{engine,plan,types}/src/lib.rs >/dev/null
    rm -r "$tree/crates/stray"
    check "$tree" || { echo "tidy: a clean tree was refused" >&2; exit 1; }

    plant() { # a name for the breach, what the message must say, the file, its content
        local file="$tree/$3" saved
        saved=$(cat "$file" 2>/dev/null || true)
        mkdir -p "$(dirname "$file")"
        printf '%b' "$4" >"$file"
        { check "$tree" || true; } | grep "$2" >/dev/null || { echo "tidy: not found: $1" >&2; exit 1; }
        if [ -n "$saved" ]; then printf '%s\n' "$saved" >"$file"; else rm -r "${file%/*}"; fi
    }
    plant 'an upward arrow' 'engine must not depend on codes' crates/engine/Cargo.toml '[dependencies]\nweft-codes.workspace = true\n'
    plant 'an upward arrow when building' 'plan must not depend on proto' crates/plan/Cargo.toml '[build-dependencies]\nweft-proto.workspace = true\n'
    plant 'the binary as a library' 'plan must not depend on cli' crates/plan/Cargo.toml '[dependencies]\nweft = { path = "../cli" }\n'
    plant 'an asynchronous plan' 'plan must not be asynchronous' crates/plan/Cargo.toml '[dependencies]\ntokio.workspace = true\n'
    plant 'a crate outside the table' 'stray is not in the table' crates/stray/Cargo.toml '[dependencies]\n'
    plant 'a file without a header' 'does not begin' crates/plan/src/lib.rs 'fn main() {}\n'
    # Nine files, each of which imports the next by various kinds of paths; eight of them are the permitted maximum.
    circle() { # the last one's import
        local at
        mkdir -p "$tree/crates/plan/src/m8"
        printf '//! Fine.\n%s\n' "$(printf 'mod m%d;\n' 1 2 3 4 5 6 7 8)" >"$tree/crates/plan/src/lib.rs"
        for at in 1 2 3 4 5; do printf '//! Fine.\nuse crate::m%d::Next;\n' $((at + 1)) >"$tree/crates/plan/src/m$at.rs"; done
        printf '//! Fine.\nuse super::{m7::{self as own, Next}}; // crate::m1::No\n' >"$tree/crates/plan/src/m6.rs"
        printf '//! Fine.\nfn next() { super::m8::next() }\n' >"$tree/crates/plan/src/m7.rs"
        printf '//! Fine.\nmod below;\nuse below::Next;\n' >"$tree/crates/plan/src/m8.rs"
        printf '//! Fine.\n%s\n#[cfg(test)]\nuse crate::m1::Next;\n' "$1" >"$tree/crates/plan/src/m8/below.rs"
    }
    saved=$(cat "$tree/crates/plan/src/lib.rs")
    circle 'use crate::m2::Next;'
    { check "$tree" || true; } | grep '8 files import\|circle' >/dev/null && { echo "tidy: a circle of few files was refused" >&2; exit 1; }
    circle 'use super::super::{m1::Next};'
    { check "$tree" || true; } | grep '9 files import each other' >/dev/null || { echo "tidy: not found: a circle" >&2; exit 1; }
    rm -r "$tree"/crates/plan/src/m*
    printf '%s\n' "$saved" >"$tree/crates/plan/src/lib.rs"
    plant 'a long file' 'split it' crates/plan/src/lib.rs "//! Long.\n$(printf '\\n%.0s' $(seq 800))"
    breach=to; plant 'a stub' 'unfinished' crates/plan/src/lib.rs "//! Stub.\nfn f() { ${breach}do!() }\n"
    breach=select; plant 'a select in random order' 'not biased' crates/engine/src/lib.rs "//! Random.\nfn f() {\n    ${breach}! {\n        a = b => {}\n    }\n}\n"
    breach=unsafe_; plant 'unsafe code' 'belongs into crates/gf' crates/plan/src/lib.rs "//! Unsafe.\n#[allow(${breach}code)]\nfn f() {}\n"
    check "$tree" || { echo "tidy: the scratch tree was not restored" >&2; exit 1; }
}

if [ "${1:-}" = --self-test ]; then
    self_test
else
    check "${1:-$(dirname "$(dirname "$(realpath "$0")")")}"
fi
