//! Tables as text.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// A heading and rows in aligned columns. Columns in `right` hold numbers and are aligned right.
pub fn table<const N: usize>(heading: [&str; N], right: &[usize], rows: impl IntoIterator<Item = [String; N]>) -> String {
    columns(heading, right, rows)
}

/// The same with any number of columns.
pub fn columns<R: IntoIterator<Item: Into<Cell>>>(
    heading: impl IntoIterator<Item: Into<Cell>>,
    right: &[usize],
    rows: impl IntoIterator<Item = R>,
) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_blanks() {
        let rows = [["a".to_owned(), "10".to_owned(), "x".to_owned()], ["long".to_owned(), "7".to_owned(), String::new()]];
        let text = super::table(["name", "size", "state"], &[1], rows);
        assert_eq!(text, "name  size  state\na       10  x\nlong     7");
    }
}
