//! After any operations, the database and a model in memory hold the same metadata.

use crate::common::{Model, apply, draw, dump, open, prepare};
use proptest::prelude::*;
use rand::{SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use weft_meta::{Meta, MetaError, SqliteMeta, Totals};
use weft_types::{Epoch, Owner, StripeId, StripeRecord};

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
    let mut followed = Followed::all(&meta).await;
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
            followed.catch_up(&meta).await;
            assert_eq!(followed, Followed::all(&meta).await, "after step {step}: {op:?}");
        }
        if step == 75 {
            drop(meta);
            meta = open(&path);
            model.opened = (model.epoch, model.stripes_high_water);
            followed = Followed::all(&meta).await;
        }
    }
    let totals = meta.totals().await.unwrap();
    let objects = model.objects.values();
    assert_eq!((totals.objects, totals.data_bytes), (model.objects.len() as u64, objects.map(|object| object.size).sum()));
}

/// The stripes of all objects, as one knows them who follows the changes.
#[derive(Debug, PartialEq, Eq)]
struct Followed(BTreeMap<StripeId, StripeRecord>);

impl Followed {
    /// Read as a whole. The totals must agree.
    async fn all(meta: &SqliteMeta) -> Self {
        let (mut all, mut after, mut more) = (BTreeMap::new(), None, true);
        while more {
            let page = meta.object_stripes(after, 3).await.unwrap();
            assert!(page.items.iter().all(|stripe| matches!(stripe.owner, Owner::Object(_))));
            (after, more) = (page.items.last().map(|stripe| stripe.id), page.more);
            all.extend(page.items.into_iter().map(|stripe| (stripe.id, stripe)));
        }
        let by_code = meta.totals_by_code().await.unwrap();
        assert_eq!(by_code.iter().map(|(_, of)| of.stripes).sum::<u64>(), all.len() as u64);
        let by_bucket = meta.totals_by_bucket().await.unwrap();
        assert!(by_bucket.iter().all(|(.., of)| of.objects > 0));
        for (code, of) in &by_code {
            let in_buckets: Vec<&Totals> = by_bucket.iter().filter(|(_, it, _)| it == code).map(|(.., of)| of).collect();
            let sum = |get: fn(&Totals) -> u64| in_buckets.iter().map(|of| get(of)).sum::<u64>();
            assert_eq!(
                (sum(|of| of.objects), sum(|of| of.stripes), sum(|of| of.data_bytes)),
                (of.objects, of.stripes, of.data_bytes)
            );
        }
        assert_eq!(meta.totals().await.unwrap().stripes, all.len() as u64);
        Self(all)
    }

    async fn catch_up(&mut self, meta: &SqliteMeta) {
        loop {
            let changed = meta.changed_stripes(2).await.unwrap();
            if changed.is_empty() {
                return;
            }
            changed.iter().for_each(|id| drop(self.0.remove(id)));
            let found = meta.find_stripes(changed).await.unwrap();
            self.0.extend(found.into_iter().map(|stripe| (stripe.id, stripe)));
        }
    }
}
