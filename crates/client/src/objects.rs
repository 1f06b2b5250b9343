//! Lists and removes objects.

use crate::{Client, client::Shared};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use weft_proto::{
    status::decode_error,
    v1::{Empty, ListObjectsReply, ListObjectsRequest, ObjectEntry, ObjectName, RemoveObjectsRequest, RemovedObject},
};
use weft_types::{Error, Reaction, Result};

/// What to list of a bucket.
///
/// ```
/// # use weft_client::ListOptions;
/// let folders = ListOptions { prefix: "2024/".into(), delimiter: "/".into(), ..ListOptions::default() };
/// assert_eq!(folders.limit, None, "all of it");
/// ```
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys with this text behind the prefix are rolled up to the folder that ends with it; empty: no folders.
    pub delimiter: String,
    /// Only what comes after this key or folder.
    pub after: String,
    /// The most objects and folders.
    pub limit: Option<u64>,
}

/// An item of a listing.
#[derive(Debug, Clone, PartialEq)]
pub enum Listed {
    /// An object.
    Object(ObjectEntry),
    /// The common beginning of the keys of one or more objects, up to the end of the delimiter.
    Folder(String),
}

/// The objects of a bucket, page by page.
pub struct Listing {
    shared: Arc<Shared>,
    request: ListObjectsRequest,
    /// How many objects and folders may follow.
    left: Option<u64>,
    more: bool,
}

/// An object that was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Its version.
    pub version: u64,
    /// Its bytes.
    pub size: u64,
}

/// Objects and folders per page of a listing.
const PAGE_OBJECTS_MAX: u32 = 1000;
/// The most objects that [`Client::remove_many`] removes.
pub const REMOVED_MAX: usize = 1000;

impl Client {
    /// Removes an object.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// client.remove("photos", "cat.jpg").await
    /// # }
    /// ```
    pub async fn remove(&self, bucket: &str, key: &str) -> Result<()> {
        let request = ObjectName { bucket: bucket.into(), key: key.into() };
        let removed = self.shared().calls.once(request, |mut client, request| async move { client.remove_object(request).await });
        removed.await.map(|Empty {}| ()).map_err(|error| error.object(format_args!("{bucket}/{key}")))
    }

    /// Removes up to [`REMOVED_MAX`] objects, named by bucket and key, several in each transaction of the metadata: each of them is removed
    /// or still there, also after a crash. Returns a result for each. With `dry_run`, tells what would be removed, and removes nothing.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let names = ["a.jpg", "b.jpg"].map(|key| ("photos".to_owned(), key.to_owned()));
    /// for (name, removed) in names.iter().zip(client.remove_many(&names, false).await) {
    ///     println!("{name:?}: {removed:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn remove_many(&self, names: &[(String, String)], dry_run: bool) -> Vec<Result<Removed>> {
        let mut results = Vec::with_capacity(names.len());
        while let Some(rest) = names.get(results.len()..).filter(|rest| !rest.is_empty()) {
            let asked = rest.iter().map(|(bucket, key)| ObjectName { bucket: bucket.clone(), key: key.clone() });
            let request = RemoveObjectsRequest { names: asked.collect(), dry_run };
            let calls = &self.shared().calls;
            let is_told = &AtomicBool::new(false);
            let answer = calls.once(request, |mut client, request| async move {
                let answer = client.remove_objects(request).await;
                is_told.store(answer.as_ref().is_err_and(|status| decode_error(status.details()).is_some()), Relaxed);
                answer
            });
            let removed = match answer.await {
                Ok(reply) if reply.objects.is_empty() => Err(Error::fatal("the coordinator removed nothing and told no reason")),
                Ok(reply) => Ok(reply.objects),
                // No answer arrived: the coordinator may have removed them.
                Err(error) if error.reaction == Reaction::Retry && !dry_run && !is_told.load(Relaxed) => {
                    let message = format!("unknown whether the object was removed (`weft stat` tells): {}", error.message);
                    Err(Error { message, ..error })
                }
                Err(error) => Err(error),
            };
            match removed {
                Ok(objects) => results.extend(objects.into_iter().zip(rest).map(|(object, name)| removed_object(&object, name))),
                Err(error) => results.extend(rest.iter().map(|name| Err(placed(error.clone(), name)))),
            }
        }
        results
    }

    /// The objects of a bucket whose keys begin with `prefix`, ordered by key.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// let mut listing = client.list("photos", "2024/");
    /// while let Some(page) = listing.next_page().await? {
    ///     page.iter().for_each(|object| println!("{} {}", object.key, object.size));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn list(&self, bucket: &str, prefix: &str) -> Listing {
        self.list_with(bucket, &ListOptions { prefix: prefix.into(), ..ListOptions::default() })
    }

    /// What the options say of a bucket, ordered by key.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// # use weft_client::{ListOptions, Listed};
    /// let mut listing = client.list_with("photos", &ListOptions { delimiter: "/".into(), ..ListOptions::default() });
    /// while let Some(page) = listing.next_items().await? {
    ///     page.iter().for_each(|item| println!("{item:?}"));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn list_with(&self, bucket: &str, options: &ListOptions) -> Listing {
        let ListOptions { prefix, delimiter, after, limit } = options.clone();
        let request = ListObjectsRequest { bucket: bucket.into(), prefix, after, limit: PAGE_OBJECTS_MAX, delimiter };
        Listing { shared: self.shared().clone(), request, left: limit, more: true }
    }

    /// Whether there is a bucket of this name.
    ///
    /// ```no_run
    /// # async fn example(client: weft_client::Client) -> weft_types::Result<()> {
    /// assert!(client.has_bucket("photos").await?);
    /// # Ok(()) }
    /// ```
    pub async fn has_bucket(&self, name: &str) -> Result<bool> {
        // Unlike the list of all buckets, a page of one object costs the same however much there is.
        let mut first = self.list_with(name, &ListOptions { limit: Some(1), ..ListOptions::default() });
        match first.next_items().await {
            Ok(_) => Ok(true),
            // A name that no bucket can have is the name of no bucket.
            Err(error) if matches!(error.reaction, Reaction::NotFound | Reaction::InvalidInput) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Listing {
    /// The next objects, without folders; `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<ObjectEntry>>> {
        let object = |item| match item {
            Listed::Object(object) => Some(object),
            Listed::Folder(_) => None,
        };
        Ok(self.next_items().await?.map(|items| items.into_iter().filter_map(object).collect()))
    }

    /// The next objects and folders, ordered by name; `None` at the end.
    pub async fn next_items(&mut self) -> Result<Option<Vec<Listed>>> {
        let limit = self.left.map_or(PAGE_OBJECTS_MAX, |left| left.min(PAGE_OBJECTS_MAX.into()) as u32);
        if !self.more || limit == 0 {
            return Ok(None);
        }
        let request = ListObjectsRequest { limit, ..self.request.clone() };
        let asked = self.shared.calls.ask(request, |mut client, request| async move { client.list_objects(request).await });
        let ListObjectsReply { objects, more, folders } = asked.await?;
        let mut items: Vec<Listed> =
            objects.into_iter().map(Listed::Object).chain(folders.into_iter().map(Listed::Folder)).collect();
        items.sort_by(|one, other| one.name().cmp(other.name()));
        self.more = more && !items.is_empty();
        self.left = self.left.map(|left| left.saturating_sub(items.len() as u64));
        if let Some(last) = items.last() {
            last.name().clone_into(&mut self.request.after);
        }
        Ok((!items.is_empty()).then_some(items))
    }

    /// Whether objects follow what was returned so far.
    pub fn has_more(&self) -> bool {
        self.more
    }
}

impl Listed {
    /// The object's key, or the folder.
    pub fn name(&self) -> &str {
        match self {
            Self::Object(object) => &object.key,
            Self::Folder(folder) => folder,
        }
    }
}

fn removed_object(object: &RemovedObject, name: &(String, String)) -> Result<Removed> {
    if object.error.is_empty() {
        return Ok(Removed { version: object.version, size: object.size });
    }
    let error = decode_error(&object.error).unwrap_or_else(|| Error::fatal("the coordinator sent an error that cannot be read"));
    Err(placed(error, name))
}

fn placed(error: Error, (bucket, key): &(String, String)) -> Error {
    error.object(format_args!("{bucket}/{key}"))
}
