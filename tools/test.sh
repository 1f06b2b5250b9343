#!/usr/bin/env bash
# Runs every test of the workspace: builds all test programs, then runs several of them in parallel.
#
# A program's output is shown if it fails; a program that takes more than WEFT_TEST_SECONDS (1500) has failed. The last
# lines list what was skipped and why, the times, and the number of passed tests. WEFT_TEST_JOBS (twice the processors)
# programs run at a time; arguments are passed to each of them:
#
#   tools/test.sh a_seed_gives_one_trace
#
# Where there is enough memory, clusters within one program keep their disks in it, which takes a third of the time off
# their tests. The tests of disks, of metadata and of clusters of processes use the file system of TMPDIR. If TMPDIR is
# set, all of them do.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs_max=${WEFT_TEST_JOBS:-$(($(nproc) * 2))}
seconds_max=${WEFT_TEST_SECONDS:-1500}
[[ $jobs_max =~ ^[1-9][0-9]*$ ]] || { echo "weft: WEFT_TEST_JOBS is $jobs_max: it must be a number from 1" >&2; exit 2; }
cargo=${CARGO:-cargo}
scratch=$(mktemp -d)
in_memory=
trap 'rm -rf "$scratch" "$in_memory"' EXIT
trap 'show_unended; exit 130' INT TERM

# One line a program, with tabs between: its crate's directory, its name, its file.
programs() {
    sed -nE 's|.*"manifest_path":"([^"]*)/Cargo.toml","target":\{[^}]*"name":"([^"]*)".*"profile":\{[^}]*"test":true\}.*"executable":"([^"]*)".*|\1\t\2\t\3|p'
}

# Long programs start first, so that none runs alone at the end.
weight() {
    case $1 in
        */coordinator\ cluster) echo 9 ;;
        */lab\ testbed) echo 8 ;;
        */cli\ cluster) echo 7 ;;
        */tests\ simulation) echo 6 ;;
        */client\ cluster) echo 5 ;;
        */codes\ weft_codes) echo 4 ;;
        *) echo 1 ;;
    esac
}

# Tests of clusters mostly wait, so twice as many run at a time as there are processors.
threads() {
    case $1 in
        */cli\ cluster | */coordinator\ cluster) echo $(($(nproc) * 2)) ;;
        *) nproc ;;
    esac
}

# Where a program keeps its files.
files_of() {
    case $1 in
        */store\ * | */meta\ * | */cli\ *) echo "${TMPDIR:-/tmp}" ;;
        *) echo "${in_memory:-${TMPDIR:-/tmp}}" ;;
    esac
}

# A new directory in memory, if there is plenty of it.
use_memory() {
    local needed_kib=$((8 << 20)) at=/dev/shm available
    [ -z "${TMPDIR:-}" ] && [ "$(stat -f -c %T "$at" 2>/dev/null)" = tmpfs ] || return 0
    available=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
    [ "$available" -ge "$needed_kib" ] && [ "$(df -k --output=avail "$at" | tail -n 1)" -ge "$needed_kib" ] || return 0
    in_memory=$(mktemp -d "$at/weft-test.XXXXXX")
}

# Runs a program where cargo would.
run_program() { # number, directory, name, file, arguments
    local number=$1 dir=$2 name=$3 file=$4 begun=$SECONDS status=0
    shift 4
    echo "${dir##*/} $name" >"$scratch/$number.name"
    (cd "$dir" && TMPDIR=$(files_of "$dir $name") CARGO_MANIFEST_DIR=$dir RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(threads "$dir $name")} \
        exec timeout --foreground --kill-after=10 "$seconds_max" "$file" --show-output "$@") \
        >"$scratch/$number.log" 2>&1 </dev/null || status=$?
    echo "$status $((SECONDS - begun))" >"$scratch/$number.end"
    tell "$number" "${dir##*/} $name" "$status" $((SECONDS - begun))
}

run_doctests() { # number
    local number=$1 begun=$SECONDS status=0
    echo "doc tests" >"$scratch/$number.name"
    "$cargo" test --workspace --doc --quiet >"$scratch/$number.log" 2>&1 </dev/null || status=$?
    echo "$status $((SECONDS - begun))" >"$scratch/$number.end"
    tell "$number" "doc tests" "$status" $((SECONDS - begun))
}

tell() { # number, name, status, seconds
    if [ "$3" != 0 ]; then
        {
            if [ "$3" = 124 ]; then echo "FAILED $2: stopped after $4 s"; else echo "FAILED $2: exit $3 after $4 s"; fi
            # If the program listed its failures itself, shows only those.
            if grep -q '^failures:$' "$scratch/$1.log"; then sed -n '/^failures:$/,$p' "$scratch/$1.log"; else cat "$scratch/$1.log"; fi
        } >"$scratch/$1.failed"
        flock "$scratch" cat "$scratch/$1.failed"
    else
        printf 'ok     %-28s %5s passed %5s s\n' "$2" "$(sum passed "$scratch/$1.log")" "$4"
    fi
}

# The programs that were running, and their last output.
show_unended() {
    local log
    for log in "$scratch"/*.log; do
        [ -e "${log%.log}.end" ] || { echo "interrupted: $(head -n 1 "${log%.log}.name")" && tail -n 5 "$log"; }
    done >&2
}

# The number of tests in a log with this result: passed, failed or ignored.
sum() {
    local outcome=$1
    shift
    awk -v outcome="$outcome" '/^test result: / { for (i = 2; i <= NF; i++) if ($i == outcome ";") n += $(i - 1) } END { print n + 0 }' "$@"
}

begun=$SECONDS
"$cargo" test --workspace --no-run --message-format=json-render-diagnostics >"$scratch/messages"
programs <"$scratch/messages" | sort -u >"$scratch/programs"
[ -s "$scratch/programs" ] || { echo "weft: cargo built no test program" >&2; exit 1; }
built=$((SECONDS - begun))

begun=$SECONDS
number=0
use_memory
run_doctests 0 &
while IFS=$'\t' read -r _ dir name file; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_max" ]; do wait -n || true; done
    number=$((number + 1))
    run_program "$number" "$dir" "$name" "$file" "$@" &
done < <(
    while IFS=$'\t' read -r dir name file; do
        printf '%s\t%s\t%s\t%s\n' "$(weight "$dir $name")" "$dir" "$name" "$file"
    done <"$scratch/programs" | sort -srn -k1,1
)
wait
ran=$((SECONDS - begun))

failed=0
for ((at = 0; at <= number; at++)); do
    # A program that was killed together with its shell has left no status.
    read -r status _ <"$scratch/$at.end" || status=137
    [ "$status" = 0 ] || failed=$((failed + 1))
done
# A test that cannot run on this machine prints so, and why.
awk '/^---- .* stdout ----$/ { name = $2 } /^skipped: / { print "skipped " name ": " substr($0, 10) }' "$scratch"/*.log >"$scratch/skipped"
echo
cat "$scratch/skipped"
skipped=$(wc -l <"$scratch/skipped")
passed=$(sum passed "$scratch"/*.log)
broken=$(sum failed "$scratch"/*.log)
echo "test programs: built in $built s, ran in $ran s"
# A program that died has counted nothing.
[ "$failed" = 0 ] || [ "$broken" != 0 ] || broken=$failed
echo "$((passed - skipped)) passed, $broken failed, $skipped skipped"
[ "$failed" = 0 ]
