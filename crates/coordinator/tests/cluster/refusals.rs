//! Invalid requests are refused before anything is written, and the error says what is valid.

use crate::world::{SimulatedClock, World, data, seams};
use std::sync::Arc;
use tonic::Code;
use weft_client::{PutOptions, api};
use weft_coordinator::{Coordinator, CoordinatorConfig};
use weft_proto::{MemoryNet, Peer, Security, certs::Authority, from_status, rpc};
use weft_types::{ClusterId, Error, Reaction};

#[tokio::test(start_paused = true)]
async fn clients_are_told_what_would_be_right() {
    let world = World::new(5, 2).await;
    let put = async |bucket: &str, key: &str, code: &str, block_len: u64, cell_len: u64| -> Error {
        let options = PutOptions { code: code.into(), block_len, cell_len, ..PutOptions::default() };
        world.client.put(bucket, key, &b"bytes"[..], &options).await.unwrap_err()
    };
    let cases = [
        (put("nobody", "k", "", 0, 0).await, Reaction::NotFound, "weft bucket create nobody"),
        (put("b", "k", "rs(10,4)", 0, 0).await, Reaction::InvalidInput, "14 different nodes, and 5 of 5 nodes are up"),
        (put("b", "k", "", 0, 0).await, Reaction::InvalidInput, "9 different nodes"),
        (put("b", "k", "rs(3,2)", 1000, 300).await, Reaction::InvalidInput, "a block of 1000 is not a multiple of 4KiB"),
        (put("b", "k", "rs(3,2)", 20 << 10, 8 << 10).await, Reaction::InvalidInput, "does not divide"),
        (put("b", "k", "rs(3,2)", 1 << 50, 0).await, Reaction::InvalidInput, "at most 4GiB"),
        (put("b", "k", "rs(3)", 0, 0).await, Reaction::InvalidInput, "rs(k,m"),
        (put("b", "a\nb", "rs(3,2)", 0, 0).await, Reaction::InvalidInput, "control characters"),
        (put("B/", "k", "rs(3,2)", 0, 0).await, Reaction::InvalidInput, "is not a valid name for a bucket"),
        (world.client.stat("b", "k").await.unwrap_err(), Reaction::NotFound, "weft ls b"),
        (world.client.remove_policy("default").await.unwrap_err(), Reaction::InvalidInput, "is the default"),
        (world.client.create_bucket("b", "").await.unwrap_err(), Reaction::InvalidInput, "already"),
    ];
    for (error, reaction, part) in cases {
        assert!(error.reaction == reaction && error.message.contains(part), "{part} is not in: {error}");
    }
    assert_eq!(world.block_count(1..=5), 0);

    let options = PutOptions { code: "rs(3,2)".into(), block_len: 64 << 10, ..PutOptions::default() };
    world.client.put("b", "k", data(100_000, 1).as_slice(), &options).await.unwrap();
    let mut bare = world.bare_client().await;
    let range = |index, start, end| api::ReadStripeRequest {
        bucket: "b".into(),
        key: "k".into(),
        ranges: vec![api::BlockRange { index, start, end }],
        ..api::ReadStripeRequest::default()
    };
    for (asked, part) in [
        (range(3, 0, 1), "not a data block"),
        (range(0, 5, 5), "do not exist"),
        (range(1, 0, 1 << 40), "do not exist: it has 34464"),
        (api::ReadStripeRequest { number: 7, ..range(0, 0, 1) }, "no stripe 7"),
        (api::ReadStripeRequest { version: 99, ..range(0, 0, 1) }, "version 99"),
        (api::ReadStripeRequest { scheme: "pigeon".into(), ..range(0, 0, 1) }, "use auto, conventional"),
    ] {
        let error = from_status(&bare.read_stripe(asked).await.unwrap_err());
        assert!(error.message.contains(part), "{part} is not in: {error}");
    }
    let long = api::ListObjectsRequest { bucket: "b".into(), prefix: "p".repeat(64 << 10), ..api::ListObjectsRequest::default() };
    assert_eq!(bare.list_objects(long).await.unwrap_err().code(), Code::OutOfRange, "an overlong message was accepted");
    let status = bare.commit_put(api::CommitPutRequest { upload: 999, size: 1, put_key: Vec::new() }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn agents_that_do_not_belong_are_sent_away() {
    let world = World::new(1, 1).await;
    let mut member = world.bare_member().await;
    let cluster = world.coordinator().cluster().to_string();
    let good = weft_proto::v1::RegisterRequest {
        protocol: Some(weft_proto::PROTOCOL.into()),
        cluster: cluster.clone(),
        name: "node-77".into(),
        rack: "r".into(),
        zone: "z".into(),
        data_address: "127.0.0.1:1".into(),
        control_address: "127.0.0.1:1".into(),
        ..weft_proto::v1::RegisterRequest::default()
    };
    let status = world.client.status().await.unwrap();
    let wrong = |change: &dyn Fn(&mut weft_proto::v1::RegisterRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let cases = [
        (wrong(&|r| r.protocol = Some(api::ProtocolRange { oldest: 7, newest: 9 })), "versions 7 to 9"),
        (wrong(&|r| r.cluster = "00000000000000000000000000000001".into()), "belongs to cluster"),
        (wrong(&|r| r.name = "no name!".into()), "is not a valid name for a node"),
        (wrong(&|r| r.name = "node-01".into()), "is already up"),
        (wrong(&|r| r.node = 55), "never registered"),
        (wrong(&|r| r.rack = String::new()), "name of a rack"),
        (wrong(&|r| (r.incarnation, r.highest_epoch) = (status.incarnation.clone(), 99)), "old copy"),
    ];
    for (request, part) in cases {
        let error = from_status(&member.register(request).await.unwrap_err());
        assert!(error.message.contains(part), "{part} is not in: {error}");
    }
    assert_eq!(world.client.status().await.unwrap().nodes.len(), 1);

    let without_disks = member.register(good.clone()).await.unwrap().into_inner();
    let heartbeat = |of: &weft_proto::v1::RegisterReply, epoch| weft_proto::v1::HeartbeatRequest {
        node: of.node,
        epoch,
        ..weft_proto::v1::HeartbeatRequest::default()
    };
    member.heartbeat(heartbeat(&without_disks, without_disks.epoch)).await.unwrap();
    assert_eq!(world.up().await.len(), 1, "it is up when its disks are open");
    let disk = weft_proto::v1::Disk { id: "77".into(), path: "/77".into(), ..weft_proto::v1::Disk::default() };
    let registered = member.register(wrong(&|r| r.disks = vec![disk.clone()])).await.unwrap().into_inner();
    assert_eq!(
        (&registered.cluster, registered.protocol, registered.link_key.len()),
        (&cluster, weft_proto::PROTOCOL.newest.into(), 32)
    );
    member.heartbeat(heartbeat(&registered, registered.epoch)).await.unwrap();
    let stale = member.heartbeat(heartbeat(&registered, registered.epoch - 1)).await.unwrap_err();
    assert_eq!(stale.code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn certificates_say_who_may_call_what() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path(), ClusterId(7)).unwrap();
    let certificate = |peer: Peer| authority.issue(dir.path(), &peer).unwrap();
    certificate(Peer::Coordinator);
    let config = CoordinatorConfig {
        listen: "127.0.0.1:0".into(),
        dir: dir.path().join("coordinator"),
        cluster: Some(ClusterId(7)),
        certificates: Some(dir.path().into()),
        ..CoordinatorConfig::default()
    };
    let net = MemoryNet::default();
    let coordinator = Coordinator::start(config, seams(&net, SimulatedClock::default(), 1)).await.unwrap();
    let channel = async |peer: Peer| {
        let security = Security::load(&certificate(peer)).unwrap();
        rpc::connect(Arc::new(net.clone()), &security, coordinator.address(), &Peer::Coordinator).await.unwrap()
    };
    let (client, agent) = (channel(Peer::Client).await, channel(Peer::Agent("node-01".into())).await);
    let register = |name: &str| api::RegisterRequest {
        protocol: Some(weft_proto::PROTOCOL.into()),
        name: name.into(),
        rack: "r".into(),
        zone: "z".into(),
        data_address: "127.0.0.1:1".into(),
        control_address: "127.0.0.1:1".into(),
        ..api::RegisterRequest::default()
    };

    rpc::weft_client(client.clone()).status(api::StatusRequest::default()).await.unwrap();
    let refused = rpc::weft_client(agent.clone()).status(api::StatusRequest::default()).await.unwrap_err();
    assert!(refused.message().contains("is not a client"), "{refused}");
    let refused = rpc::membership_client(client).register(register("node-01")).await.unwrap_err();
    assert!(refused.message().contains("a client is not an agent"), "{refused}");
    let refused = rpc::membership_client(agent.clone()).register(register("node-02")).await.unwrap_err();
    assert!(refused.message().contains("has another name"), "{refused}");
    let registered = rpc::membership_client(agent).register(register("node-01")).await.unwrap().into_inner();

    let stranger = channel(Peer::Agent("node-03".into())).await;
    let heartbeat = api::HeartbeatRequest { node: registered.node, epoch: registered.epoch, ..api::HeartbeatRequest::default() };
    let refused = rpc::membership_client(stranger).heartbeat(heartbeat).await.unwrap_err();
    assert!(refused.message().contains("cannot send heartbeats for node node-01"), "{refused}");
}
