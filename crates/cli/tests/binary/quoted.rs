//! The messages that the operators' pages quote are in the sources: people search for them.

use std::{
    fs,
    path::{Path, PathBuf},
};

const PAGES: [&str; 3] = ["docs/upgrade.md", "docs/operations.md", "docs/failure-model.md"];
/// What a quotation in backticks begins with if it is no message.
const NO_MESSAGES: [&str; 9] = ["weft ", "weft-lab ", "sqlite3 ", "systemctl ", "sudo ", "PRAGMA ", "UPDATE ", "make ", "cargo "];
/// A literal must have more fixed text than this, and more than this part of a message, to stand for it.
const FIXED_MIN: usize = 8;
const FIXED_PERCENT_MIN: usize = 35;

/// The fixed parts of a string literal: those around its placeholders.
type Literal = Vec<String>;

#[test]
fn every_quoted_message_is_in_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let literals = literals(&root);
    assert!(literals.len() > 1_000, "only {} literals were found", literals.len());
    let mut quoted = 0;
    for page in PAGES {
        for message in messages(&fs::read_to_string(root.join(page)).unwrap()) {
            quoted += 1;
            assert!(
                literals.iter().any(|literal| says(literal, &message)),
                "{page} quotes a message that nothing prints: {message}"
            );
        }
    }
    assert!(quoted >= 25, "only {quoted} messages were found");
    for none in ["the disk is format 9", "11 of 16 nodes were down: node-03", "some words that no source has"] {
        assert!(!literals.iter().any(|literal| says(literal, none)), "{none}");
    }
}

/// All string literals of the sources that contain a space, tests apart.
fn literals(root: &Path) -> Vec<Literal> {
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> =
        fs::read_dir(root.join("crates")).unwrap().map(|it| it.unwrap().path().join("src")).collect();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.extend(literals_of(text.split("#[cfg(test)]\nmod tests").next().unwrap()));
            }
        }
    }
    found
}

fn literals_of(source: &str) -> Vec<Literal> {
    // A quote that is a letter begins no literal.
    let source = source.replace("'\"'", "' '");
    let (mut found, mut rest) = (Vec::new(), source.as_str());
    while let Some(begin) = rest.find('"') {
        let mut text = String::new();
        let mut letters = rest[begin + 1..].char_indices();
        let mut end = rest.len();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    end = begin + 1 + at + 1;
                    break;
                }
                // A continued line, or an escaped letter.
                '\\' => match letters.next() {
                    Some((_, '\n')) => text.truncate(text.trim_end_matches('\n').len()),
                    Some((_, other)) => text.push(other),
                    None => {}
                },
                other => text.push(other),
            }
        }
        rest = &rest[end..];
        if text.contains(' ') {
            found.push(fixed_parts(&text));
        }
    }
    found
}

fn fixed_parts(literal: &str) -> Literal {
    let parts = literal.split('{').enumerate().map(|(number, part)| match number {
        0 => part,
        _ => part.split_once('}').map_or(part, |(_, behind)| behind),
    });
    parts.map(words).filter(|part| !part.is_empty()).collect()
}

/// The text with single spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The messages that a page quotes: in backticks, of three words or more, outside of blocks of code. Fields of log lines are cut off.
fn messages(page: &str) -> Vec<String> {
    let prose: String = page.split("```").step_by(2).collect();
    let quotations = prose.split('`').skip(1).step_by(2).map(words);
    let messages = quotations
        .filter(|it| it.split(' ').count() >= 3 && !it.contains(" = ") && !NO_MESSAGES.iter().any(|begin| it.starts_with(begin)));
    let pieces = messages.flat_map(|it| it.split('…').map(without_fields).collect::<Vec<_>>());
    pieces.filter(|piece| piece.split(' ').count() >= 2).collect()
}

fn without_fields(message: &str) -> String {
    let message = message.trim().trim_start_matches("warning: ").trim_start_matches("error=");
    let fields = message.split(' ').rev().take_while(|word| word.contains('=')).count();
    let kept = message.split(' ').count() - fields;
    message.split(' ').take(kept).collect::<Vec<_>>().join(" ").trim_end_matches([':', ',']).to_owned()
}

/// Whether a message can come from a literal: the literal's fixed parts are in it in their order and are most of it. It may be a piece
/// of the literal.
fn says(literal: &Literal, message: &str) -> bool {
    if literal.iter().any(|part| part.contains(message)) {
        return true;
    }
    let (mut rest, mut fixed) = (message, 0);
    for part in literal.iter().map(|part| part.trim_end_matches([':', ','])) {
        if let Some(at) = rest.find(part) {
            (rest, fixed) = (&rest[at + part.len()..], fixed + part.len());
            continue;
        }
        // The page quotes only the beginning.
        let Some(cut) = (FIXED_MIN..part.len()).rev().find(|len| part.get(..*len).is_some_and(|begin| rest.ends_with(begin)))
        else {
            return false;
        };
        fixed += cut;
        break;
    }
    fixed > FIXED_MIN && fixed * 100 >= message.len() * FIXED_PERCENT_MIN
}
