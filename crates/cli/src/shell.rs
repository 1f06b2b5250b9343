//! The frame of all commands: parses the command line, prints help, and reports errors on one line.

use crate::{
    exit::{EXIT_CODES, Exit},
    interrupt,
    output::print,
    target,
};
use clap::{
    Args, Command, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde_json::{Value, json};
use weft_types::{Error, Reaction, Result};

/// The options of all commands.
#[derive(Debug, Args)]
pub struct Globals {
    /// Print results and errors as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// The cluster of the command.
    #[command(flatten)]
    pub target: target::Options,
}

/// Show help on a command, or on `exit-codes`
#[derive(Debug, Args)]
pub struct Help {
    /// Topic: `exit-codes`, or a command such as `code encode`
    pub topic: Vec<String>,
}

/// Parses this process's command line. Prints help, the version and errors in the command line, and then returns the exit code.
pub fn parse<P: FromArgMatches>(mut command: Command) -> Result<P, Exit> {
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = matches.and_then(|mut it| P::from_arg_matches_mut(&mut it).map_err(|error| error.format(&mut command)));
    parsed.map_err(|error| match elsewhere(&command, &error) {
        Some(error) => report(&error, asks_for_json()),
        None => refuse(&error),
    })
}

/// The error for a command that exists, but below another one.
fn elsewhere(all: &Command, error: &clap::Error) -> Option<Error> {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let mut found = Vec::new();
    paths_to(all, typed, "weft", &mut found);
    let found: Vec<String> = found.iter().map(|path| format!("`{path}`")).collect();
    (!found.is_empty()).then(|| Error::invalid(format!("there is no command '{typed}' here: use {}", found.join(" or "))))
}

/// The commands of this name, wherever they are.
fn paths_to(command: &Command, name: &str, path: &str, found: &mut Vec<String>) {
    for sub in command.get_subcommands() {
        let path = format!("{path} {}", sub.get_name());
        paths_to(sub, name, &path, found);
        if sub.get_name() == name {
            found.push(path);
        }
    }
}

/// Prints help and the version; anything else is an invalid command line, reported on one line like every other error.
fn refuse(error: &clap::Error) -> Exit {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print(&error.to_string()).map_or(Exit::Failed, |()| Exit::Ok);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprint!("{error}");
        return Exit::Usage;
    }
    report(&Error::invalid(one_line(&error.to_string())), asks_for_json())
}

/// Whether the command line has `--json`, parsed or not. Arguments after `--` belong to another command.
pub fn asks_for_json() -> bool {
    std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json")
}

/// clap puts the error in its first paragraph, and hints in `tip:` lines and the usage.
fn one_line(message: &str) -> String {
    let mut said = String::new();
    for line in message.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more information")) {
        let line = line.strip_prefix("error: ").or(line.strip_prefix("tip: ")).unwrap_or(line);
        if !said.is_empty() {
            said.push_str(if said.ends_with(':') { " " } else { "; " });
        }
        said.push_str(&about_number(line));
    }
    said
}

/// A user-friendly error for a number: the messages of the standard parsers are written for programmers.
fn about_number(line: &str) -> String {
    if let Some((start, range)) = line.rsplit_once(" is not in ")
        && let Some((least, most)) = range.split_once("..=").or_else(|| range.split_once(".."))
    {
        let is_open = most.parse::<u64>().is_ok_and(|most| most >= u32::MAX.into());
        let allowed = if is_open { format!("it must be at least {least}") } else { format!("the range is {least} to {most}") };
        return format!("{} ({allowed})", start.rsplit_once(": ").map_or(start, |(start, _)| start));
    }
    let words = [
        ("invalid digit found in string", "a whole number is required"),
        ("cannot parse integer from empty string", "a whole number is required"),
        ("number too large to fit in target type", "the number is too large"),
    ];
    words.iter().fold(line.to_owned(), |line, (programmers, plain)| line.replace(programmers, plain))
}

impl Help {
    /// Prints the help on a command of `all`, or on exit codes.
    pub fn run(&self, mut all: Command) -> Result<Exit> {
        if self.topic == ["exit-codes"] {
            return print(EXIT_CODES).map(|()| Exit::Ok);
        }
        all.build();
        let mut named = &mut all;
        for word in &self.topic {
            named = named.find_subcommand_mut(word).ok_or_else(|| {
                let topic = self.topic.join(" ");
                Error::not_found(format!("there is no command '{topic}': `weft help` lists all commands"))
            })?;
        }
        print(&named.render_long_help().to_string()).map(|()| Exit::Ok)
    }
}

/// The gaps in the help of the commands `all`, except those in `except`: each command must have an example and its exit codes. For
/// tests.
pub fn missing_in_help(all: &Command, except: &[&str]) -> Vec<String> {
    fn check(command: &Command, path: &str, missing: &mut Vec<String>) {
        for sub in command.get_subcommands() {
            let path = format!("{path} {}", sub.get_name());
            if sub.get_subcommands().next().is_none() {
                let after = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                if !(after.contains("EXAMPLE") && after.contains(&path)) {
                    missing.push(format!("{path} has no example of itself"));
                }
                if !after.contains("EXIT CODES") {
                    missing.push(format!("{path} does not tell its exit codes"));
                }
            }
            check(sub, &path, missing);
        }
    }
    let mut missing = Vec::new();
    let is_checked = |sub: &&Command| sub.get_name() != "help" && !except.contains(&sub.get_name());
    let checked = Command::new("weft").subcommands(all.get_subcommands().filter(is_checked).cloned());
    check(&checked, "weft", &mut missing);
    missing
}

/// Reports an error as text or as JSON.
pub fn report(error: &Error, json: bool) -> Exit {
    let exit = if interrupt::is_interrupted() { Exit::Interrupted } else { Exit::from(error) };
    if json {
        eprintln!("{}", error_json(error, exit));
    } else {
        eprintln!("weft: {}", on_one_line(&error.to_string()));
    }
    exit
}

/// Escapes control characters: the names in an error can contain any character.
pub fn on_one_line(text: &str) -> String {
    let shown = |letter: char| if letter.is_control() { letter.escape_default().collect() } else { letter.to_string() };
    text.chars().map(shown).collect()
}

fn error_json(error: &Error, exit: Exit) -> Value {
    let kind = match error.reaction {
        _ if exit == Exit::Interrupted => "interrupted",
        _ if exit == Exit::TooFewNodes => "too_few_nodes",
        _ if exit == Exit::NoSpace => "no_space",
        Reaction::Retry => "retry",
        Reaction::Replan => "replan",
        Reaction::Corrupt => "corrupt",
        Reaction::InvalidInput => "invalid_input",
        Reaction::NotFound => "not_found",
        Reaction::Unavailable => "unavailable",
        Reaction::Fatal => "fatal",
    };
    json!({ "error": {
        "kind": kind,
        "exit_code": exit as u8,
        "message": error.message,
        "object": error.object,
        "block": error.block.map(|block| block.to_string()),
        "party": error.party.map(|party| party.to_string()),
        "link": error.link,
        "position": error.position,
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_one_line_of_plain_words() {
        assert_eq!(on_one_line("photos/a\nb\u{1b}[2Jü: no"), "photos/a\\nb\\u{1b}[2Jü: no");
        let numbers = [
            ("'x' for '<ID>': invalid digit found in string", "'x' for '<ID>': a whole number is required"),
            ("'0' for '--runs <N>': 0 is not in 1..=64", "'0' for '--runs <N>' (the range is 1 to 64)"),
            ("'0' for '--runs <N>': 0 is not in 1..=4294967295", "'0' for '--runs <N>' (it must be at least 1)"),
            ("'0' for '--limit <N>': 0 is not in 1..18446744073709551615", "'0' for '--limit <N>' (it must be at least 1)"),
            ("there is no object b/k", "there is no object b/k"),
        ];
        numbers.iter().for_each(|(line, plain)| assert_eq!(about_number(line), *plain));
    }
}
