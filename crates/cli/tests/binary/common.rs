//! Runs the real binary, and checks its output and exit code.

use serde_json::Value;
use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
};

/// The result of a run of `weft`.
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `weft` with these arguments.
pub(crate) fn weft<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    weft_at(Path::new(env!("CARGO_BIN_EXE_weft")), args)
}

/// Runs `weft` in a directory, without the environment of the test run.
pub(crate) fn weft_in(dir: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("WEFT_")) {
        command.env_remove(name);
    }
    end(command.current_dir(dir).args(args))
}

/// Runs the `weft` at that path with these arguments.
pub(crate) fn weft_at<S: AsRef<OsStr>>(path: &Path, args: impl IntoIterator<Item = S>) -> Ended {
    end(Command::new(path).args(args))
}

fn end(command: &mut Command) -> Ended {
    let ended = command.stdin(Stdio::null()).output().expect("weft starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("what weft prints is UTF-8");
    Ended { code: ended.status.code().expect("weft ends by itself"), stdout: text(ended.stdout), stderr: text(ended.stderr) }
}

impl Ended {
    /// Checks that it succeeded.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self
    }

    /// Checks that it failed with this code and a one-line error that contains `says`.
    pub(crate) fn refused(self, code: i32, says: &str) -> Self {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("weft: "), "not one line of error: {}", self.stderr);
        assert!(lines[0].contains(says), "'{says}' is missing: {}", self.stderr);
        self
    }

    /// Its output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// Bytes without short repetitions, the same for the same seed.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Flips one bit of a file.
pub(crate) fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}
