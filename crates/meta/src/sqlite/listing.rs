//! Listings: the objects of a bucket in the order of their keys, with folders in place of what is in them.

use super::{objects, policies, rows};
use crate::{Listed, Listing, ObjectRecord, Page, Result};
use rusqlite::Transaction;

/// A page. A folder costs one look-up, however many objects are in it.
pub(super) fn page(tx: &Transaction<'_>, bucket: &str, query: &Listing) -> Result<Page<Listed>> {
    policies::require_bucket(tx, bucket)?;
    let wanted = query.limit as usize + 1;
    let mut listed: Vec<Listed> = Vec::new();
    let mut from = start(query);
    while let Some(first) = from.take() {
        let left = wanted - listed.len();
        let (objects, folder) = objects_before_folder(tx, bucket, query, &first, left)?;
        listed.extend(objects.into_iter().map(Listed::Object));
        if let Some(folder) = folder {
            if listed.len() + 1 < wanted {
                from = behind_all(&folder).map(|key| First { key, is_excluded: false });
            }
            listed.push(Listed::Folder(folder));
        }
    }
    Ok(rows::page(listed, query.limit))
}

/// A page of a listing without folders.
pub(super) fn objects(tx: &Transaction<'_>, bucket: &str, query: Listing) -> Result<Page<ObjectRecord>> {
    let Page { items, more } = page(tx, bucket, &Listing { delimiter: String::new(), ..query })?;
    let object = |listed| match listed {
        Listed::Object(object) => Some(object),
        Listed::Folder(_) => None,
    };
    Ok(Page { items: items.into_iter().filter_map(object).collect(), more })
}

/// Where a part of a listing begins.
struct First {
    key: String,
    /// Begins behind this key.
    is_excluded: bool,
}

/// Where the listing begins; `None`: nothing can follow.
fn start(query: &Listing) -> Option<First> {
    if query.after < query.prefix {
        return Some(First { key: query.prefix.clone(), is_excluded: false });
    }
    match folder_of(&query.after, query) {
        // It was listed: the objects in it do not follow.
        Some(folder) if folder.len() == query.after.len() => behind_all(folder).map(|key| First { key, is_excluded: false }),
        _ => Some(First { key: query.after.clone(), is_excluded: true }),
    }
}

/// At most `limit` objects up to the first folder, and that folder.
fn objects_before_folder(
    tx: &Transaction<'_>,
    bucket: &str,
    query: &Listing,
    first: &First,
    limit: usize,
) -> Result<(Vec<ObjectRecord>, Option<String>)> {
    let compare = if first.is_excluded { ">" } else { ">=" };
    let fields = objects::OBJECT;
    let sql = format!("SELECT {fields} FROM objects WHERE bucket = ?1 AND key {compare} ?2 ORDER BY key LIMIT ?3");
    let mut statement = tx.prepare_cached(&sql)?;
    let mut found = Vec::new();
    for object in statement.query_map((bucket, &first.key, limit as u64), objects::object_row)? {
        let object = object?;
        // Keys with a common prefix are adjacent in the order, and none sorts before the prefix itself.
        if !object.name.key.starts_with(&query.prefix) {
            break;
        }
        if let Some(folder) = folder_of(&object.name.key, query) {
            return Ok((found, Some(folder.to_owned())));
        }
        found.push(object);
    }
    Ok((found, None))
}

/// The folder that stands for a key.
fn folder_of<'a>(key: &'a str, query: &Listing) -> Option<&'a str> {
    let rest = key.strip_prefix(&query.prefix).filter(|_| !query.delimiter.is_empty())?;
    let at = rest.find(&query.delimiter)?;
    key.get(..query.prefix.len() + at + query.delimiter.len())
}

/// The least text that sorts behind all texts that begin with this one; `None` if there is none. The order of UTF-8 is that of code points.
fn behind_all(text: &str) -> Option<String> {
    let mut letters: Vec<char> = text.chars().collect();
    while let Some(last) = letters.pop() {
        // A range of letters skips the numbers that stand for none.
        if let Some(next) = (last..=char::MAX).nth(1) {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sorts_behind_all_texts_with_a_prefix_is_the_least_such() {
        for (text, behind) in
            [("a/", "a0"), ("a", "b"), ("\u{d7ff}", "\u{e000}"), ("a\u{10ffff}", "b"), ("é", "ê"), ("\u{7f}", "\u{80}")]
        {
            assert_eq!(behind_all(text).as_deref(), Some(behind));
            assert!(*behind > *format!("{text}\u{10ffff}\u{10ffff}"));
        }
        assert_eq!((behind_all(""), behind_all("\u{10ffff}")), (None, None));
    }
}
