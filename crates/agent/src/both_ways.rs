//! How the slices of a conversion pass the node's uplink and downlink, as those of tasks do.

use crate::{line::Passage, throttle::Throttles, traffic::Traffic};
use async_trait::async_trait;
use weft_engine::Hold;
use weft_plan::Precedence;
use weft_proto::{ExtraStall, NodeLink};

/// The way of a conversion's slices through the node's uplink and downlink.
pub(crate) struct BothWays {
    uplink: Passage,
    downlink: Passage,
    extra_stall: ExtraStall,
    traffic: Traffic,
}

impl BothWays {
    pub(crate) fn new(throttles: &Throttles, of: Precedence, extra_stall: ExtraStall, traffic: Traffic) -> Self {
        let hold = Hold::default();
        let [uplink, downlink] =
            [&throttles.uplink, &throttles.downlink].map(|line| Passage::new(line, of).of_port(hold.clone()));
        Self { uplink, downlink, extra_stall, traffic }
    }
}

#[async_trait]
impl NodeLink for BothWays {
    async fn send(&self, bytes: u64) {
        self.uplink.pass(bytes).await;
        self.traffic.sent.add(bytes);
    }

    async fn received(&self, bytes: u64) {
        self.traffic.received.add(bytes);
        self.downlink.received(bytes).await;
    }

    fn is_held_back(&self) -> bool {
        self.uplink.hold.is_held_back()
    }

    fn extra_stall(&self) -> ExtraStall {
        self.extra_stall.clone()
    }
}
