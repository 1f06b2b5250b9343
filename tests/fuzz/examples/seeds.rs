//! Writes the fuzzer's seeds: `seeds DIR` creates `DIR/TARGET/seed-NUMBER`.

use std::{env, error::Error, fs, path::PathBuf};
use weft_fuzz_entries::{ENTRIES, seeds};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = PathBuf::from(env::args_os().nth(1).ok_or("usage: seeds DIR")?);
    for (name, _) in ENTRIES {
        fs::create_dir_all(dir.join(name))?;
        for (number, seed) in seeds(name)?.iter().enumerate() {
            fs::write(dir.join(name).join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
