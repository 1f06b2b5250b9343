//! The oracle: one product for each byte, by definition.

use super::pass::{Pass, Work};
use crate::field::mul;

pub(super) fn run(pass: Pass<'_, '_>) {
    let rows = pass.outs.len();
    for (row, out) in pass.outs.iter_mut().enumerate() {
        if !pass.add {
            out.fill(0);
        }
        for (source, bytes) in pass.sources.iter().enumerate() {
            let coefficient = match pass.work {
                Work::Xor => 1,
                Work::Products(factors) => factors.coefficients[source * rows + row],
            };
            for (sum, byte) in out.iter_mut().zip(*bytes) {
                *sum ^= mul(coefficient, *byte);
            }
        }
    }
}
