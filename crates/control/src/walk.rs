//! A walk over metadata records in key order, one page at a time: which page is next, and when all were read.

/// A walk over items. `K`: the key at which a page begins.
#[derive(Debug)]
pub struct Walk<K, T> {
    /// Where the next page begins; `None` if there is none.
    next: Option<K>,
    /// Where the page after an item begins.
    behind: fn(&T) -> K,
}

impl<K: Clone, T> Walk<K, T> {
    /// Begins the first page here; `behind` gives the start of the page after an item.
    pub fn new(first: K, behind: fn(&T) -> K) -> Self {
        Self { next: Some(first), behind }
    }

    /// Where the next page begins; `None` if all were read. A page that could not be read stays the next one.
    pub fn next(&self) -> Option<K> {
        self.next.clone()
    }

    /// Handles a page. An empty page is the last one, even if `more` is set, because the next page has no start.
    pub fn came(&mut self, page: &[T], more: bool) {
        self.next = page.last().filter(|_| more).map(self.behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_failed_page_is_requested_again_and_an_empty_one_is_the_last() {
        let mut walk = Walk::new(None, |item: &u32| Some(*item));
        assert_eq!([walk.next(), walk.next()], [Some(None), Some(None)]);
        walk.came(&[3, 8], true);
        assert_eq!([walk.next(), walk.next()], [Some(Some(8)), Some(Some(8))]);
        walk.came(&[], true);
        assert_eq!(walk.next(), None);
        let mut walk = Walk::new(0, |item: &u32| item + 1);
        walk.came(&[3, 8], false);
        assert_eq!(walk.next(), None);
    }

    proptest! {
        #[test]
        fn each_item_is_returned_once_and_in_order(items in proptest::collection::btree_set(0..200u32, 0..40), page in 1..9usize) {
            let (mut walk, mut seen, mut pages) = (Walk::new(0, |item: &u32| item + 1), Vec::new(), 0);
            while let Some(from) = walk.next() {
                let mut all: Vec<u32> = items.range(from..).copied().collect();
                let more = all.len() > page;
                all.truncate(page);
                walk.came(&all, more);
                seen.extend(all);
                pages += 1;
            }
            prop_assert_eq!(pages, items.len().div_ceil(page).max(1));
            prop_assert!(seen.iter().eq(&items));
        }
    }
}
