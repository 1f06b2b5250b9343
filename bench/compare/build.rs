//! Finds the version of ISA-L that the bindings bundle, for the table.

use std::{env, error::Error, fs, path::Path, process::Command};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=Cargo.lock");
    println!("cargo:rustc-env=ISAL_VERSION={}", isal_version()?);
    Ok(())
}

fn isal_version() -> Result<String, Box<dyn Error>> {
    let cargo = env::var("CARGO")?;
    // Only this target's packages are certain to exist: those of other targets may not have been fetched.
    let (target, metadata) = (env::var("TARGET")?, ["metadata", "--format-version=1", "--locked", "--offline"]);
    let output = Command::new(cargo).args(metadata).args(["--filter-platform", &target]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let bindings = packages.iter().find(|package| package["name"] == "erasure-isa-l-sys").ok_or("no bindings of ISA-L")?;
    let manifest = bindings["manifest_path"].as_str().ok_or("bindings without a manifest")?;
    let source = Path::new(manifest).with_file_name("vendor").join("isa-l/configure.ac");
    // AC_INIT([libisal],
    //         [2.32.0],
    let configure = fs::read_to_string(&source)?;
    let version = configure.lines().skip_while(|line| !line.starts_with("AC_INIT")).nth(1).ok_or("no AC_INIT")?;
    Ok(version.trim().trim_matches(|c| "[],".contains(c)).to_owned())
}
