#!/usr/bin/env bash
# Measures weft beside MinIO on this machine, in one run: tools/bench-minio.sh [--json] [--rounds N]
#
# MinIO is built from its Go module, for comparison only; nothing of it becomes part of weft. It needs Go, and a network or a proxy of
# Go's modules for the first build.
set -euo pipefail
cd "$(dirname "$0")/.."

MINIO=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
cargo=${CARGO:-cargo}
target=$(realpath "${CARGO_TARGET_DIR:-target}")

if ! command -v go > /dev/null; then
    echo "skipped: Go is not installed, and MinIO is built from its Go module"
    exit 0
fi
echo "building MinIO, weft and the benchmark (some minutes, the first time)" >&2
[ -x "$target/minio/minio" ] || GOBIN=$target/minio go install "$MINIO"
(cd bench/minio && go build -o "$target/minio/client" .)
tools/build.sh weft weft-lab >&2
"$cargo" build --release --quiet --manifest-path bench/cluster/Cargo.toml
WEFT_BIN=$target/release/weft WEFT_MINIO=$target/minio/minio WEFT_MINIO_CLIENT=$target/minio/client \
    "$cargo" run --release --quiet --manifest-path bench/cluster/Cargo.toml -- --only minio --rounds 9 "$@"
