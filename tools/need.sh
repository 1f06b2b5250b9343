#!/usr/bin/env bash
# Ensures that the requirements of a command are installed: `tools/need.sh [cc] [cxx] [git] [net] [cargo] [fmt]
# [clippy]`. Missing ones are installed from Debian's packages if permitted (root, or sudo without a password), and from
# rustup for parts of the Rust toolchain. Otherwise it prints the one line to run, and fails.
set -euo pipefail

# The dependency tree needs a C compiler with the C library's headers (SQLite and AWS-LC are built from source) and nothing
# else: no cmake, no assembler, no protoc, no OpenSSL.
RUST_OLDEST=1.90.0

say() { printf 'weft: %s\n' "$*" >&2; }

# Whether a compiler works: `works COMPILER SUFFIX INCLUDE`.
works() {
    local dir status=0
    dir=$(mktemp -d)
    printf '#include <%s>\nint main() { return EXIT_SUCCESS; }\n' "$3" >"$dir/probe.$2"
    "$1" -o "$dir/probe" "$dir/probe.$2" >"$dir/log" 2>&1 || status=1
    rm -rf "$dir"
    return $status
}

have_cc() { works "${CC:-cc}" c stdlib.h; }
have_cxx() { works "${CXX:-c++}" cc cstdlib; }
have_git() { command -v git >/dev/null; }
have_net() { command -v ip >/dev/null && command -v tc >/dev/null; }

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

# `need_package WHAT COMMAND HAVE PACKAGE...`
need_package() {
    local what=$1 command=$2 have=$3
    shift 3
    "$have" && return
    local line="apt-get update && apt-get install -y --no-install-recommends $*"
    if ! command -v apt-get >/dev/null; then
        say "$what is needed: install it and run this again"
        exit 1
    fi
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        say "$what is needed; run this, then this door again:"
        printf '  sudo sh -c "%s"\n' "$line" >&2
        exit 1
    fi
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive sh -c "$line" >&2
    "$have" || { say "$what is still missing, or does not work; try: $command --version"; exit 1; }
}

need_cargo() {
    if ! command -v cargo >/dev/null; then
        say "a Rust toolchain (at least $RUST_OLDEST) is needed; run this, then this door again:"
        printf "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env\n" >&2
        exit 1
    fi
    local version
    version=$(rustc --version | awk '{ print $2 }')
    if [ "$(printf '%s\n' "$RUST_OLDEST" "${version%%-*}" | sort -V | head -n 1)" != "$RUST_OLDEST" ]; then
        say "Rust $version is too old: at least $RUST_OLDEST is needed; run this, then this door again:"
        printf '  rustup update stable\n' >&2
        exit 1
    fi
}

# A part of the toolchain: `need_component rustfmt cargo-fmt`.
need_component() {
    need_cargo
    cargo "${2#cargo-}" --version >/dev/null 2>&1 && return
    if command -v rustup >/dev/null && rustup component add "$1" >&2; then
        return
    fi
    say "$1 is needed; run this, then this door again:"
    printf '  rustup component add %s\n' "$1" >&2
    exit 1
}

for need in "$@"; do
    case $need in
        cc) need_package "a C compiler with its library's headers" cc have_cc gcc libc6-dev ;;
        cxx) need_package "a C++ compiler with its library's headers" c++ have_cxx g++ ;;
        git) need_package git git have_git git ;;
        net) need_package 'ip and tc, which make networks of their own,' ip have_net iproute2 ;;
        cargo) need_cargo ;;
        fmt) need_component rustfmt cargo-fmt ;;
        clippy) need_component clippy cargo-clippy ;;
        *) say "tools/need.sh does not know '$need'"; exit 2 ;;
    esac
done
