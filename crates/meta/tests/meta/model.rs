//! After any operations, the database and a model in memory hold the same metadata.

use crate::common::{Model, apply, draw, dump, open, prepare};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use weft_meta::{Meta, MetaError};
use weft_types::Epoch;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_metadata_say_what_the_model_says(seed: u64) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run(seed));
    }
}

async fn run(seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.sqlite");
    let mut meta = open(&path);
    let mut epoch = prepare(&meta).await;
    let mut model = Model { epoch: epoch.0, ..Model::default() };
    let mut random = StdRng::seed_from_u64(seed);
    for step in 0..150 {
        let op = draw(&model, &mut random);
        let expected = model.clone().apply(&op);
        let done = apply(&meta, epoch, &op).await;
        assert_eq!(done.is_ok(), expected.is_some(), "step {step}: {op:?}: {done:?}");
        if expected.is_some() {
            model.apply(&op);
        }
        epoch = Epoch(model.epoch);
        // The leader of an earlier epoch cannot change anything.
        if epoch.0 > 1 && !matches!(op, crate::common::Op::Lead) {
            let stale = apply(&meta, Epoch(epoch.0 - 1), &op).await;
            assert_eq!(stale, Err(MetaError::StaleLeader { held: Epoch(epoch.0 - 1), current: epoch }));
        }
        if step % 10 == 9 {
            assert_eq!(dump(&meta).await, model.visible(), "after step {step}: {op:?}");
        }
        if step == 75 {
            drop(meta);
            meta = open(&path);
        }
    }
    let totals = meta.totals().await.unwrap();
    let objects = model.objects.values();
    assert_eq!((totals.objects, totals.data_bytes), (model.objects.len() as u64, objects.map(|object| object.size).sum()));
}
