//! Generates `docs/settings.md`, the reference of all settings. Names, units and defaults come from the definitions, and descriptions from
//! the documentation of the fields and the help of the options.

use super::{Weft, daemon};
use clap::{Arg, ArgAction, Command, CommandFactory as _};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use toml::{Table, Value};
use weft_agent::AgentConfig;
use weft_cli::target::ClusterFile;
use weft_coordinator::CoordinatorConfig;
use weft_types::ClusterId;

/// The variable that `make bless` sets: the test then writes the page instead of comparing it.
const BLESS: &str = "WEFT_BLESS";

const COORDINATOR: &str = include_str!("../../../coordinator/src/config.rs");
const AGENT: &str = include_str!("../../../agent/src/config.rs");
const CLASS_LIMITS: &str = include_str!("../../../types/src/class_limits.rs");
const CLUSTER_FILE: &str = include_str!("../target.rs");

/// The required settings of an agent; all others have defaults.
const AGENT_NEEDS: &str =
    "name = \"\"\ncoordinators = []\ndata_listen = \"\"\ncontrol_listen = \"\"\nstate_dir = \"\"\ndisks = []";

/// The page's text. A table is a line with its name in braces.
const PAGE: &str = include_str!("settings_page.md");

#[test]
fn the_settings_page_matches_the_definitions() {
    require_fresh("docs/settings.md", &page());
}

/// Compares a generated page with the one in the repository, or writes it.
pub(super) fn require_fresh(name: &str, fresh: &str) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    if std::env::var_os(BLESS).is_some() {
        fs::write(&kept, fresh).unwrap();
    }
    let kept = fs::read_to_string(kept).unwrap();
    let differs = fresh.lines().zip(kept.lines()).find(|(fresh, kept)| fresh != kept);
    assert!(fresh == kept, "{name} differs from the definitions ({differs:?}): run `make bless`");
}

fn page() -> String {
    let line = |line: &str| match line.strip_prefix('{').and_then(|line| line.strip_suffix('}')) {
        Some(name) => table(name),
        None => format!("{line}\n"),
    };
    PAGE.lines().map(line).collect()
}

/// A table by its name.
fn table(name: &str) -> String {
    if let Some(path) = name.strip_prefix("options of weft") {
        return options(&path.split_whitespace().fold(Weft::command(), |all, name| all.find_subcommand(name).unwrap().clone()));
    }
    let (coordinator, agent) = (CoordinatorConfig::default(), toml::from_str::<AgentConfig>(AGENT_NEEDS).unwrap());
    let (all_of_coordinator, all_of_agent) = (daemon::sample_coordinator(), daemon::sample_agent());
    let client = ClusterFile { cluster: None, coordinator: String::new(), certificates: None, insecure: false, bucket: None };
    let all_of_client = ClusterFile {
        cluster: Some(ClusterId(0)),
        certificates: Some(PathBuf::new()),
        insecure: true,
        bucket: Some(String::new()),
        ..client.clone()
    };
    match name {
        "coordinator.toml" => settings(COORDINATOR, "CoordinatorConfig", "", &coordinator, &all_of_coordinator),
        "coordinator.toml limits" => {
            settings(CLASS_LIMITS, "ClassLimits", "limits.", &coordinator.limits, &all_of_coordinator.limits)
        }
        "agent.toml" => settings(AGENT, "AgentConfig", "", &agent, &all_of_agent),
        "agent.toml limits" => settings(AGENT, "Limits", "limits.", &agent.limits, &all_of_agent.limits),
        "agent.toml throttle" => settings(AGENT, "Throttle", "throttle.", &agent.throttle, &all_of_agent.throttle),
        "weft.toml" => settings(CLUSTER_FILE, "ClusterFile", "", &client, &all_of_client),
        _ => panic!("there is no table {name}"),
    }
}

/// A field of a settings struct, from its definition.
struct Field {
    name: String,
    kind: String,
    meaning: String,
    has_default: bool,
}

/// The table of a struct's settings. `sample` contains all of them.
fn settings<C: Serialize>(source: &str, of: &str, prefix: &str, defaults: &C, sample: &C) -> String {
    let [defaults, sample] = [defaults, sample].map(|config| Table::try_from(config).unwrap());
    let fields = fields(source, of);
    let defined: BTreeSet<&str> = fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(defined, sample.keys().map(String::as_str).collect(), "fields of {of}, and its settings");
    let row = |field: &Field| {
        let default = match defaults.get(&field.name) {
            _ if !field.has_default => "required".to_owned(),
            Some(value) => shown(&field.name, value),
            None if field.kind == "bool" => "`false`".to_owned(),
            None => "*none*".to_owned(),
        };
        format!("| `{prefix}{}` | {} | {default} | {} |\n", field.name, unit(field), cell(&field.meaning))
    };
    let rows = fields.iter().filter(|field| !sample[&field.name].is_table()).map(row);
    format!("| Setting | Value | Default | Meaning |\n| --- | --- | --- | --- |\n{}", rows.collect::<String>())
}

/// The fields of a struct, by the text of its definition.
fn fields(source: &str, of: &str) -> Vec<Field> {
    let (before, definition) = source.split_once(&format!("pub struct {of} {{\n")).unwrap();
    let has_default = before.lines().rev().take_while(|line| line.starts_with("#[")).any(|line| line.contains("default"));
    let empty = || Field { name: String::new(), kind: String::new(), meaning: String::new(), has_default };
    let (mut fields, mut field) = (Vec::new(), empty());
    for line in definition.lines().take_while(|line| *line != "}").map(str::trim) {
        if let Some(said) = line.strip_prefix("///") {
            field.meaning = format!("{}{said}", field.meaning).trim_start().to_owned();
        } else if line.starts_with("#[serde(") {
            field.has_default |= line.contains("default");
        } else if let Some((name, kind)) = line.strip_prefix("pub ").and_then(|line| line.strip_suffix(',')?.split_once(": ")) {
            (field.name, field.kind) = (name.to_owned(), kind.to_owned());
            fields.push(std::mem::replace(&mut field, empty()));
        }
    }
    fields
}

/// What a value is, with its unit.
fn unit(field: &Field) -> &'static str {
    let kind = field.kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>')).unwrap_or(&field.kind);
    let measure = if field.name.contains("percent") { "percent" } else { field.name.rsplit('_').next().unwrap_or_default() };
    match (kind, measure) {
        ("bool", _) => "`true` or `false`",
        ("String", _) => "text",
        ("PathBuf", _) => "path",
        ("Vec<String>", _) => "list of texts",
        ("Vec<PathBuf>", _) => "list of paths",
        ("ClusterId", _) => "32 hex digits",
        ("AutoSize", _) => "size, or `auto`",
        ("DrainFailingDisks", _) => "`off`, `failing` or `slow`",
        ("RebuildReserve", _) => "`auto`, `off` or a share",
        ("ByteSize", "s") => "rate",
        ("ByteSize", _) => "size",
        ("u32" | "u64", "ms") => "ms",
        ("u32" | "u64", "us") => "µs",
        ("u32" | "u64", "percent") => "percent",
        ("u32" | "u64", _) => "count",
        _ => panic!("setting {} has the unknown type {kind}: describe it here", field.name),
    }
}

fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Integer(ms) if name.ends_with("_ms") => {
            let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];
            let unit = units.iter().find(|(unit, _)| *ms > 0 && ms % unit == 0);
            unit.map_or_else(|| format!("`{ms}`"), |(unit, name)| format!("`{ms}` ({} {name})", ms / unit))
        }
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// A table of a command's options.
fn options(command: &Command) -> String {
    let row = |arg: &Arg| {
        let name = arg
            .get_value_names()
            .and_then(|names| names.first())
            .map_or(arg.get_id().as_str().to_uppercase(), ToString::to_string);
        let option = match arg.get_long() {
            Some(long) if matches!(arg.get_action(), ArgAction::SetTrue) => format!("--{long}"),
            Some(long) => format!("--{long} {name}"),
            None => name,
        };
        let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        let values: Vec<String> = arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default().replace("\n\n", ". ");
        format!("| `{}` | {variable} | {} | {} |\n", cell(&option), values.join(", "), cell(&help))
    };
    let rows: String = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(row).collect();
    format!("| Option | Variable | Default | Meaning |\n| --- | --- | --- | --- |\n{rows}")
}

/// The text on one line, escaped for a table cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
