//! Specs and requests from outside get an answer or a refusal, and never cause a panic.

use proptest::prelude::*;
use weft_codes::{Ask, FAMILIES, SubBlock, parse};

/// A spec of any family, with valid or invalid numbers.
fn spec() -> impl Strategy<Value = String> {
    let number = || prop_oneof![20 => 1usize..9, 1 => 0usize..300, 1 => any::<usize>()];
    let named = prop_oneof![3 => Just(String::new()), 1 => number().prop_map(|d| format!(",d={d}")), 1 => number().prop_map(|r| format!(",r={r}"))];
    let family = prop::sample::select(FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>());
    (family, prop::collection::vec(number(), 1..4), named).prop_map(|(family, numbers, named)| {
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        format!("{family}({}{named})", numbers.join(","))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_spec_and_request_is_answered_or_refused(
        spec in spec(),
        wanted in prop::collection::vec((0u8..20, prop_oneof![4 => 0u16..9, 1 => any::<u16>()]), 0..12),
        available in prop::collection::vec(prop_oneof![9 => 0u8..20, 1 => any::<u8>()], 0..24),
        read_anyway in prop::collection::vec(0u8..20, 0..6),
    ) {
        let Ok(code) = parse(&spec) else { return Ok(()) };
        if code.n() * code.alpha() > 1200 {
            return Ok(());
        }
        let wanted = wanted.into_iter().map(|(index, sub_block)| SubBlock { index, sub_block }).collect();
        let ask = Ask { wanted, available, read_anyway };
        if let Ok(recipes) = code.recipes(&ask) {
            prop_assert!(recipes.iter().all(|recipe| recipe.combine.rows() == ask.wanted.len()), "{spec}: {ask:?}");
        }
        prop_assert_eq!(code.encode().rows(), code.m() * code.alpha());
    }
}
