#!/usr/bin/env bash
# Prints the facts of a RustSec advisory database, one advisory a line, as tools/audit.sh reads them:
#
#   tools/advisories.sh CLONE_DIR >tools/advisories.tsv
#
# CLONE_DIR is a clone of that database, with or without a work tree; its HEAD is read. Only facts are copied: the id,
# the crate, the date, the kind, the versions. Descriptions and withdrawn advisories are left out. The snapshot's date
# is that of the clone's last commit.
set -euo pipefail

clone=${1:?"usage: tools/advisories.sh CLONE_DIR"}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

taken=$(git -C "$clone" log -1 --format=%cd --date=format:%Y-%m-%d)
git -C "$clone" archive HEAD crates | tar -x -C "$scratch"

printf '# Facts of the RustSec advisory database (CC0-1.0, some CC-BY-4.0), made by tools/advisories.sh; do not edit.\n'
printf '# snapshot: %s\n' "$taken"
printf '# id\tcrate\tdate\tkind\tpatched\tunaffected\n'
find "$scratch/crates" -name '*.md' -print0 | sort -z | xargs -0 awk '
    # The strings of a value: the only one, or those of an array, separated by "; ".
    function strings(value,    list, part) {
        list = ""
        while (match(value, /"[^"]*"/)) {
            part = substr(value, RSTART + 1, RLENGTH - 2)
            list = list (list == "" ? "" : "; ") part
            value = substr(value, RSTART + RLENGTH)
        }
        return list
    }
    function fail(why) { printf "weft: %s: %s\n", file, why >"/dev/stderr"; failed = 1 }
    function finish() {
        if (file == "" || withdrawn) return
        if (fact["id"] == "" || fact["package"] == "" || fact["date"] == "" || !versions) fail("no id, package, date or versions")
        printf "%s\t%s\t%s\t%s\t%s\t%s\n", fact["id"], fact["package"], fact["date"],
            fact["informational"] == "" ? "vulnerability" : fact["informational"], fact["patched"], fact["unaffected"]
    }
    FNR == 1 {
        finish()
        file = FILENAME; table = ""; key = ""; open = 0; inside = 0; withdrawn = 0; versions = 0
        delete fact
    }
    /^```/ { inside = /^```toml/ && !versions; next }
    !inside { next }
    !open && /^[ \t]*(#|$)/ { next }
    !open && /^\[/ { table = $1; if (table == "[versions]") versions = 1; next }
    open { value = value " " $0 }
    !open {
        key = $0
        sub(/[ \t]*=.*/, "", key)
        value = $0
        sub(/^[^=]*=[ \t]*/, "", value)
        open = value ~ /^\[/
    }
    open { if (value ~ /\][ \t]*(#.*)?$/) open = 0; else next }
    table == "[advisory]" && key == "withdrawn" { withdrawn = 1 }
    (table == "[advisory]" && key ~ /^(id|package|date|informational)$/) || (table == "[versions]" && key ~ /^(patched|unaffected)$/) {
        fact[key] = strings(value)
    }
    END { finish(); exit failed }'
