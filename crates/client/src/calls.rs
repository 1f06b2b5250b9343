//! Calls to the coordinator: always with a deadline, and retried where that is safe.

use crate::config::Limits;
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use tonic::{Request, Response, Status, transport::Channel};
use weft_proto::{from_status, rpc, v1::weft_client::WeftClient};
use weft_types::{Reaction, Result};

/// Calls to the coordinator.
#[derive(Clone)]
pub(crate) struct Calls {
    client: WeftClient<Channel>,
    limits: Limits,
    random: Random,
    delegation: Option<u64>,
}

/// A seeded generator with many users.
#[derive(Clone)]
pub(crate) struct Random(Arc<Mutex<StdRng>>);

/// The pause before the first retry; each further pause is up to twice as long, up to …
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// … this.
const PAUSE_MAX: Duration = Duration::from_secs(2);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).random()
    }

    /// The pause before the attempt after `attempt` others; random, so clients do not retry at the same time.
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
        let longest = PAUSE_MIN.saturating_mul(1 << attempt.min(16)).min(PAUSE_MAX);
        longest.mul_f64(0.5 + (self.number() % 1000) as f64 / 2000.0)
    }
}

impl Calls {
    pub(crate) fn new(channel: Channel, limits: Limits, random: Random, delegation: Option<u64>) -> Self {
        Self { client: rpc::weft_client(channel), limits, random, delegation }
    }

    /// One call without retries.
    pub(crate) async fn once<M, R, F>(&self, message: M, call: impl FnOnce(WeftClient<Channel>, Request<M>) -> F) -> Result<R>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        self.within(self.limits.call_timeout, message, call).await
    }

    /// One call without retries, with its own deadline.
    pub(crate) async fn within<M, R, F>(
        &self,
        deadline: Duration,
        message: M,
        call: impl FnOnce(WeftClient<Channel>, Request<M>) -> F,
    ) -> Result<R>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let mut request = rpc::with_deadline(message, deadline);
        if let Some(delegation) = self.delegation {
            request = rpc::delegated(request, delegation);
        }
        call(self.client.clone(), request).await.map(Response::into_inner).map_err(|status| from_status(&status))
    }

    /// A call that is safe to repeat: retries it while the coordinator is busy or unreachable, as long as the client's patience lasts.
    pub(crate) async fn ask<M, R, F>(&self, message: M, call: impl Fn(WeftClient<Channel>, Request<M>) -> F) -> Result<R>
    where
        M: Clone,
        F: Future<Output = Result<Response<R>, Status>>,
    {
        self.ask_within(self.limits.call_timeout, message, call).await
    }

    /// Like [`ask`](Self::ask), with its own deadline for each call. Patience counts from the first failure.
    pub(crate) async fn ask_within<M, R, F>(
        &self,
        deadline: Duration,
        message: M,
        call: impl Fn(WeftClient<Channel>, Request<M>) -> F,
    ) -> Result<R>
    where
        M: Clone,
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let mut until = None;
        let mut attempt = 0;
        loop {
            match self.within(deadline, message.clone(), &call).await {
                Err(error) if error.reaction == Reaction::Retry => {
                    let pause = self.random.pause(attempt);
                    let now = Instant::now();
                    if now + pause >= *until.get_or_insert(now + self.limits.patience) {
                        return Err(error);
                    }
                    tokio::time::sleep(pause).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    /// A call that is answered by a stream of messages, without a deadline.
    pub(crate) async fn stream<M, R, F>(&self, message: M, call: impl FnOnce(WeftClient<Channel>, Request<M>) -> F) -> Result<R>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let answer = call(self.client.clone(), Request::new(message));
        match tokio::time::timeout(self.limits.call_timeout, answer).await {
            Ok(answer) => answer.map(Response::into_inner).map_err(|status| from_status(&status)),
            Err(_) => {
                let message = format!("the coordinator did not answer within {:?}", self.limits.call_timeout);
                Err(weft_types::Error::retry(message))
            }
        }
    }
}
