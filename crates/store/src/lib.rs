//! Blocks on disks: payload files, sidecars, checksums.
