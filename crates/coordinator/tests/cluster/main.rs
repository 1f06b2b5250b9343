//! A whole cluster on loopback: what a client asks of the coordinator, and what becomes of it on the nodes.

mod corruption;
mod failures;
mod fake_agent;
mod given_up;
mod links;
mod orphans;
mod refusals;
mod restarts;
mod slow_net;
mod world;

use weft_client::{PutOptions, RepairOptions};
use world::{World, data};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_is_there_and_what_is_removed_leaves_nothing() {
    let world = World::new(7, 4).await;
    let (big, small) = (data(5 << 20, 1), data(10, 2));
    let put = world.put("big", &big).await.unwrap();
    assert_eq!((put.size, put.stripe_count, put.code.as_str()), (5 << 20, 3, "rs(4,2)"));
    world.put("small", &small).await.unwrap();
    world.put("nothing", &[]).await.unwrap();
    assert_eq!(world.get("big", "").await.unwrap().0, big);
    assert_eq!(world.get("small", "").await.unwrap().0, small);
    assert!(world.get("nothing", "").await.unwrap().0.is_empty());
    assert_eq!(world.not_ok("big").await, []);
    for stripe in world.stat("big").await.stripes {
        let mut nodes: Vec<u32> = stripe.blocks.iter().map(|block| block.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 6, "one block per node");
        for rack in ["r0", "r1", "r2", "r3"] {
            assert!(stripe.blocks.iter().filter(|block| block.rack == rack).count() <= 2, "rs(4,2) survives the loss of a rack");
        }
        assert!(stripe.blocks.iter().all(|block| block.units.len() as u64 == block.len.div_ceil(1 << 20)));
    }
    assert_eq!(world.block_count(1..=7), 3 * 6 + 6);

    let other = data(3 << 20, 3);
    let again = world.put("big", &other).await.unwrap();
    assert!(again.version > put.version);
    assert_eq!(world.get("big", "").await.unwrap().0, other);
    world.until("the old blocks are gone", async |world| world.block_count(1..=7) == 2 * 6 + 6).await;
    for key in ["big", "small", "nothing"] {
        world.client.remove("b", key).await.unwrap();
    }
    world.until("all blocks are gone", async |world| world.block_count(1..=7) == 0).await;
    world.client.remove_bucket("b").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explaining_does_nothing() {
    let world = World::new(6, 3).await;
    let options = PutOptions { code: "RS-4-2-1024k".into(), ..PutOptions::default() };
    let explained = world.client.explain_put("b", "k", 1 << 20, &options).await.unwrap();
    assert_eq!((explained.code.as_str(), explained.cell_len), ("rs(4,2)", 1 << 20));
    let saved = weft_plan::from_json(std::str::from_utf8(&explained.plan).unwrap()).unwrap();
    assert_eq!(saved.plan.binding.stores.len(), 6);
    assert_eq!(world.block_count(1..=6), 0);

    world.put("k", &data(1 << 20, 4)).await.unwrap();
    let before = world.stat("k").await;
    for scheme in ["conventional", "ppr", "pipeline"] {
        let options = RepairOptions { blocks: vec![1], scheme: scheme.into(), explain: true, ..RepairOptions::default() };
        let mut repair = world.client.repair("b", "k", &options).await.unwrap();
        let event = repair.next().await.unwrap().unwrap().event.unwrap();
        let weft_client::api::repair_event::Event::Plan(plan) = event else { panic!("not a plan: {event:?}") };
        assert_eq!(plan.lost, [1]);
        let saved = weft_plan::from_json(std::str::from_utf8(&plan.plan).unwrap()).unwrap();
        let code = weft_codes::parse("rs(4,2)").unwrap();
        let view = weft_plan::CodeView { spec: "rs(4,2)", k: 4, n: 6, alpha: 1, generator: code.generator(), tolerance: 2 };
        weft_plan::verify(&saved.plan, view, &saved.job).unwrap();
    }
    assert_eq!(world.stat("k").await, before);
    assert_eq!(world.block_count(1..=6), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_explained_is_what_is_done() {
    let world = World::new(12, 3).await;
    for key in 0..4 {
        let key = format!("k{key}");
        world.put(&key, &data(1 << 20, 5)).await.unwrap();
        let explained = world.explained_target(&key, 1).await;
        let done = world.repair(&key, &world::block(1, None)).await.unwrap();
        assert_eq!(done.blocks[0].node, explained, "{key}");
    }
}
