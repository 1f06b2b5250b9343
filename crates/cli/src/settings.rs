//! Settings of daemons: a TOML file, and over it the environment.

use crate::offline::io_error;
use serde::{Serialize, de::DeserializeOwned};
use std::path::Path;
use toml::{Table, Value};
use weft_types::{Error, Result};

/// Reads a daemon's settings from `file`, if one is given, and from the environment: `WEFT_AGENT_RACK=r2` is `rack = "r2"`, and
/// `WEFT_AGENT_LIMITS__CONNECTIONS_MAX=64` is `limits.connections_max = 64`. `sample` has every setting, so that it is known
/// which there are and of what kind; what it does not have is refused.
pub(crate) fn read<C: Serialize + DeserializeOwned>(
    file: Option<&Path>,
    prefix: &str,
    environment: impl Iterator<Item = (String, String)>,
    sample: &C,
) -> Result<C> {
    let mut table = match file {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| io_error(file, "read", &error))?;
            text.parse::<Table>().map_err(|error| in_file(file, &error))?
        }
        None => Table::new(),
    };
    let sample = Table::try_from(sample).map_err(Error::fatal)?;
    let mut overrides: Vec<(String, String)> =
        environment.filter(|(name, _)| name.starts_with(prefix) && *name != format!("{prefix}CONFIG")).collect();
    overrides.sort();
    for (name, text) in overrides {
        let path = name[prefix.len()..].to_ascii_lowercase();
        set(&mut table, &sample, &path, &text).map_err(|problem| Error::invalid(format!("{name}={text}: {problem}")))?;
    }
    let from = file.map_or_else(|| "the settings".to_owned(), |file| file.display().to_string());
    table.try_into().map_err(|error: toml::de::Error| Error::invalid(format!("{from}: {}", one_line(&error))))
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
        Value::Integer(_) => Value::Integer(text.parse().map_err(|_| "a number is needed")?),
        Value::Boolean(_) => Value::Boolean(text.parse().map_err(|_| "true or false is needed")?),
        Value::Array(_) => Value::Array(text.split(',').map(|item| Value::String(item.trim().to_owned())).collect()),
        Value::String(_) => Value::String(text.to_owned()),
        _ => return Err("this cannot be set from the environment".to_owned()),
    };
    table.insert(path.to_owned(), value);
    Ok(())
}

fn unknown(sample: &Table) -> String {
    let names = sample.iter().map(|(name, value)| if value.is_table() { format!("{name}__…") } else { name.clone() });
    format!("there is no such setting; there are: {}", names.collect::<Vec<_>>().join(", "))
}

fn in_file(file: &Path, error: &toml::de::Error) -> Error {
    Error::invalid(format!("{}: {}", file.display(), one_line(error)))
}

/// What is wrong and where, without the drawing.
fn one_line(error: &toml::de::Error) -> String {
    error.message().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        name: String,
        #[serde(default)]
        disks: Vec<String>,
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
        let limits = Limits { connections_max: 1, memory: "1MiB".into() };
        let sample = Settings { name: "n".into(), disks: vec!["d".into()], insecure: false, limits };
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("settings.toml");
        std::fs::write(&file, "name = \"from the file\"\n[limits]\nmemory = \"2MiB\"\n").unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        read(Some(&file), "T_", environment, &sample)
    }

    #[test]
    fn the_environment_goes_over_the_file() {
        let plain = read_with(&[("OTHER_NAME", "x"), ("T_CONFIG", "settings.toml")]).unwrap();
        assert_eq!((plain.name.as_str(), plain.limits.memory.as_str()), ("from the file", "2MiB"));
        let environment = [("T_NAME", "7"), ("T_DISKS", "/a, /b"), ("T_INSECURE", "true"), ("T_LIMITS__CONNECTIONS_MAX", "64")];
        let over = read_with(&environment).unwrap();
        assert_eq!((over.name.as_str(), over.disks, over.insecure), ("7", vec!["/a".to_owned(), "/b".to_owned()], true));
        assert_eq!(over.limits, Limits { connections_max: 64, memory: "2MiB".into() });
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (name, value, says) in [
            ("T_NAEM", "x", "there is no such setting; there are: disks, insecure, limits__…, name"),
            ("T_LIMITS__X", "x", "there are: connections_max, memory"),
            ("T_INSECURE", "perhaps", "true or false"),
            ("T_LIMITS__CONNECTIONS_MAX", "many", "a number is needed"),
            ("T_LIMITS", "x", "cannot be set"),
        ] {
            let error = read_with(&[(name, value)]).unwrap_err().message;
            assert!(error.starts_with(name) && error.contains(says), "{error}");
        }
    }
}
