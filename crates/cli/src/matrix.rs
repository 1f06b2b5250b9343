//! Bandwidths between pairs, read from a CSV file.
//!
//! ```text
//! from/to,California,Canada,Ohio,Oregon
//! California,501.3,57.2,44.1,299.9
//! Canada,55.3,732.0,63.3,48.0
//! Ohio,46.3,65.7,332.5,95.6
//! Oregon,297.8,50.2,93.6,250.1
//! ```
//!
//! Rows send, columns receive, in Mbit/s. The names are nodes (`node-01`) or places. Nodes are assigned to places in turn; each place is
//! a rack, and the diagonal is the rate between two nodes of one place.

use crate::rate::LinkRate;
use serde::{Deserialize, Serialize};
use weft_types::{Error, Result};

/// Most rows and columns: more than a machine can carry.
const PLACES_MAX: usize = 512;

/// The rate from each sender to each receiver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// The names of rows and columns.
    pub names: Vec<String>,
    /// From (row) to (column).
    pub rates: Vec<Vec<LinkRate>>,
}

impl Matrix {
    /// Parses a matrix.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let cells = |line: &str| -> Vec<String> { line.split(',').map(|cell| cell.trim().to_owned()).collect() };
        let heading = lines.next().map(cells).unwrap_or_default();
        let names: Vec<String> = heading.into_iter().skip(1).collect();
        if names.len() < 2 || names.len() > PLACES_MAX {
            return Err(Error::invalid(format!("the first line must name 2 to {PLACES_MAX} receivers: from/to,node-01,node-02")));
        }
        let mut rates = Vec::with_capacity(names.len());
        for line in lines {
            let cells = cells(line);
            let (from, row) = cells.split_first().ok_or_else(|| Error::invalid("a line is empty"))?;
            let expected = names.get(rates.len()).map_or("no more lines", String::as_str);
            if from != expected {
                return Err(Error::invalid(format!(
                    "row '{from}' should be '{expected}': rows must have the same order as columns"
                )));
            }
            if row.len() != names.len() {
                return Err(Error::invalid(format!("row '{from}' must have {} values, not {}", names.len(), row.len())));
            }
            rates.push(row.iter().map(|cell| rate(cell, from)).collect::<Result<Vec<_>>>()?);
        }
        if rates.len() != names.len() {
            return Err(Error::invalid(format!(
                "the matrix has {} rows and {} columns: the numbers must be equal",
                rates.len(),
                names.len()
            )));
        }
        Ok(Self { names, rates })
    }
}

/// Mbit/s, unless the value has a unit.
fn rate(cell: &str, from: &str) -> Result<LinkRate> {
    let parsed = match cell.parse::<f64>() {
        Ok(mbit) => LinkRate::new(mbit * 1e6),
        Err(_) => cell.parse(),
    };
    parsed.map_err(|error| Error::invalid(format!("row '{from}': {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_reads_and_one_that_is_wrong_says_where() {
        let matrix = Matrix::parse("from/to,A,B\n# ours\nA, 501.3, 57.2\nB,55.3,1gbit\n").unwrap();
        assert_eq!(matrix.names, ["A", "B"]);
        assert_eq!(matrix.rates[1][1].bits_per_s(), 1e9);
        assert_eq!(matrix.rates[0][1].to_string(), "57.2mbit");
        for (text, hint) in [
            ("", "first line"),
            ("x,A,B\nB,1,2\nA,1,2", "should be 'A'"),
            ("x,A,B\nA,1\nB,1,2", "must have 2 values"),
            ("x,A,B\nA,1,2", "rows"),
            ("x,A,B\nA,1,2\nB,1,2\nC,1,2", "no more lines"),
            ("x,A,B\nA,1,fast\nB,1,2", "row 'A'"),
        ] {
            let error = Matrix::parse(text).unwrap_err();
            assert!(error.message.contains(hint), "{text:?}: {error}");
        }
    }
}
