#!/usr/bin/env bash
# Checks every dependency against deny.toml: licences, known advisories, yanked versions, duplicate versions, sources.
#
#   tools/audit.sh               check the workspace, the fuzz targets and the benchmarks
#   tools/audit.sh --self-test   plant one breach of every rule in a scratch tree and see that each is found
#
# cargo-deny does the checks. If it is missing, it is installed into target/tools.
#
# The advisories come from the first of these that exists: the clone of the RustSec database that WEFT_ADVISORY_DB names; the
# snapshot of its facts, tools/advisories.tsv; a clone that cargo-deny fetches. The first two need no network.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")
cd "$root"

CARGO_DENY_VERSION=0.20.2
SNAPSHOT=tools/advisories.tsv
SNAPSHOT_DAYS_MAX=90
FETCH_SECONDS_MAX=120
# Where cargo-deny looks for its database: deny.toml's db-path, and there a name made from the database's address.
DATABASES=target/audit
DATABASE=$DATABASES/advisory-db-3157b0e258782691
# deny.toml describes the workspace. Elsewhere it may list what does not occur.
ELSEWHERE=(--allow license-not-encountered --allow unmatched-skip --allow unnecessary-skip --allow advisory-not-detected
    --allow unknown-advisory)

cargo=${CARGO:-cargo}
deny=$root/target/tools/bin/cargo-deny

say() { printf 'weft: %s\n' "$*" >&2; }

install_deny() {
    [ "$("$deny" --version 2>/dev/null)" != "cargo-deny $CARGO_DENY_VERSION" ] || return 0
    say "installing cargo-deny $CARGO_DENY_VERSION into target/tools (some minutes, the first time)"
    # It runs for a second, so build time matters more than run time.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        "$cargo" install --quiet --locked --version "=$CARGO_DENY_VERSION" --root target/tools cargo-deny
}

# Writes facts (tools/advisories.sh) as a database that cargo-deny reads: `write_database FACTS DATABASE`.
write_database() {
    rm -rf "$2"
    mkdir -p "$2/.git" "$2/crates"
    # cargo-deny takes this file's age for the database's, and needs nothing else of the repository.
    touch "$2/.git/FETCH_HEAD"
    awk -F '\t' -v root="$2/crates" '
        function array(list) {
            if (list == "") return "[]"
            gsub(/; /, "\", \"", list)
            return "[\"" list "\"]"
        }
        /^#/ { next }
        {
            file = root "/" $1 ".md"
            printf "```toml\n[advisory]\nid = \"%s\"\npackage = \"%s\"\ndate = \"%s\"\n", $1, $2, $3 >file
            if ($4 != "vulnerability") printf "informational = \"%s\"\n", $4 >file
            printf "\n[versions]\npatched = %s\nunaffected = %s\n```\n\n# %s: see %s\n", array($5), array($6), $2, $1 >file
            close(file)
        }' "$1"
}

# Writes the advisories, as facts, into a file. Fails if none are available.
gather_facts() {
    if [ -n "${WEFT_ADVISORY_DB:-}" ]; then
        tools/advisories.sh "$WEFT_ADVISORY_DB" >"$1"
    elif [ -e "$SNAPSHOT" ]; then
        cp "$SNAPSHOT" "$1"
    else
        say "fetching the advisory database"
        rm -rf "$DATABASE"
        mkdir -p "$DATABASES"
        GIT_TERMINAL_PROMPT=0 timeout "$FETCH_SECONDS_MAX" "$deny" --log-level off fetch db 2>/dev/null || return 1
        tools/advisories.sh "$DATABASE" >"$1"
    fi
}

warn_when_old() {
    local taken days
    taken=$(sed -n 's/^# snapshot: //p' "$1")
    days=$((($(date +%s) - $(date -d "$taken" +%s)) / 86400))
    [ "$days" -le "$SNAPSHOT_DAYS_MAX" ] ||
        say "the advisories are of $taken, $days days old: renew them (CONTRIBUTING.md says how)"
}

# `check MANIFEST FLAG...`, from the directory whose target/ holds the database. Warnings are errors: nothing is
# ignored, and an exception that is no longer needed must be removed.
check() {
    local manifest=$1
    shift
    "$deny" --offline --locked --manifest-path "$manifest" --config "$root/deny.toml" check --deny warnings "$@"
}

audit() {
    local manifest failed='' what=(bans licenses sources) others
    others=(fuzz/Cargo.toml bench/*/Cargo.toml)
    if gather_facts "$scratch/facts.tsv"; then
        warn_when_old "$scratch/facts.tsv"
        write_database "$scratch/facts.tsv" "$DATABASE"
        what+=(advisories)
    else
        say "there are no advisories to check against; with a clone of the RustSec database, run"
        printf '  WEFT_ADVISORY_DB=CLONE_DIR make audit\n' >&2
        failed=1
    fi

    for manifest in Cargo.toml "${others[@]}"; do
        "$cargo" fetch --quiet --locked --manifest-path "$manifest"
    done
    # Yanked versions are in the registry's index, and only an update fetches it again.
    for manifest in Cargo.toml "${others[@]}"; do
        CARGO_NET_RETRY=0 "$cargo" update --quiet --dry-run --manifest-path "$manifest" 2>/dev/null && continue
        say "the registry cannot be reached: yanked versions are checked as of the last time that it was"
        break
    done

    say "checking Cargo.toml"
    check Cargo.toml "${what[@]}" || failed=1
    # These programs only run here and are never shipped: duplicate versions of a crate cost them only compile time.
    for manifest in "${others[@]}"; do
        say "checking $manifest"
        check "$manifest" "${ELSEWHERE[@]}" --allow duplicate "${what[@]}" || failed=1
    done
    [ -z "$failed" ]
}

# Creates a registry of artificial crates in a directory, and a tree that depends on some of them: an end-to-end test
# without a network.
self_test() {
    local registry=$scratch/registry tree=$scratch/tree database=$scratch/tree/$DATABASE
    export CARGO_HOME=$scratch/home
    mkdir -p "$registry" "$tree/src" "$tree/.cargo" "$scratch/clone/crates/frail" "$scratch/fork/src"
    printf '[source.crates-io]\nreplace-with = "made"\n[source.made]\nlocal-registry = "%s"\n' "$registry" \
        >"$tree/.cargo/config.toml"
    : >"$tree/src/lib.rs"

    publish() { # a crate's name, version, licence
        local package="$1-$2" index="$registry/index/${1:0:2}/${1:2:2}"
        mkdir -p "$scratch/$package/src" "$index"
        : >"$scratch/$package/src/lib.rs"
        printf '[package]\nname = "%s"\nversion = "%s"\nlicense = "%s"\n' "$1" "$2" "$3" >"$scratch/$package/Cargo.toml"
        tar -czf "$registry/$package.crate" -C "$scratch" "$package"
        printf '{"name":"%s","vers":"%s","deps":[],"cksum":"%s","features":{},"yanked":false}\n' "$1" "$2" \
            "$(sha256sum "$registry/$package.crate" | cut -d ' ' -f 1)" >>"$index/$1"
    }
    publish plain 1.0.0 MIT
    publish plain 2.0.0 'GPL-3.0-only OR Apache-2.0'
    publish viral 1.0.0 GPL-3.0-only
    publish silent 1.0.0 ''
    publish gone 1.0.0 MIT
    publish frail 1.0.0 MIT
    publish frail 1.1.0 MIT
    publish frail 1.2.0 MIT
    publish frail 2.0.0 MIT

    advise() { # an id, the kind, what else is to be said of the advisory, the versions
        printf '```toml\n[advisory]\nid = "%s"\npackage = "frail"\ndate = "2000-01-01"\n%b\n[versions]\n%b\n```\n\n# Words\n' \
            "$1" "$2" "$3" >"$scratch/clone/crates/frail/$1.md"
    }
    # Each version of frail falls under one of them, and 2.0.0 under none.
    advise RUSTSEC-2000-0001 '' 'patched = [\n    ">= 1.0.1, < 1.1.0", # fixed\n    ">= 1.1.0",\n]'
    advise RUSTSEC-2000-0002 'informational = "unsound"' 'patched = [">= 1.2.0"]\nunaffected = ["< 1.1.0"]'
    advise RUSTSEC-2000-0003 'informational = "unmaintained"' 'patched = []\nunaffected = ["< 1.2.0", ">= 2.0.0"]'
    advise RUSTSEC-2000-0004 'withdrawn = "2000-01-02"' 'patched = []'
    commit() {
        git -C "$1" add --all
        git -C "$1" -c user.name=weft -c user.email=weft@localhost -c commit.gpgsign=false commit --quiet --message made
    }
    git init --quiet "$scratch/clone"
    commit "$scratch/clone"
    tools/advisories.sh "$scratch/clone" >"$scratch/made.tsv"
    write_database "$scratch/made.tsv" "$database"

    cp "$scratch/plain-1.0.0/Cargo.toml" "$scratch/fork/"
    : >"$scratch/fork/src/lib.rs"
    git init --quiet "$scratch/fork"
    commit "$scratch/fork"

    lock() { # the tree's dependencies
        printf '[package]\nname = "tree"\nversion = "0.1.0"\nedition = "2024"\nlicense = "MIT"\npublish = false\n' >"$tree/Cargo.toml"
        printf '[dependencies]\n%b' "$1" >>"$tree/Cargo.toml"
        rm -f "$tree/Cargo.lock"
        (cd "$tree" && "$cargo" generate-lockfile --quiet)
    }
    look() { (cd "$tree" && check Cargo.toml "${ELSEWHERE[@]}") >"$scratch/said" 2>&1; }
    expect_clean() {
        look || { cat "$scratch/said" >&2; say "audit: a clean tree was refused: $1"; exit 1; }
    }
    expect_breach() { # a name for the breach, what must be said of it
        ! look || { say "audit: not found: $1"; exit 1; }
        grep -q "$2" "$scratch/said" || { cat "$scratch/said" >&2; say "audit: refused for another reason: $1"; exit 1; }
    }
    plant() {
        lock "$3"
        expect_breach "$1" "$2"
    }
    lock 'plain = "2"\nfrail = "2"\n'
    expect_clean 'what is patched, and one of two licences'
    lock 'gone = "1"\n'
    expect_clean 'before it is yanked'
    sed -i 's/"yanked":false/"yanked":true/' "$registry/index/go/ne/gone"
    expect_breach 'a yanked version' 'error\[yanked\]'
    plant 'a vulnerability' 'error\[vulnerability\]' 'frail = "=1.0.0"\n'
    plant 'something unsound' 'error\[unsound\]' 'frail = "=1.1.0"\n'
    plant 'something unmaintained' 'error\[unmaintained\]' 'frail = "=1.2.0"\n'
    plant 'a forbidden licence' 'error\[rejected\]' 'viral = "1"\n'
    plant 'no licence' 'error\[unlicensed\]' 'silent = "1"\n'
    plant 'an unlisted duplicate' 'error\[duplicate\]' 'plain = "1"\nnewer = { package = "plain", version = "2" }\n'
    plant 'a wildcard' 'error\[wildcard\]' 'plain = "*"\n'
    plant 'another source' 'error\[source-not-allowed\]' "plain = { git = \"file://$scratch/fork\" }\n"
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
install_deny
if [ "${1:-}" = --self-test ]; then
    self_test
else
    audit
fi
