//! The generated code of the control plane must match its source.

use std::{fs, path::Path};

/// Set by `make bless`: the generated code is written instead of compared.
const BLESS: &str = "WEFT_BLESS";

/// Messages that contain a key have no derived Debug; `src/secret.rs` implements it.
const SECRET: [&str; 7] = [
    ".weft.v1.AbortPutRequest",
    ".weft.v1.BeginPutReply",
    ".weft.v1.CommitPutRequest",
    ".weft.v1.ConvertStripeRequest",
    ".weft.v1.EndStripeRequest",
    ".weft.v1.KeepPutRequest",
    ".weft.v1.PutStripeRequest",
];

#[test]
fn the_generated_code_matches_the_definitions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile([root.join("proto/weft.proto")], [root.join("proto")]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure().skip_debug(SECRET).out_dir(out.path()).compile_fds(files).unwrap();
    let (fresh, kept) = (out.path().join("weft.v1.rs"), root.join("src/generated/weft.v1.rs"));
    if std::env::var_os(BLESS).is_some() {
        fs::copy(&fresh, &kept).unwrap();
    }
    let [fresh, kept] = [fresh, kept].map(|file| fs::read_to_string(file).unwrap());
    let differs = fresh.lines().zip(kept.lines()).position(|(fresh, kept)| fresh != kept);
    assert!(fresh == kept, "src/generated/weft.v1.rs does not match proto/weft.proto (line {differs:?}): run `make bless`");
}
