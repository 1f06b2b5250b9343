//! Names of nodes: messages contain node ids, and operators know names.

use weft_client::api;
use weft_types::NodeId;

/// The names of the nodes that a text mentions by id: `n5 is node-01`. None if it mentions none.
pub fn legend(text: &str, nodes: &[api::Node]) -> Option<String> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '_';
    let mut named: Vec<&api::Node> = Vec::new();
    for word in text.split(|letter| !is_part(letter)) {
        let Some(number) = word.strip_prefix('n').and_then(|number| number.parse::<u32>().ok()) else { continue };
        let new = nodes.iter().find(|node| node.id == number && !named.iter().any(|there| there.id == node.id));
        named.extend(new);
    }
    named.sort_by_key(|node| node.id);
    let of: Vec<String> = named.iter().map(|node| format!("{} is {}", NodeId(node.id), node.name)).collect();
    (!of.is_empty()).then(|| of.join(", "))
}

/// The text with the names of the nodes in it.
pub fn with_names(text: String, nodes: &[api::Node]) -> String {
    match legend(&text, nodes) {
        Some(legend) => format!("{text} ({legend})"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_are_explained() {
        let node = |(id, name): (u32, &str)| api::Node { id, name: name.to_owned(), ..api::Node::default() };
        let nodes = [(1, "node-01"), (12, "far"), (3, "node-03")].map(node);
        let text = "n12: block s1-b003-c0-g1: n1 and n12 say no; n7, an3, n3x, 3 and node-n3 are nobody".to_owned();
        assert_eq!(legend(&text, &nodes).as_deref(), Some("n1 is node-01, n12 is far"));
        assert!(with_names(text, &nodes).ends_with(" are nobody (n1 is node-01, n12 is far)"));
        assert_eq!(with_names("n2 is gone".into(), &nodes), "n2 is gone");
    }
}
