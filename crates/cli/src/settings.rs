//! Settings of daemons: a TOML file, overridden by the environment.

use crate::files::io_error;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};
use toml::{Table, Value};
use weft_agent::AgentConfig;
use weft_coordinator::CoordinatorConfig;
use weft_types::{Error, Result};

/// Reads a daemon's settings from `file`, if given, and from the environment: `WEFT_AGENT_RACK=r2` sets `rack = "r2"`, and
/// `WEFT_AGENT_LIMITS__CONNECTIONS_MAX=64` sets `limits.connections_max = 64`. `sample` contains every setting, which defines the
/// valid names and types; other settings are refused. Relative paths are relative to the file.
pub fn read<C: Serialize + DeserializeOwned>(
    file: Option<&Path>,
    prefix: &str,
    environment: impl Iterator<Item = (OsString, OsString)>,
    sample: &C,
    paths: fn(&mut C) -> Vec<&mut PathBuf>,
) -> Result<C> {
    let text = file.map(read_text).transpose()?;
    let mut table = match (file, &text) {
        (Some(file), Some(text)) => text.parse::<Table>().map_err(|error| in_file(file, text, &error))?,
        _ => Table::new(),
    };
    let sample = Table::try_from(sample).map_err(Error::fatal)?;
    let mut overrides = environment
        .filter(|(name, _)| name.as_encoded_bytes().starts_with(prefix.as_bytes()) && *name != *format!("{prefix}CONFIG"))
        .map(|(name, text)| match (name.into_string(), text.into_string()) {
            (Ok(name), Ok(text)) => Ok((name, text)),
            (Ok(name), Err(_)) => Err(Error::invalid(format!("the environment variable {name} is not UTF-8"))),
            (Err(name), _) => Err(Error::invalid(format!("the environment variable {} is not UTF-8", name.display()))),
        })
        .collect::<Result<Vec<_>>>()?;
    overrides.sort();
    for (name, text) in overrides {
        let path = name[prefix.len()..].to_ascii_lowercase();
        set(&mut table, &sample, &path, &text).map_err(|problem| Error::invalid(format!("{name}={text}: {problem}")))?;
    }
    // Written and read again: reading from a table would be further code for each kind of daemon.
    let merged = toml::to_string(&table).map_err(Error::fatal)?;
    let read = toml::from_str::<C>(&merged).map_err(|error| match (file, &text) {
        // If the file itself is wrong, parsing it alone gives the line.
        (Some(file), Some(text)) => match toml::from_str::<C>(text) {
            Err(alone) if alone.message() == error.message() => in_file(file, text, &alone),
            _ => Error::invalid(format!("{}: {}", file.display(), one_line(error.message()))),
        },
        _ => Error::invalid(format!(
            "invalid settings: {}; pass settings with --config FILE, or as {prefix}… in the environment",
            one_line(error.message())
        )),
    });
    let mut config = read?;
    if let Some(home) = file.and_then(Path::parent) {
        paths(&mut config).into_iter().for_each(|path| *path = home.join(&*path));
    }
    Ok(config)
}

/// Reads a file of settings without the environment.
pub fn parse<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = read_text(file)?;
    toml::from_str(&text).map_err(|error| in_file(file, &text, &error))
}

/// The paths in a coordinator's settings.
pub fn coordinator_paths(config: &mut CoordinatorConfig) -> Vec<&mut PathBuf> {
    std::iter::once(&mut config.dir).chain(&mut config.certificates).collect()
}

/// The paths in an agent's settings.
pub fn agent_paths(config: &mut AgentConfig) -> Vec<&mut PathBuf> {
    std::iter::once(&mut config.state_dir).chain(&mut config.disks).chain(&mut config.certificates).collect()
}

fn read_text(file: &Path) -> Result<String> {
    let bytes = std::fs::read(file).map_err(|error| io_error(file, "read", &error))?;
    String::from_utf8(bytes).map_err(|_| Error::invalid(format!("{} is not UTF-8 text", file.display())))
}

fn set(table: &mut Table, sample: &Table, path: &str, text: &str) -> std::result::Result<(), String> {
    if let Some((head, rest)) = path.split_once("__") {
        let Some(Value::Table(inner_sample)) = sample.get(head) else { return Err(unknown(sample)) };
        let inner = table.entry(head).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(inner) = inner else { return Err(format!("'{head}' is not a table in the file")) };
        return set(inner, inner_sample, rest, text);
    }
    let kind = sample.get(path).ok_or_else(|| unknown(sample))?;
    let value = match kind {
        Value::Integer(_) => Value::Integer(text.parse().map_err(|_| "the value must be a number")?),
        Value::Boolean(_) => Value::Boolean(text.parse().map_err(|_| "the value must be true or false")?),
        Value::Array(_) => Value::Array(text.split(',').map(|item| Value::String(item.trim().to_owned())).collect()),
        Value::String(_) => Value::String(text.to_owned()),
        _ => return Err("this setting cannot be set from the environment".to_owned()),
    };
    table.insert(path.to_owned(), value);
    Ok(())
}

fn unknown(sample: &Table) -> String {
    let names = sample.iter().map(|(name, value)| if value.is_table() { format!("{name}__…") } else { name.clone() });
    format!("there is no such setting; valid ones: {}", names.collect::<Vec<_>>().join(", "))
}

/// The error and its place, on one line.
fn in_file(file: &Path, text: &str, error: &toml::de::Error) -> Error {
    let (file, message) = (file.display(), one_line(error.message()));
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count());
    match line.and_then(|line| Some((line + 1, text.lines().nth(line)?.trim()))) {
        Some((line, said)) if !said.is_empty() => Error::invalid(format!("{file} line {line}, `{said}`: {message}")),
        _ => Error::invalid(format!("{file}: {message}")),
    }
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::os::unix::ffi::OsStringExt as _;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        name: String,
        #[serde(default)]
        disks: Vec<PathBuf>,
        #[serde(default)]
        insecure: bool,
        #[serde(default)]
        limits: Limits,
    }

    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Limits {
        connections_max: u32,
        memory: String,
    }

    fn read_with(environment: &[(&str, &str)]) -> Result<Settings> {
        read_text_with("name = \"from the file\"\n[limits]\nmemory = \"2MiB\"\n", environment)
    }

    fn read_text_with(text: &str, environment: &[(&str, &str)]) -> Result<Settings> {
        let limits = Limits { connections_max: 1, memory: "1MiB".into() };
        let sample = Settings { name: "n".into(), disks: vec!["d".into()], insecure: false, limits };
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("settings.toml");
        std::fs::write(&file, text).unwrap();
        let strange = (OsString::from_vec(b"NOT_OURS\xff".into()), OsString::from_vec(vec![0xff]));
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).chain([strange]);
        let mut settings = read(Some(&file), "T_", environment, &sample, |settings| settings.disks.iter_mut().collect())?;
        for disk in &mut settings.disks {
            *disk = disk.strip_prefix(dir.path()).unwrap_or(disk).to_owned();
        }
        Ok(settings)
    }

    #[test]
    fn the_environment_overrides_the_file() {
        let plain = read_with(&[("OTHER_NAME", "x"), ("T_CONFIG", "settings.toml")]).unwrap();
        assert_eq!((plain.name.as_str(), plain.limits.memory.as_str()), ("from the file", "2MiB"));
        let environment = [("T_NAME", "7"), ("T_DISKS", "/a, b"), ("T_INSECURE", "true"), ("T_LIMITS__CONNECTIONS_MAX", "64")];
        let over = read_with(&environment).unwrap();
        // The relative path is beside the file, and was made relative again.
        assert_eq!((over.name.as_str(), over.disks, over.insecure), ("7", vec!["/a".into(), "b".into()], true));
        assert_eq!(over.limits, Limits { connections_max: 64, memory: "2MiB".into() });
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("settings.toml");
        std::fs::write(&file, "name = \"x\"\ndisks = [\"a\", \"/b\"]").unwrap();
        let sample = Settings { name: String::new(), disks: vec!["d".into()], insecure: false, limits: Limits::default() };
        let none = std::iter::empty();
        let read = read(Some(&file), "T_", none, &sample, |settings| settings.disks.iter_mut().collect()).unwrap();
        assert_eq!(read.disks, [dir.path().join("a"), "/b".into()]);
    }

    #[test]
    fn errors_in_the_file_are_reported_with_their_line() {
        for (text, says) in [
            ("name = \"x\"\n[limits]\nmemory = 5\n", "settings.toml line 3, `memory = 5`: "),
            ("name = \"x\"\nnaem = 5\n", "settings.toml line 2, `naem = 5`: unknown field `naem`"),
            ("name = \"x\"\n\ninsecure = perhaps\n", "settings.toml line 3, `insecure = perhaps`: "),
            ("disks = []\n", "missing field `name`"),
        ] {
            let error = read_text_with(text, &[]).unwrap_err().message;
            assert!(error.contains(says) && !error.contains('\n'), "{error}");
        }
        // An environment variable as well does not hide the place in the file.
        let error = read_text_with("name = \"x\"\n[limits]\nmemory = 5\n", &[("T_NAME", "y")]).unwrap_err().message;
        assert!(error.contains("line 3"), "{error}");
    }

    #[test]
    fn only_our_own_part_of_the_environment_must_be_text() {
        let sample = Settings { name: String::new(), disks: Vec::new(), insecure: false, limits: Limits::default() };
        for (name, value) in [(&b"T_NAME"[..], &b"\xff"[..]), (b"T_\xff", b"x")] {
            let environment = [(OsString::from_vec(name.into()), OsString::from_vec(value.into()))].into_iter();
            let error = read(None, "T_", environment, &sample, |_| Vec::new()).unwrap_err();
            assert!(error.message.contains("not UTF-8"), "{error}");
        }
    }

    #[test]
    fn invalid_variables_are_named() {
        for (name, value, says) in [
            ("T_NAEM", "x", "there is no such setting; valid ones: disks, insecure, limits__…, name"),
            ("T_LIMITS__X", "x", "valid ones: connections_max, memory"),
            ("T_INSECURE", "perhaps", "true or false"),
            ("T_LIMITS__CONNECTIONS_MAX", "many", "the value must be a number"),
            ("T_LIMITS", "x", "cannot be set"),
        ] {
            let error = read_with(&[(name, value)]).unwrap_err().message;
            assert!(error.starts_with(name) && error.contains(says), "{error}");
        }
    }
}
