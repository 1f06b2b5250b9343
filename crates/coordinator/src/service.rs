//! The service for clients.

use crate::{
    copies, damage,
    delegations::{Delegation, Who},
    departures, drain, garbage, healer, health, jobs, limit, links, objects, puts, read, repair,
    shared::Shared,
    show, space, tasks,
    updates::{append, open, routes},
    validate,
};
use futures::future::BoxFuture;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use weft_meta::MetaError;
use weft_proto::{rpc, to_status, v1};
use weft_types::{Error, Result, UploadId};

/// The service for clients.
pub(crate) struct WeftService {
    shared: Arc<Shared>,
}

impl WeftService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// What a client asks, or an agent with a delegation for just this.
    fn asked_by<T>(&self, request: Request<T>, may: impl FnOnce(&Delegation, &T) -> bool) -> Result<(T, Who), Status> {
        let caller = rpc::caller(&request);
        let Some(number) = rpc::delegation(&request) else {
            return Ok((request.into_inner(), Who { caller, delegation: None }));
        };
        let asked = request.into_inner();
        let delegation =
            self.shared.delegations.get(number).filter(|delegation| delegation.is_of(&caller.peer) && may(delegation, &asked));
        let delegation = delegation
            .ok_or_else(|| to_status(&Error::invalid(format!("{} has no active delegation for this call", caller.peer))))?;
        Ok((asked, Who { caller, delegation: Some(delegation) }))
    }

    async fn require_writer(&self, upload: u64, put_key: &[u8], who: &Who) -> Result<(), Status> {
        let delegation = who.delegation.as_ref();
        puts::require_writer(&self.shared, upload, put_key, delegation).await.map_err(|error| to_status(&error))
    }

    fn meta<T>(&self, result: Result<T, MetaError>) -> Result<T> {
        result.map_err(|error| self.shared.meta_error(error))
    }

    async fn create_policy(&self, asked: v1::Policy) -> Result<v1::Policy> {
        let policy = validate::policy(&asked)?;
        self.meta(self.shared.meta.create_policy(self.shared.epoch, policy.clone()).await)?;
        let warnings = self.shared.policy_warnings(&policy)?;
        Ok(v1::Policy { warnings, ..show::policy(policy) })
    }

    async fn list_policies(&self) -> Result<v1::ListPoliciesReply> {
        let policies = self.meta(self.shared.meta.policies().await)?;
        Ok(v1::ListPoliciesReply { policies: policies.into_iter().map(show::policy).collect() })
    }

    async fn create_bucket(&self, asked: v1::Bucket) -> Result<v1::Bucket> {
        validate::name("bucket", &asked.name)?;
        let policy = (!asked.policy.is_empty()).then_some(asked.policy.as_str());
        let shared = &self.shared;
        let bucket = self.meta(shared.meta.create_bucket(shared.epoch, &asked.name, policy, shared.now_ms()).await)?;
        let (_, policy) = self.meta(shared.meta.bucket(&bucket.name).await)?;
        Ok(v1::Bucket { warnings: shared.policy_warnings(&policy)?, ..show::bucket(bucket) })
    }

    async fn list_buckets(&self) -> Result<v1::ListBucketsReply> {
        let buckets = self.meta(self.shared.meta.buckets().await)?;
        Ok(v1::ListBucketsReply { buckets: buckets.into_iter().map(show::bucket).collect() })
    }
}

/// Completes a client's request even if it hangs up: half of it would hold disks and memory.
fn to_the_end<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> BoxFuture<'static, Result<T>> {
    tasks::to_the_end("the coordinator failed during the call", work)
}

/// An answer, or the status for the error.
fn answer<T>(result: Result<T>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|error| to_status(&error))
}

#[async_trait]
impl v1::weft_server::Weft for WeftService {
    type RepairObjectStream = ReceiverStream<Result<v1::RepairEvent, Status>>;
    type ExplainRepairNodeStream = ReceiverStream<Result<v1::RepairEvent, Status>>;

    type ProbeLinksStream = ReceiverStream<Result<v1::ProbeEvent, Status>>;

    async fn list_links(&self, _: Request<v1::ListLinksRequest>) -> Result<Response<v1::ListLinksReply>, Status> {
        Ok(Response::new(links::list(&self.shared)))
    }

    async fn probe_links(&self, request: Request<v1::ProbeLinksRequest>) -> Result<Response<Self::ProbeLinksStream>, Status> {
        let asked = request.into_inner();
        answer(links::measure(&self.shared, &asked).map(ReceiverStream::new))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Result<Response<v1::StatusReply>, Status> {
        answer(if request.into_inner().identity { Ok(show::identity(&self.shared)) } else { show::status(&self.shared).await })
    }

    async fn health(&self, _: Request<v1::Empty>) -> Result<Response<v1::HealthReply>, Status> {
        answer(health::reply(&self.shared).await)
    }

    async fn set_auto_repair(&self, request: Request<v1::AutoRepair>) -> Result<Response<v1::Empty>, Status> {
        let (shared, asked) = (Arc::clone(&self.shared), request.into_inner());
        answer(to_the_end(async move { healer::set(&shared, &asked).await }).await.map(|()| v1::Empty {}))
    }

    async fn get_repair_limit(&self, _: Request<v1::Empty>) -> Result<Response<v1::RepairLimitReply>, Status> {
        Ok(Response::new(limit::reply(&self.shared)))
    }

    async fn set_repair_limit(&self, request: Request<v1::RepairLimit>) -> Result<Response<v1::RepairLimitReply>, Status> {
        let (shared, asked) = (Arc::clone(&self.shared), request.into_inner());
        answer(to_the_end(async move { limit::set(&shared, &asked).await }).await)
    }

    async fn create_policy(&self, request: Request<v1::Policy>) -> Result<Response<v1::Policy>, Status> {
        let asked = request.into_inner();
        answer(self.create_policy(asked).await)
    }

    async fn list_policies(&self, _: Request<v1::ListPoliciesRequest>) -> Result<Response<v1::ListPoliciesReply>, Status> {
        answer(self.list_policies().await)
    }

    async fn remove_policy(&self, request: Request<v1::Name>) -> Result<Response<v1::Empty>, Status> {
        let asked = request.into_inner();
        let removed = self.shared.meta.remove_policy(self.shared.epoch, &asked.name).await;
        answer(self.meta(removed).map(|()| v1::Empty {}))
    }

    async fn set_default_policy(&self, request: Request<v1::Name>) -> Result<Response<v1::Empty>, Status> {
        let asked = request.into_inner();
        let set = self.shared.meta.set_default_policy(self.shared.epoch, &asked.name).await;
        answer(self.meta(set).map(|()| v1::Empty {}))
    }

    async fn create_bucket(&self, request: Request<v1::Bucket>) -> Result<Response<v1::Bucket>, Status> {
        let asked = request.into_inner();
        answer(self.create_bucket(asked).await)
    }

    async fn list_buckets(&self, _: Request<v1::Empty>) -> Result<Response<v1::ListBucketsReply>, Status> {
        answer(self.list_buckets().await)
    }

    async fn remove_bucket(&self, request: Request<v1::Name>) -> Result<Response<v1::Empty>, Status> {
        let asked = request.into_inner();
        let removed = self.shared.meta.remove_bucket(self.shared.epoch, &asked.name).await;
        answer(self.meta(removed).map(|()| v1::Empty {}))
    }

    async fn list_objects(&self, request: Request<v1::ListObjectsRequest>) -> Result<Response<v1::ListObjectsReply>, Status> {
        let asked = request.into_inner();
        answer(objects::list(&self.shared, asked).await)
    }

    async fn stat_object(&self, request: Request<v1::StatObjectRequest>) -> Result<Response<v1::ObjectReply>, Status> {
        let (mut asked, who) = self.asked_by(request, |delegation, asked| delegation.reads(&asked.bucket, &asked.key))?;
        // A delegate reads one version, which it names to ReadStripe.
        let read = asked.read.take().filter(|_| who.delegation.is_none());
        let shared = Arc::clone(&self.shared);
        match read {
            None => answer(objects::stat(&shared, &asked, None).await),
            read => answer(to_the_end(async move { objects::stat(&shared, &asked, read).await }).await),
        }
    }

    async fn remove_object(&self, request: Request<v1::ObjectName>) -> Result<Response<v1::Empty>, Status> {
        let asked = request.into_inner();
        answer(objects::remove(&self.shared, &asked).await)
    }

    async fn remove_objects(
        &self,
        request: Request<v1::RemoveObjectsRequest>,
    ) -> Result<Response<v1::RemoveObjectsReply>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { objects::remove_many(&shared, &asked).await }).await)
    }

    async fn begin_put(&self, request: Request<v1::BeginPutRequest>) -> Result<Response<v1::BeginPutReply>, Status> {
        let caller = rpc::caller(&request);
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { puts::begin(&shared, asked, &caller).await }).await)
    }

    async fn put_stripe(&self, request: Request<v1::PutStripeRequest>) -> Result<Response<v1::PutStripeReply>, Status> {
        let (asked, who) = self.asked_by(request, |delegation, asked| delegation.writes(asked.upload, asked.number))?;
        let shared = Arc::clone(&self.shared);
        self.require_writer(asked.upload, &asked.put_key, &who).await?;
        let attempts = shared.config.open_attempts_max;
        answer(to_the_end(async move { puts::put_stripe(&shared, asked, &who, attempts).await }).await)
    }

    async fn end_stripe(&self, request: Request<v1::EndStripeRequest>) -> Result<Response<v1::EndStripeReply>, Status> {
        let (asked, who) = self.asked_by(request, |delegation, asked| {
            asked.commit_size.is_none() && delegation.writes(asked.upload, asked.number)
        })?;
        self.require_writer(asked.upload, &asked.put_key, &who).await?;
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { puts::end_stripe(&shared, asked).await }).await)
    }

    async fn commit_put(&self, request: Request<v1::CommitPutRequest>) -> Result<Response<v1::ObjectReply>, Status> {
        let (asked, who) = self.asked_by(request, |_, _| false)?;
        self.require_writer(asked.upload, &asked.put_key, &who).await?;
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { puts::commit(&shared, asked).await }).await)
    }

    async fn keep_put(&self, request: Request<v1::KeepPutRequest>) -> Result<Response<v1::KeepPutReply>, Status> {
        let (asked, who) = self.asked_by(request, |delegation, asked| delegation.writes(asked.upload, asked.number))?;
        self.require_writer(asked.upload, &asked.put_key, &who).await?;
        answer(puts::keep(&self.shared, &asked).await)
    }

    async fn abort_put(&self, request: Request<v1::AbortPutRequest>) -> Result<Response<v1::Empty>, Status> {
        let (asked, who) = self.asked_by(request, |_, _| false)?;
        self.require_writer(asked.upload, &asked.put_key, &who).await?;
        let shared = Arc::clone(&self.shared);
        let abort = async move { puts::abort(&shared, UploadId(asked.upload)).await };
        answer(to_the_end(abort).await.map(|()| v1::Empty {}))
    }

    async fn read_stripe(&self, request: Request<v1::ReadStripeRequest>) -> Result<Response<v1::ReadStripeReply>, Status> {
        let may = |delegation: &Delegation, asked: &v1::ReadStripeRequest| {
            delegation.reads(&asked.bucket, &asked.key) && delegation.version.0 == asked.version
        };
        let (asked, who) = self.asked_by(request, may)?;
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { read::read_stripe(&shared, asked, who.delegation.as_ref()).await }).await)
    }

    async fn end_read(&self, request: Request<v1::EndReadRequest>) -> Result<Response<v1::Empty>, Status> {
        let (asked, who) = self.asked_by(request, |_, _| true)?;
        read::end_read(&self.shared, &asked, who.delegation.as_ref());
        Ok(Response::new(v1::Empty {}))
    }

    async fn open_for_updates(
        &self,
        request: Request<v1::OpenForUpdatesRequest>,
    ) -> Result<Response<v1::OpenForUpdatesReply>, Status> {
        let asked = request.into_inner();
        answer(open::open_for_updates(&self.shared, asked).await)
    }

    async fn explain_update(
        &self,
        request: Request<v1::ExplainUpdateRequest>,
    ) -> Result<Response<v1::ExplainUpdateReply>, Status> {
        answer(routes::explain(&self.shared, request.into_inner()).await)
    }

    async fn begin_append(&self, request: Request<v1::BeginAppendRequest>) -> Result<Response<v1::BeginAppendReply>, Status> {
        let (shared, asked) = (Arc::clone(&self.shared), request.into_inner());
        answer(to_the_end(async move { append::begin(&shared, asked).await }).await)
    }

    async fn end_append(&self, request: Request<v1::EndAppendRequest>) -> Result<Response<v1::ObjectReply>, Status> {
        answer(append::end(&self.shared, request.into_inner()).await)
    }

    async fn give_up_append(&self, request: Request<v1::GiveUpAppendRequest>) -> Result<Response<v1::Empty>, Status> {
        answer(append::give_up(&self.shared, request.into_inner()).await)
    }

    async fn repair_object(
        &self,
        request: Request<v1::RepairObjectRequest>,
    ) -> Result<Response<Self::RepairObjectStream>, Status> {
        let asked = request.into_inner();
        let (events, told) = mpsc::channel(repair::EVENTS_MAX);
        tasks::start(repair::run(Arc::clone(&self.shared), asked, events));
        Ok(Response::new(ReceiverStream::new(told)))
    }

    async fn cool_object(&self, request: Request<v1::ObjectName>) -> Result<Response<v1::CoolReply>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        let cool = async move { copies::cool(&shared, &validate::object(&asked.bucket, &asked.key)?).await };
        answer(to_the_end(cool).await)
    }

    async fn repair_node(&self, request: Request<v1::RepairNodeRequest>) -> Result<Response<v1::Job>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { jobs::node_repair::begin(&shared, &asked).await }).await)
    }

    async fn explain_repair_node(
        &self,
        request: Request<v1::RepairNodeRequest>,
    ) -> Result<Response<Self::ExplainRepairNodeStream>, Status> {
        answer(jobs::node_repair::explain(&self.shared, request.into_inner()).map(ReceiverStream::new))
    }

    async fn convert(&self, request: Request<v1::ConvertRequest>) -> Result<Response<v1::Job>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { jobs::conversion::begin(&shared, &asked).await }).await)
    }

    async fn list_jobs(&self, _: Request<v1::Empty>) -> Result<Response<v1::ListJobsReply>, Status> {
        answer(jobs::list(&self.shared).await)
    }

    async fn get_job(&self, request: Request<v1::JobRequest>) -> Result<Response<v1::Job>, Status> {
        let asked = request.into_inner();
        answer(jobs::get(&self.shared, asked.id).await)
    }

    async fn change_job(&self, request: Request<v1::ChangeJobRequest>) -> Result<Response<v1::Job>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { jobs::change(&shared, &asked).await }).await)
    }

    async fn remove_node(&self, request: Request<v1::RemoveNodeRequest>) -> Result<Response<v1::DepartureReply>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        let remove = async move {
            let removed = departures::remove_node(&shared, &asked).await?;
            // Otherwise its silence would still be told for a moment.
            healer::judge(&shared).await;
            Ok(removed)
        };
        answer(to_the_end(remove).await)
    }

    async fn balance(&self, request: Request<v1::BalanceRequest>) -> Result<Response<v1::Job>, Status> {
        let (shared, asked) = (Arc::clone(&self.shared), request.into_inner());
        answer(to_the_end(async move { jobs::balance::begin(&shared, &asked).await }).await)
    }

    async fn explain_balance(&self, request: Request<v1::BalanceRequest>) -> Result<Response<v1::BalancePlan>, Status> {
        let asked = request.into_inner();
        answer(jobs::balance::explain(&self.shared, &asked).await)
    }

    async fn scrub(&self, request: Request<v1::ScrubRequest>) -> Result<Response<v1::Job>, Status> {
        let (shared, asked) = (Arc::clone(&self.shared), request.into_inner());
        answer(to_the_end(async move { jobs::scrub::begin(&shared, &asked).await }).await)
    }

    async fn list_damage(&self, request: Request<v1::ListDamageRequest>) -> Result<Response<v1::ListDamageReply>, Status> {
        let asked = request.into_inner();
        answer(damage::list(&self.shared, &asked).await)
    }

    async fn space(&self, _: Request<v1::Empty>) -> Result<Response<v1::SpaceReply>, Status> {
        answer(space::reply(&self.shared).await)
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainReply>, Status> {
        let (shared, asked) = (Arc::clone(&self.shared), request.into_inner());
        answer(to_the_end(async move { drain::set(&shared, &asked).await }).await)
    }

    async fn explain_drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainPlan>, Status> {
        let asked = request.into_inner();
        answer(drain::explain::explain(&self.shared, &asked).await)
    }

    async fn forget_disk(&self, request: Request<v1::ForgetDiskRequest>) -> Result<Response<v1::DepartureReply>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { departures::forget_disk(&shared, &asked).await }).await)
    }

    async fn list_garbage(&self, request: Request<v1::ListGarbageRequest>) -> Result<Response<v1::ListGarbageReply>, Status> {
        let asked = request.into_inner();
        answer(garbage::list(&self.shared, &asked).await)
    }

    async fn release_garbage(
        &self,
        request: Request<v1::ReleaseGarbageRequest>,
    ) -> Result<Response<v1::ReleaseGarbageReply>, Status> {
        let asked = request.into_inner();
        let shared = Arc::clone(&self.shared);
        answer(to_the_end(async move { garbage::release_some(&shared, &asked).await }).await)
    }
}
