//! Names of nodes: messages contain node ids, and operators know names.

use weft_client::api;
use weft_types::NodeId;

/// What stands before names of buckets, policies and objects in messages.
const CHOSEN_AFTER: [&str; 5] = ["bucket ", "policy ", "object ", "create ", "ls "];

/// Replaces node ids in a text by names: `n5` becomes `node-01`. Ids within a longer word, such as a path or a block's name, stay. So do
/// names that a user chose: those in quotes, and those after a word such as `bucket`.
pub fn with_names(text: &str, nodes: &[api::Node]) -> String {
    let is_part = |letter: char| letter.is_alphanumeric() || "-_/.".contains(letter);
    let mut named = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = &rest[..rest.find(|letter| !is_part(letter)).unwrap_or(rest.len())];
        // A sentence can end with an id.
        let id = word.trim_end_matches('.');
        let is_quoted = named.ends_with('\'') && rest[word.len()..].starts_with('\'');
        let is_chosen = is_quoted || CHOSEN_AFTER.iter().any(|word| named.ends_with(word));
        let node = nodes.iter().find(|node| !is_chosen && NodeId(node.id).to_string() == id);
        named.push_str(node.map_or(id, |node| &node.name));
        named.push_str(&word[id.len()..]);
        rest = &rest[word.len()..];
        let between = rest.find(is_part).unwrap_or(rest.len());
        named.push_str(&rest[..between]);
        rest = &rest[between..];
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_nodes_become_names() {
        let node = |(id, name): (u32, &str)| api::Node { id, name: name.to_owned(), ..api::Node::default() };
        let nodes = [(1, "node-01"), (12, "far"), (3, "node-03")].map(node);
        let named = |text: &str| with_names(text, &nodes);
        assert_eq!(
            named("n12: block s1-b003-c0-g1: n1 and n12 say (n3)."),
            "far: block s1-b003-c0-g1: node-01 and far say (node-03)."
        );
        assert_eq!(named("ä n3 → n1."), "ä node-03 → node-01.");
        assert_eq!(named("n1's bucket 'n1' is not at 'n3"), "node-01's bucket 'n1' is not at 'node-03");
        let chosen = "there is no object n1 in the bucket n3: `weft ls n3` lists its objects";
        for other in
            [chosen, "`weft bucket create n1` creates it", "n7, an3, n3x, 3 and node-n3", "n1/key photos/n1 n1.toml n01", "", "…"]
        {
            assert_eq!(named(other), other);
        }
    }
}
