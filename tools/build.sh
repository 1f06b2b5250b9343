#!/usr/bin/env bash
# Builds binaries for use: tools/build.sh weft [weft-lab]
#
# Line tables, with which a backtrace names files and lines, take three times the space of the program. They go into
# BINARY.debug beside it, where backtraces and debuggers find them. The .debug file need not be deployed.
#
# All crates are optimised together (docs/adr/0002-what-is-optimised.md), which takes longer than the build of `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
release=${CARGO_TARGET_DIR:-target}/release

packages=()
# A binary of another build beside these could be mistaken for one of the same version.
for binary in weft weft-lab; do [[ " $* " = *" $binary "* ]] || rm -f "$release/$binary"{,.debug}; done
for binary in "$@"; do packages+=(--package "$binary"); done
CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_PROFILE_RELEASE_LTO=fat "$cargo" build --release "${packages[@]}"
for binary in "$@"; do
    file=$release/$binary
    # If nothing was rebuilt, cargo has restored the complete binary.
    objcopy --only-keep-debug "$file" "$file.debug"
    # A file of its own: cargo keeps another name for the whole binary.
    (cd "$release" && objcopy --strip-all --add-gnu-debuglink="$binary.debug" "$binary" "$binary.tmp")
    mv "$file.tmp" "$file"
done
