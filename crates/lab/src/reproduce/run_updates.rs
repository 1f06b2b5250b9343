//! Measures figures of updates in place.

use super::{
    Links, Point, Setup, Updating,
    run::{Options, Steps, weight as weight_of},
};
use crate::{
    bench::{
        in_place::{Subject, Work, make_journals, measure},
        repair::{Case, probe},
        update_bound::theory,
    },
    testbed::{Settings, Testbed},
};
use weft_cli::session::Session;
use weft_types::{Error, Result};

/// A block is as many times as long as an update in it.
const BLOCK_PARTS: u64 = 4;

/// Measures all setups, one after another.
pub(super) async fn run(
    setups: &[Setup],
    options: Options,
    session: &Session,
    testbed: &mut Testbed,
    steps: &mut Steps,
) -> Result<Vec<Point>> {
    make_journals(session, testbed.settings().nodes).await?;
    let (mut results, mut stored): (Vec<Point>, Option<Subject>) = (Vec::new(), None);
    for setup in setups {
        let Links::Updated(updating) = &setup.links else {
            return Err(Error::fatal("the figure mixes updates in place and others"));
        };
        let work = work(setup, updating, options.seed);
        let same = stored.take_if(|subject| *subject.work() == work);
        let subject = match same {
            Some(subject) => subject,
            None => {
                if let Some(other) = stored.take() {
                    end(other, session).await?;
                }
                // Over fast links, if they have rates of their own.
                testbed.reshape(|it| {
                    *it = Settings { matrix: None, link: updating.places.is_none().then_some(options.scale.link), ..it.clone() }
                })?;
                Subject::store(session, testbed, work).await?
            }
        };
        shape(session, testbed, updating, options.quiet).await?;
        let cases: Vec<(usize, Case)> = setup.cases.iter().map(|(_, case)| (0, case.clone())).collect();
        let mut says = |run: usize, at: usize| {
            let (x, case) = &setup.cases[at];
            steps.next(x.as_deref(), case, run, options.runs, weight_of(setup, case));
        };
        let mut subjects = [subject];
        let outcomes = measure(testbed, &mut subjects, &cases, (options.runs, options.seed), &mut says).await;
        let [subject] = subjects;
        match outcomes {
            Ok(outcomes) => {
                let point = |((x, _), outcome): (&(Option<String>, Case), _)| Point { x: x.clone(), rate_mib_s: None, outcome };
                results.extend(setup.cases.iter().zip(outcomes).map(point));
                stored = Some(subject);
            }
            Err(error) => {
                // The first error counts.
                let _gone = subject.remove(session).await;
                return Err(error);
            }
        }
    }
    if let Some(subject) = stored {
        end(subject, session).await?;
    }
    Ok(results)
}

async fn end(subject: Subject, session: &Session) -> Result<()> {
    let compared = subject.compare(session).await;
    subject.remove(session).await?;
    compared
}

fn work(setup: &Setup, updating: &Updating, seed: u64) -> Work {
    let Updating { blocks, stripes, .. } = *updating;
    Work {
        code: setup.code.clone(),
        block_len: setup.block_len * BLOCK_PARTS,
        update_len: setup.block_len,
        blocks,
        stripes,
        seed,
    }
}

/// Shapes the links. Those that differ are measured, so that plans use them.
async fn shape(session: &Session, testbed: &mut Testbed, updating: &Updating, quiet: bool) -> Result<()> {
    let Some(matrix) = &updating.places else { return Ok(()) };
    if testbed.settings().matrix.as_ref() != Some(matrix) {
        testbed.reshape(|it| *it = it.clone().with_matrix(matrix.clone()))?;
        probe(session, quiet).await?;
    }
    Ok(())
}

/// The expected time of a run relative to others, in deltas over one link.
pub(super) fn weight(code: &str, case: &Case) -> f64 {
    let racks = weft_codes::parse(code).map_or(1, |code| code.m());
    theory(case, racks, 1 << 20).unwrap_or(1.0)
}
