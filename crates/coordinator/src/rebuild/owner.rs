//! What a rebuild has to know about the owner of its stripe.

use super::{Rebuilder, Told, shares::Shares};
use crate::{options, rebuild, shared::Shared};
use std::sync::Arc;
use weft_control::rebuild::{Lost, Rebuilt, Request};
use weft_meta::{Meta, MetaError};
use weft_types::{Error, FailureDomain, ObjectName, Owner, Result, StripeRecord, UploadId};

/// The owner of a stripe: an object, or a running put.
pub(crate) struct Of {
    version: UploadId,
    pub(crate) name: ObjectName,
    pub(crate) code: String,
    pub(crate) failure_domain: FailureDomain,
}

impl Of {
    /// Looks it up.
    pub(crate) async fn owner(meta: &dyn Meta, owner: Owner) -> Result<Self, MetaError> {
        match owner {
            Owner::Upload(version) => {
                let put = meta.upload(version).await?.new;
                Ok(Self { version, name: put.name, code: put.code, failure_domain: put.failure_domain })
            }
            Owner::Object(version) => {
                let object = meta.object_of(version).await?;
                let (_, policy) = meta.bucket(&object.name.bucket).await?;
                Ok(Self { version, name: object.name, code: object.code, failure_domain: policy.failure_domain })
            }
        }
    }

    /// Rebuilds blocks of the stripe that no one asked for, by the coordinator's settings; `change` changes the request.
    pub(crate) async fn rebuild(
        &self,
        shared: &Arc<Shared>,
        (stripe, lost): (StripeRecord, Vec<Lost>),
        shares: &Shares,
        change: impl FnOnce(Request) -> Request,
        tell: impl FnMut(Told<'_>) + Send,
    ) -> Result<Rebuilt> {
        let request = self.request(shared, (stripe, lost))?;
        let rebuilder = Rebuilder { shared, version: self.version, shares };
        rebuilder.run(change(request), tell).await.map_err(|error| self.place(error))
    }

    /// The request to rebuild blocks of the stripe by the coordinator's settings.
    pub(crate) fn request(&self, shared: &Shared, (stripe, lost): (StripeRecord, Vec<Lost>)) -> Result<Request> {
        let code = shared.code(&self.code).map_err(|error| self.place(error))?;
        let options = options::usual_repair(shared);
        Ok(rebuild::request(shared, (&code, &self.name), stripe, lost, &options, self.failure_domain))
    }

    /// Names the object in an error.
    pub(crate) fn place(&self, error: Error) -> Error {
        if error.object.is_some() { error } else { error.object(&self.name) }
    }
}
