//! Stripes that end without some of their blocks. The blocks are rebuilt before or after the put's commit.

use crate::{
    commit_at,
    common::{open, prepare},
    leftovers_at, new_put,
};
use weft_meta::*;
use weft_types::{Ack, BlockState, DiskNumber, Home, Layout, NodeId, Owner, StripeLayout};

const LAYOUT: Layout = Layout { block_len: 1 << 20, cell_len: 1 << 20, alpha: 1 };

fn home(node: u32) -> Home {
    Home { node: NodeId(node), disk: DiskNumber(node) }
}

#[tokio::test]
async fn a_block_that_a_put_has_left_is_rebuilt_before_or_after_its_commit() {
    let dir = tempfile::tempdir().unwrap();
    let meta = open(&dir.path().join("metadata.sqlite"));
    let epoch = prepare(&meta).await;
    for committed_first in [false, true] {
        let new = NewUpload { layout: LAYOUT, ack: Ack { missing_max: 1 }, ..new_put() };
        let upload = meta.begin_put(epoch, new, vec![]).await.unwrap().0.id;
        let homes = vec![home(1), home(2), home(3)];
        let layout = StripeLayout { layout: LAYOUT, k: 2, m: 1, data_len: 2 << 20 };
        let new = NewStripe { number: 0, layout, homes: homes.clone() };
        let stripe = meta.allocate_stripes(epoch, upload, vec![new], leftovers_at(1)).await.unwrap().remove(0).id;
        let (index, copy, checksums) = (1, 0, vec![vec![1], vec![2], vec![3]]);
        let repair = NewRepair { stripe, index, copy, home: home(4), upload: None, term: None, expires_ms: 1000 };
        let early = meta.allocate_repair(epoch, repair).await.unwrap_err();
        assert!(matches!(early, MetaError::Conflict(_)), "the put is still writing the stripe: {early}");

        let states = [BlockState::Ok, BlockState::Missing, BlockState::Ok];
        let blocks = homes.iter().zip(states).map(|(home, state)| (1, *home, state)).collect();
        let end = EndStripe { upload, stripe, blocks, checksums: checksums.clone(), garbage_not_before_ms: 1 };
        assert!(meta.end_stripe(epoch, end, None).await.unwrap().0.incomplete);
        let of_put = meta.incomplete_of(Owner::Upload(upload), 0, 9).await.unwrap().items;
        assert_eq!((of_put.len(), meta.incomplete_stripes(None, 9).await.unwrap().items), (1, of_put));
        let block = meta.allocate_repair(epoch, repair).await.unwrap();
        let commit = async || meta.commit_put(epoch, upload, commit_at(2 << 20, 1)).await.unwrap();
        if committed_first {
            commit().await;
            assert_eq!(meta.incomplete_of(Owner::Object(upload), 0, 9).await.unwrap().items.len(), 1);
        }
        let stripe = meta.commit_repair(epoch, block, 1, checksums[1].clone(), 1).await.unwrap();
        assert!(!meta.stripe(stripe.id).await.unwrap().incomplete, "{stripe:?}");
        assert_eq!(meta.incomplete_stripes(None, 9).await.unwrap().items, []);
        if !committed_first {
            commit().await;
        }
        assert_eq!(meta.stripes(upload, 0, 9).await.unwrap().items[0].blocks[&1].home, home(4));
    }
    assert_eq!(meta.allocations().await.unwrap(), []);
}
