//! What is done under faults: how each kind of work begins, goes on and ends, what clients do meanwhile, and what must hold when it is done.

use super::{OBJECTS, Story, faults::Fault};
use crate::{BLOCK_LEN, BUCKET, CELL_LEN, CODE, some_bytes};
use rand::{Rng, seq::IteratorRandom};
use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};
use weft_client::{
    ConvertOptions, GetOptions, JobChange, PutOptions, RepairNodeOptions, RepairOptions,
    api::{Job, ScrubReport},
};
use weft_tests::{Deed, Failure, agent_name};
use weft_types::{BlockId, NodeId, Reaction, StripeId};

/// The period of the scrub in the background, where it is the work.
pub(super) const SCRUB_PERIOD: Duration = Duration::from_secs(15);
/// How long the client waits between two looks at the work.
const PAUSE: Duration = Duration::from_millis(500);
/// For how many looks the work goes on that no job does, at most.
const LOOKS: u32 = 40;
/// How many scrubs follow one another.
const SCRUBS: u32 = 3;
/// Attempts of a call that a coordinator may not answer.
const ATTEMPTS: u32 = 60;

/// What is done under faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The repair of a node that is down.
    RepairNode,
    /// The healer replaces a lost node.
    Heal,
    /// The blocks of a node that is up are moved by a job.
    Move,
    /// All objects are converted, and back.
    Convert,
    /// A node is drained, and then removed or used again.
    Drain,
    /// A node that is empty gets its share.
    Balance,
    /// All is checked by jobs, while clients put, remove, repair and convert.
    Scrub,
    /// The same, in the background.
    ScrubAlways,
}

/// Those at the beginning have their turn with few seeds, too.
pub(super) const WORKS: [Work; 8] =
    [Work::Drain, Work::Scrub, Work::Balance, Work::ScrubAlways, Work::RepairNode, Work::Heal, Work::Move, Work::Convert];

impl Work {
    /// About how many lines of the trace it takes without faults.
    pub(super) fn steps(self) -> usize {
        match self {
            Self::RepairNode | Self::Move | Self::Balance => 500,
            Self::Heal | Self::Drain => 900,
            Self::Convert | Self::Scrub => 5_500,
            Self::ScrubAlways => 9_000,
        }
    }

    pub(super) fn is_scrub(self) -> bool {
        matches!(self, Self::Scrub | Self::ScrubAlways)
    }
}

/// Begins the work, and goes on until it has ended or the faults keep it from it.
impl Story {
    /// Begins; returns the job, if one does the work.
    pub(super) async fn begin(&mut self) -> Result<Option<Job>, Failure> {
        match self.case.work {
            Work::Heal => {
                self.until("the node is lost", 60, async |story| story.state_of(story.victim).await == "lost").await?;
                Ok(None)
            }
            Work::Drain => self.set_drain(true).await.map(|()| None),
            Work::ScrubAlways => Ok(None),
            _ => self.begin_job("triple").await.map(Some),
        }
    }

    pub(super) async fn go_on(&mut self, mut job: Option<Job>) -> Result<(), Failure> {
        if self.case.work.is_scrub() && self.rng.random() {
            // The answer may be lost, or the coordinator dead: then nothing is converted.
            let begun = self.client.convert(BUCKET, "", "triple", &ConvertOptions::default()).await;
            self.converts = true;
            self.note(format_args!("a conversion begins, too: {:?}", begun.map(|job| job.id)));
        }
        let (mut look, mut scrubs) = (0, 1);
        loop {
            look += 1;
            if self.is_cancelled.swap(false, Ordering::Relaxed) {
                self.cancel(job.as_ref()).await?;
            }
            match &job {
                Some(now) => {
                    if let Some(ended) = self.has_ended(now.id).await? {
                        if self.case.work != Work::Scrub || scrubs == SCRUBS {
                            return Ok(());
                        }
                        self.check_scrub(&ended)?;
                        scrubs += 1;
                        job = Some(self.begin_job("").await?);
                    } else if look == 15 * LOOKS {
                        return Err(Failure(format!("the job does not end: {:?}", self.client.job(now.id).await)));
                    }
                }
                None if look == LOOKS || self.case.work == Work::Drain && self.is_drained().await? => return Ok(()),
                None => {}
            }
            self.meanwhile().await?;
            self.check_named().await?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Begins the job. The coordinator may not know yet that the node is down, and its answer may be lost.
    pub(super) async fn begin_job(&mut self, policy: &str) -> Result<Job, Failure> {
        self.insisted("the job cannot be started", async |story| match story.case.work {
            Work::Convert => story.client.convert(BUCKET, "", policy, &ConvertOptions::default()).await,
            Work::Balance => story.client.balance(0).await,
            Work::Scrub => story.client.scrub("", "", None, 1).await,
            work => {
                let options = RepairNodeOptions { force: work == Work::Move, ..RepairNodeOptions::default() };
                story.client.repair_node(story.node, &options).await
            }
        })
        .await
    }

    /// The job, if it has ended.
    async fn has_ended(&mut self, id: u64) -> Result<Option<Job>, Failure> {
        let Ok(job) = self.client.job(id).await else { return Ok(None) };
        if job.stripes_under_way > 0 || matches!(job.state.as_str(), "running" | "paused") {
            return Ok(None);
        }
        self.note(format_args!("the job is {}: {}", job.state, job.last_error));
        match job.state.as_str() {
            "failed" if job.last_error.is_empty() => Err(Failure(format!("the job failed and does not say why: {job:?}"))),
            _ => Ok(Some(job)),
        }
    }

    /// Waits for the end of a job.
    pub(super) async fn ended(&mut self, id: u64) -> Result<Job, Failure> {
        for _ in 0..15 * LOOKS {
            if let Some(job) = self.has_ended(id).await? {
                return Ok(job);
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(Failure(format!("the job does not end: {:?}", self.client.job(id).await)))
    }

    /// An operator ends the work, if it has not ended.
    async fn cancel(&mut self, job: Option<&Job>) -> Result<(), Failure> {
        match job {
            Some(job) => {
                let changed = self.insisted("the job cannot be cancelled", async |story| {
                    match story.client.change_job(job.id, JobChange::Cancel).await {
                        Err(error) if error.reaction == Reaction::InvalidInput => Ok(None),
                        changed => changed.map(Some),
                    }
                });
                let state = changed.await?.map_or_else(|| "ended before".to_owned(), |job| job.state);
                self.note(format_args!("the job is cancelled: {state}"));
                Ok(())
            }
            None if self.case.work == Work::Drain => self.set_drain(false).await,
            None => Ok(()),
        }
    }

    /// Repeats a call whose answer may be lost, until it succeeds.
    async fn insisted<T>(&mut self, what: &str, call: impl AsyncFn(&Self) -> Result<T, weft_types::Error>) -> Result<T, Failure> {
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match call(self).await {
                Ok(done) => return Ok(done),
                Err(error) => why = error.to_string(),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(Failure(format!("{what}: {why}")))
    }
}

/// Drains.
impl Story {
    /// Begins or ends the drain of the victim.
    pub(super) async fn set_drain(&mut self, on: bool) -> Result<(), Failure> {
        let set = async |story: &Self| story.client.drain(story.node, "", Some(on), false).await;
        let set = self.insisted("the drain cannot be set", set);
        let reply = set.await?;
        self.note(format_args!("the drain is {}, {:?}", reply.on, reply.draining));
        self.drains = on;
        if reply.on == on { Ok(()) } else { Err(Failure(format!("the drain was to be {on}: {reply:?}"))) }
    }

    /// Whether the drain says that the victim may be switched off. Then it must have no block.
    async fn is_drained(&mut self) -> Result<bool, Failure> {
        let node = self.node;
        let Ok(reply) = self.client.drain(node, "", None, false).await else { return Ok(false) };
        if reply.on != self.drains {
            return Err(Failure(format!("the drain of {node} should be {}: {reply:?}", self.drains)));
        }
        let left = reply.draining.unwrap_or_default();
        if !reply.on || left.blocks + left.allocations > 0 {
            return Ok(false);
        }
        for key in self.known.objects.keys() {
            let Ok(stat) = self.client.stat(BUCKET, key).await else { continue };
            let blocks = stat.stripes.iter().flat_map(|stripe| stripe.blocks.iter().chain(&stripe.copies));
            if blocks.into_iter().any(|block| NodeId(block.node) == node) {
                return Err(Failure(format!("{node} is said to be empty, and has a block of {key}")));
            }
        }
        Ok(true)
    }

    async fn until_drained(&mut self) -> Result<(), Failure> {
        for _ in 0..10 * LOOKS {
            if self.is_drained().await? {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        let (left, health) = (self.client.drain(self.node, "", None, false).await, self.client.health().await);
        Err(Failure(format!("the drain does not end: {left:?}; {:?}", health.map(|health| health.healing))))
    }

    /// The victim is switched off and removed, as the drain allows.
    async fn remove_victim(&mut self) -> Result<(), Failure> {
        self.now(Deed::Kill(agent_name(self.victim)));
        self.hand.idle().await;
        self.until("it is down", 60, async |story| story.state_of(story.victim).await == "down").await?;
        let removed = self.client.remove_node(self.node).await;
        self.note(format_args!("the node is removed: {removed:?}"));
        removed.map_err(|error| Failure(format!("a drained node cannot be removed: {error}")))?;
        self.is_removed = true;
        match self.node_of(self.victim).await {
            Ok(node) => Err(Failure(format!("{node} was removed and is still listed"))),
            Err(_) => Ok(()),
        }
    }
}

/// What holds when the faults are over, all nodes are back, and all is whole again.
impl Story {
    /// What the work has given up, another one does now.
    pub(super) async fn work_again(&mut self) -> Result<(), Failure> {
        match self.case.work {
            Work::RepairNode | Work::Heal => Ok(()),
            Work::Move => self.job_done("").await,
            Work::Convert => self.job_done("coded").await,
            Work::Balance => {
                self.until("the disks tell that they have space again", 30, async |story| story.have_space().await).await?;
                self.job_done("").await?;
                self.check_even().await
            }
            Work::Drain => {
                if !self.drains {
                    self.set_drain(true).await?;
                }
                self.until_drained().await?;
                if self.rng.random() { self.remove_victim().await } else { self.set_drain(false).await }
            }
            Work::Scrub | Work::ScrubAlways => self.find_what_flipped().await,
        }
    }

    async fn job_done(&mut self, policy: &str) -> Result<(), Failure> {
        let job = self.begin_job(policy).await?;
        let ended = self.ended(job.id).await?;
        if ended.state == "done" { Ok(()) } else { Err(Failure(format!("without faults, the job ended as {ended:?}"))) }
    }

    async fn have_space(&self) -> bool {
        let disks = self.nodes().await.into_iter().flat_map(|node| node.disks);
        disks.into_iter().all(|disk| disk.free_bytes > disk.total_bytes / 4)
    }

    /// After a balance, no disk has more or less than its share by more than a block.
    async fn check_even(&mut self) -> Result<(), Failure> {
        let plan = self.client.explain_balance(0).await?;
        let mean = plan.disks.iter().map(|disk| disk.bytes).sum::<u64>() / plan.disks.len().max(1) as u64;
        let uneven = |bytes: u64| bytes.abs_diff(mean) > BLOCK_LEN;
        match plan.disks.iter().find(|disk| uneven(disk.bytes)) {
            Some(disk) => Err(Failure(format!("{} has {} bytes, and the mean is {mean}: {plan:?}", disk.name, disk.bytes))),
            None => Ok(()),
        }
    }

    /// All jobs have ended, and those that did not do all say why.
    pub(super) async fn check_jobs(&mut self) -> Result<(), Failure> {
        for job in self.client.jobs().await? {
            let is_ended =
                matches!(job.state.as_str(), "done" | "cancelled") || job.state == "failed" && !job.last_error.is_empty();
            if !is_ended || job.stripes_under_way > 0 {
                return Err(Failure(format!("a job is left: {job:?}")));
            }
        }
        Ok(())
    }
}

/// Scrubs.
impl Story {
    /// A bit flips on some disk: the next scrub names the block, and it is rebuilt.
    async fn find_what_flipped(&mut self) -> Result<(), Failure> {
        let key = self.known.objects.keys().choose(&mut self.rng).cloned().unwrap_or_default();
        let stripes = self.client.stat(BUCKET, &key).await?.stripes;
        let Some((number, stripe)) = (0..).zip(&stripes).choose(&mut self.rng) else { return Ok(()) };
        let Some(block) = stripe.blocks.iter().choose(&mut self.rng) else { return Ok(()) };
        let (index, copy) = (block.index as u8, block.copy as u8);
        let id = BlockId { stripe: StripeId(stripe.id), index, copy, generation: block.generation };
        let agent = self.agent_of(block.node).await?;
        self.now(Deed::Rot(agent, Some(id)));
        self.hand.idle().await;
        let reports = match self.case.work {
            Work::ScrubAlways => self.passed().await?,
            _ => {
                let job = self.begin_job("").await?;
                self.ended(job.id).await?.scrubbed.into_iter().collect()
            }
        };
        let names = format!("{BUCKET}/{key}");
        let is_it = |report: &ScrubReport| {
            report.wrong.iter().any(|it| it.object == names && it.stripe == number && it.index == Some(block.index))
        };
        if reports.iter().any(is_it) { Ok(()) } else { Err(Failure(format!("no scrub has found {id} of {names}: {reports:?}"))) }
    }

    /// Waits for the end of a pass that begins from now on. Returns all reports until then.
    async fn passed(&mut self) -> Result<Vec<ScrubReport>, Failure> {
        let (mut begun, mut reports) = (BTreeSet::new(), Vec::new());
        for _ in 0..10 * LOOKS {
            if let Some(scrub) = self.client.health().await?.scrub {
                begun.insert(scrub.last_began_ms);
                reports.extend(scrub.report.into_iter().chain(scrub.last_report));
                // The last pass before now, one that was running, and one that began later.
                if begun.len() >= 3 {
                    return Ok(reports);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(Failure(format!("the scrub in the background does not go on: {:?}", self.client.health().await?.scrub)))
    }

    /// Checks all once more: every stripe counts once. What the work was to find is not there any more.
    pub(super) async fn scrub_all(&mut self) -> Result<(), Failure> {
        let job = self.insisted("a scrub cannot be started", async |story| story.client.scrub("", "", None, 0).await).await?;
        let ended = self.ended(job.id).await?;
        let tally = ended.scrubbed.clone().unwrap_or_default().tally.unwrap_or_default();
        let mut stripes = 0;
        for key in self.known.objects.keys() {
            stripes += self.client.stat(BUCKET, key).await?.stripes.len() as u64;
        }
        let is_right = ended.state == "done" && tally.stripes == stripes && tally.inconsistent_stripes == 0;
        let finds = tally.wrong_blocks > 0 && self.case.work.is_scrub();
        if is_right && !finds { Ok(()) } else { Err(Failure(format!("of {stripes} stripes, a scrub says {ended:?}"))) }
    }

    /// A scrub that met changes counts no stripe twice, and calls nothing wrong that no fault has spoiled.
    fn check_scrub(&self, ended: &Job) -> Result<(), Failure> {
        let tally = ended.scrubbed.clone().unwrap_or_default().tally.unwrap_or_default();
        let (one, other) = self.case.faults;
        let spoils = |fault: Fault| matches!(fault, Fault::Lying | Fault::Spoiling | Fault::Rot | Fault::Broken | Fault::Full);
        let is_wrong = tally.inconsistent_stripes > 0 || tally.wrong_blocks > 0 && ![one, other].into_iter().any(spoils);
        // A stripe with four data blocks becomes four stripes with copies of one.
        let most = (3 * OBJECTS as u64 + self.puts) * if self.converts { 5 } else { 1 };
        if is_wrong || tally.stripes > most {
            return Err(Failure(format!("of {most} stripes at most, a scrub says {ended:?}")));
        }
        Ok(())
    }
}

/// What clients do meanwhile.
impl Story {
    /// They read; beside a scrub, they also put, remove and repair.
    async fn meanwhile(&mut self) -> Result<(), Failure> {
        match self.rng.random_range(0..5) {
            0 if self.case.work.is_scrub() => self.put_another().await,
            1 if self.case.work.is_scrub() => self.remove_one().await,
            2 if self.case.work.is_scrub() => self.repair_one().await,
            _ => self.read().await,
        }
    }

    /// Reads an object. That may fail while too much is out of reach, but must not return other bytes.
    async fn read(&mut self) -> Result<(), Failure> {
        let key = format!("object-{}", self.rng.random_range(0..OBJECTS));
        let (mut bytes, options) = (Vec::new(), GetOptions::default());
        let got = tokio::time::timeout(Duration::from_secs(5), self.client.get(BUCKET, &key, &mut bytes, &options)).await;
        let expected = self.known.objects.get(&key).map(Vec::as_slice).unwrap_or_default();
        match got {
            Ok(Ok(_)) if bytes != expected => Err(Failure(format!("{key} has other bytes than were put"))),
            // What was returned before an error is right, too.
            _ if !expected.starts_with(&bytes) => Err(Failure(format!("{key} has other bytes, before an error"))),
            _ => Ok(()),
        }
    }

    /// Puts an object of one stripe. That may fail; then it is not known whether it is there.
    async fn put_another(&mut self) -> Result<(), Failure> {
        self.puts += 1;
        let key = format!("another-{}", self.puts);
        let len = self.rng.random_range(1..4 * BLOCK_LEN as usize);
        let bytes = some_bytes(&mut self.rng, len);
        let options = PutOptions { code: CODE.into(), block_len: BLOCK_LEN, cell_len: CELL_LEN, ..PutOptions::default() };
        let put = self.client.put(BUCKET, &key, &bytes[..], &options).await;
        self.note(format_args!("put {key}: {:?}", put.as_ref().map(drop)));
        let puts = if put.is_ok() { &mut self.known.objects } else { &mut self.known.unknown };
        puts.insert(key, bytes);
        Ok(())
    }

    /// Removes one of these objects.
    async fn remove_one(&mut self) -> Result<(), Failure> {
        let others = self.known.objects.keys().filter(|key| key.starts_with("another-"));
        let Some(key) = others.choose(&mut self.rng).cloned() else { return Ok(()) };
        let Some(bytes) = self.known.objects.remove(&key) else { return Ok(()) };
        let removed = self.client.remove(BUCKET, &key).await;
        self.note(format_args!("remove {key}: {:?}", removed.as_ref().map(drop)));
        if removed.is_err() {
            self.known.unknown.insert(key, bytes);
        }
        Ok(())
    }

    /// Rebuilds a block that need not be lost.
    async fn repair_one(&mut self) -> Result<(), Failure> {
        let key = format!("object-{}", self.rng.random_range(0..OBJECTS));
        let options = RepairOptions { blocks: vec![self.rng.random_range(0..3)], ..RepairOptions::default() };
        if let Ok(mut repair) = self.client.repair(BUCKET, &key, &options).await {
            while let Ok(Some(_)) = repair.next().await {}
        }
        Ok(())
    }

    /// Waits for the conversion, and removes the objects of which it is not known whether they are there.
    pub(super) async fn settle(&mut self) -> Result<(), Failure> {
        let running =
            async |story: &Self| story.client.jobs().await.map(|jobs| jobs.into_iter().find(|job| job.state == "running"));
        while let Some(job) = self.insisted("there is no list of jobs", running).await? {
            self.ended(job.id).await?;
        }
        let unknown: Vec<String> = self.known.unknown.keys().cloned().collect();
        for key in unknown {
            let removed =
                self.insisted("an object cannot be removed", async |story| match story.client.remove(BUCKET, &key).await {
                    Err(error) if error.reaction == Reaction::NotFound => Ok(()),
                    removed => removed.map(drop),
                });
            removed.await?;
            self.known.unknown.remove(&key);
        }
        Ok(())
    }
}
