#!/usr/bin/env bash
# Installs the requirements for building ISA-L, which the bindings bundle as source, from Debian's packages if permitted (root,
# or sudo without a password). Otherwise prints the one line to run.
set -euo pipefail

PACKAGES=(autoconf automake libclang-dev libtool make nasm)

missing=()
for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} = 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "weft: to build ISA-L for the comparison, install: ${missing[*]}" >&2
    exit 1
fi
line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" = 0 ]; then
    root=()
elif sudo -n true 2>/dev/null; then
    root=(sudo -n)
else
    echo "weft: ISA-L is needed for the comparison; run this, then this door again:" >&2
    echo "  sudo sh -c \"$line\"" >&2
    exit 1
fi
echo "weft: installing ${missing[*]}" >&2
"${root[@]}" env DEBIAN_FRONTEND=noninteractive sh -c "$line" >&2
