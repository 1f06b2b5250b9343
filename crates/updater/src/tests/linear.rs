//! Whether a history of concurrent reads and writes is linearizable: whether each could have taken effect at one moment between its begin
//! and its end, all in one order.
//!
//! The search is that of Wing and Gong, *Testing and Verifying Concurrent Objects* (1993), with the memory of Lowe, *Testing for
//! linearizability* (2017), as in porcupine. Two shortcuts lose nothing: a read that fits now is taken now, since it changes nothing; and
//! a write without an answer that no read has seen is left out.

use std::collections::{BTreeSet, HashSet};

/// What an operation did to registers: their numbers and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// It wrote all of them at once.
    Write(Vec<(usize, u32)>),
    /// It read all of them at once.
    Read(Vec<(usize, u32)>),
}

/// An operation. Values that are written are different from each other and from 0, with which all registers begin.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) begin: u64,
    /// `None`: there was no answer. Then a write may take effect at any time from its begin on, or never.
    pub(super) end: Option<u64>,
    pub(super) what: What,
}

/// Fails with the operations that cannot be ordered.
pub(super) fn check(registers: usize, history: &[Operation]) -> Result<(), String> {
    let seen: BTreeSet<u32> = history.iter().flat_map(|operation| operation.values(true)).collect();
    let is_relevant = |operation: &&Operation| match &operation.what {
        Write(_) => operation.end.is_some() || operation.values(false).any(|value| seen.contains(&value)),
        Read(_) => operation.end.is_some(),
    };
    let mut operations: Vec<&Operation> = history.iter().filter(is_relevant).collect();
    operations.sort_by_key(|operation| operation.begin);
    Search { operations: &operations, seen: HashSet::new(), furthest: 0, stuck: String::new() }.run(registers)
}

use What::{Read, Write};

impl Operation {
    fn values(&self, of_reads: bool) -> impl Iterator<Item = u32> + '_ {
        let (values, is_read) = match &self.what {
            Write(values) => (values, false),
            Read(values) => (values, true),
        };
        values.iter().filter(move |_| is_read == of_reads).map(|(_, value)| *value)
    }
}

/// Which operations were taken, and what the registers contain.
type State = (Vec<u64>, Vec<u32>);

struct Search<'a> {
    operations: &'a [&'a Operation],
    seen: HashSet<State>,
    furthest: usize,
    stuck: String,
}

impl Search<'_> {
    fn run(mut self, registers: usize) -> Result<(), String> {
        let start = (vec![0; self.operations.len().div_ceil(64)], vec![0; registers]);
        let mut stack = vec![start];
        while let Some((mut taken, values)) = stack.pop() {
            self.take_reads(&mut taken, &values);
            if !self.seen.insert((taken.clone(), values.clone())) {
                continue;
            }
            let possible = self.possible(&taken);
            let is_left = |at: &usize| self.operations[*at].end.is_some();
            if !(0..self.operations.len()).filter(|at| !is_taken(&taken, *at)).any(|at| is_left(&at)) {
                return Ok(());
            }
            self.note(&taken, &values, &possible);
            for at in possible {
                let Write(written) = &self.operations[at].what else { continue };
                let (mut taken, mut values) = (taken.clone(), values.clone());
                taken[at / 64] |= 1 << (at % 64);
                written.iter().for_each(|(register, value)| values[*register] = *value);
                stack.push((taken, values));
            }
        }
        Err(self.stuck)
    }

    /// Remembers where the search got furthest.
    fn note(&mut self, taken: &[u64], values: &[u32], possible: &[usize]) {
        let count: usize = taken.iter().map(|word| word.count_ones() as usize).sum();
        if count >= self.furthest {
            let next: Vec<&Operation> = possible.iter().map(|at| self.operations[*at]).collect();
            self.furthest = count;
            self.stuck = format!("after {count} operations the registers contain {values:?}, and none of these fits: {next:?}");
        }
    }

    fn take_reads(&self, taken: &mut [u64], values: &[u32]) {
        loop {
            let fits = |at: &usize| match &self.operations[*at].what {
                Read(read) => read.iter().all(|(register, value)| values[*register] == *value),
                Write(_) => false,
            };
            let Some(at) = self.possible(taken).into_iter().find(fits) else { return };
            taken[at / 64] |= 1 << (at % 64);
        }
    }

    /// The operations that may come next: no other has ended before they begin.
    fn possible(&self, taken: &[u64]) -> Vec<usize> {
        let left = || (0..self.operations.len()).filter(|at| !is_taken(taken, *at));
        let first_end = left().filter_map(|at| self.operations[at].end).min().unwrap_or(u64::MAX);
        left().take_while(|at| self.operations[*at].begin <= first_end).collect()
    }
}

fn is_taken(taken: &[u64], at: usize) -> bool {
    taken[at / 64] >> (at % 64) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::random::Random;

    fn write(begin: u64, end: u64, values: &[(usize, u32)]) -> Operation {
        Operation { begin, end: Some(end), what: Write(values.to_vec()) }
    }

    fn lost_write(begin: u64, values: &[(usize, u32)]) -> Operation {
        Operation { begin, end: None, what: Write(values.to_vec()) }
    }

    fn read(begin: u64, end: u64, values: &[(usize, u32)]) -> Operation {
        Operation { begin, end: Some(end), what: Read(values.to_vec()) }
    }

    fn is_right(history: &[Operation]) -> bool {
        check(3, history).is_ok()
    }

    #[test]
    fn histories_of_one_register_that_are_right() {
        assert!(is_right(&[]));
        assert!(is_right(&[read(0, 1, &[(0, 0)]), write(2, 3, &[(0, 1)]), read(4, 5, &[(0, 1)])]));
        // Concurrent: old or new.
        assert!(is_right(&[write(0, 9, &[(0, 1)]), read(1, 2, &[(0, 0)]), read(3, 4, &[(0, 1)])]));
        // Of two concurrent writes, either may be last.
        for last in [1, 2] {
            assert!(is_right(&[write(0, 9, &[(0, 1)]), write(1, 8, &[(0, 2)]), read(10, 11, &[(0, last)])]));
        }
        // Without an answer: never, or late.
        assert!(is_right(&[lost_write(0, &[(0, 1)]), read(5, 6, &[(0, 0)])]));
        assert!(is_right(&[lost_write(0, &[(0, 1)]), read(5, 6, &[(0, 0)]), read(7, 8, &[(0, 1)])]));
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_found() {
        assert!(!is_right(&[write(0, 1, &[(0, 1)]), read(2, 3, &[(0, 0)])]));
        assert!(!is_right(&[write(0, 1, &[(0, 1)]), write(2, 3, &[(0, 2)]), read(4, 5, &[(0, 1)])]));
    }

    #[test]
    fn a_read_of_an_older_version_than_one_already_seen_is_found() {
        let history = [write(0, 9, &[(0, 1)]), read(1, 2, &[(0, 1)]), read(3, 4, &[(0, 0)])];
        assert!(!is_right(&history));
        let history = [lost_write(0, &[(0, 1)]), read(1, 2, &[(0, 1)]), read(3, 4, &[(0, 0)])];
        assert!(!is_right(&history), "a write without an answer that was seen stays");
    }

    #[test]
    fn a_write_that_was_refused_and_is_seen_is_found() {
        assert!(!is_right(&[read(1, 2, &[(0, 7)])]));
    }

    #[test]
    fn a_read_before_the_write_began_is_found() {
        assert!(!is_right(&[read(0, 1, &[(0, 1)]), write(2, 3, &[(0, 1)])]));
    }

    #[test]
    fn a_part_of_a_write_is_found() {
        let both = write(0, 9, &[(0, 1), (1, 1)]);
        assert!(is_right(&[both.clone(), read(1, 2, &[(0, 0), (1, 0)]), read(3, 4, &[(0, 1), (1, 1)])]));
        assert!(!is_right(&[both.clone(), read(1, 2, &[(0, 1), (1, 0)])]));
        // Also if two reads show it.
        assert!(!is_right(&[both.clone(), read(1, 2, &[(0, 1)]), read(3, 4, &[(1, 0)])]));
        assert!(is_right(&[both, read(1, 2, &[(1, 0)]), read(3, 4, &[(0, 1)])]));
    }

    #[test]
    fn orders_that_contradict_each_other_are_found() {
        let (a, b) = (write(0, 9, &[(0, 1), (1, 1)]), write(0, 9, &[(0, 2), (1, 2)]));
        assert!(!is_right(&[a.clone(), b.clone(), read(10, 11, &[(0, 1)]), read(10, 11, &[(1, 2)])]));
        assert!(is_right(&[a, b, read(10, 11, &[(0, 2)]), read(10, 11, &[(1, 2)])]));
    }

    /// Tries all orders.
    fn check_slowly(registers: usize, history: &[Operation]) -> bool {
        fn go(history: &[Operation], left: &[usize], values: &[u32]) -> bool {
            if left.iter().all(|at| history[*at].end.is_none()) {
                return true;
            }
            left.iter().any(|at| {
                let is_first = left.iter().all(|other| history[*other].end.is_none_or(|end| end >= history[*at].begin));
                let mut values = values.to_vec();
                let fits = match &history[*at].what {
                    Read(read) => history[*at].end.is_none() || read.iter().all(|(register, value)| values[*register] == *value),
                    Write(written) => {
                        written.iter().for_each(|(register, value)| values[*register] = *value);
                        true
                    }
                };
                let rest: Vec<usize> = left.iter().copied().filter(|other| other != at).collect();
                is_first && fits && go(history, &rest, &values)
            })
        }
        go(history, &(0..history.len()).collect::<Vec<_>>(), &vec![0; registers])
    }

    #[test]
    fn it_agrees_with_a_search_of_all_orders() {
        let mut counts = [0; 2];
        for seed in 0..3000 {
            let mut random = Random::new(seed);
            let mut history = Vec::new();
            for at in 0..random.up_to(6) + 1 {
                let begin = random.up_to(12);
                let end = (random.up_to(5) > 0).then(|| begin + 1 + random.up_to(6));
                let is_write = random.up_to(2) == 0;
                let value = if is_write { at as u32 + 1 } else { random.up_to(5) as u32 };
                let registers: Vec<usize> = (0..2).filter(|_| random.up_to(3) > 0).collect();
                let other = if is_write || random.up_to(2) == 0 { value } else { random.up_to(5) as u32 };
                let values = registers.iter().map(|register| (*register, if *register == 0 { value } else { other })).collect();
                history.push(Operation { begin, end, what: if is_write { Write(values) } else { Read(values) } });
            }
            let expected = check_slowly(2, &history);
            assert_eq!(check(2, &history).is_ok(), expected, "seed {seed}: {history:?}");
            counts[usize::from(expected)] += 1;
        }
        assert!(counts[0] > 300 && counts[1] > 300, "{counts:?}");
    }
}
