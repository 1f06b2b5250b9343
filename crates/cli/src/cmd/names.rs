//! Names of objects as typed by users.

use std::str::FromStr;
use weft_cli::session::Session;
use weft_types::{Error, Reaction, Result};

/// `BUCKET/KEY`, or `KEY` alone in the default bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectName {
    bucket: Option<String>,
    key: String,
}

impl FromStr for ObjectName {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (bucket, key) = match text.split_once('/') {
            Some((bucket, key)) => (Some(bucket.to_owned()), key.to_owned()),
            None => (None, text.to_owned()),
        };
        if key.is_empty() || bucket.as_deref() == Some("") {
            return Err(format!("'{text}' is not an object name: write BUCKET/KEY"));
        }
        Ok(Self { bucket, key })
    }
}

impl ObjectName {
    /// Bucket and key. A key without a bucket must not be the name of a bucket: `weft ls photos` means the bucket, so no command that
    /// changes something takes `photos` for an object. `example` is a key for the error message.
    pub(crate) async fn resolve(&self, session: &Session, example: &str) -> Result<(String, String)> {
        let (bucket, key) = self.to_read(session)?;
        match self.is_bucket(session, example).await? {
            Some(error) => Err(error),
            None => Ok((bucket, key)),
        }
    }

    /// Bucket and key, to read an object: whether the key is the name of a bucket matters only if there is no such object
    /// ([`Self::unread`]).
    pub(crate) fn to_read(&self, session: &Session) -> Result<(String, String)> {
        self.in_bucket(session.bucket.as_deref())
    }

    /// Why an object could not be read.
    pub(crate) async fn unread(&self, session: &Session, why: Error) -> Error {
        let asks = why.reaction == Reaction::NotFound;
        // Without an answer, the first error tells enough.
        let is_bucket = if asks { self.is_bucket(session, "KEY").await.ok().flatten() } else { None };
        is_bucket.unwrap_or(why)
    }

    /// The error for a key without a bucket that is the name of a bucket.
    async fn is_bucket(&self, session: &Session, example: &str) -> Result<Option<Error>> {
        let (bucket, key) = self.to_read(session)?;
        if self.bucket.is_some() || !session.client.has_bucket(&key).await? {
            return Ok(None);
        }
        Ok(Some(Error::invalid(format!(
            "'{key}' is the name of a bucket: write {key}/{example} for an object in it, or {bucket}/{key} for the object in the bucket \
             '{bucket}'"
        ))))
    }

    fn in_bucket(&self, default_bucket: Option<&str>) -> Result<(String, String)> {
        let bucket = self.bucket.as_deref().or(default_bucket).ok_or_else(|| {
            Error::invalid(format!(
                "'{}' has no bucket: write BUCKET/{0}, or set a default with bucket = \"…\" in weft.toml",
                self.key
            ))
        })?;
        Ok((bucket.to_owned(), self.key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_with_and_without_a_bucket() {
        let name = |text: &str| text.parse::<ObjectName>().map(|name| name.in_bucket(Some("b")).unwrap());
        assert_eq!(name("photos/2024/cat.jpg"), Ok(("photos".into(), "2024/cat.jpg".into())));
        assert_eq!(name("cat.jpg"), Ok(("b".into(), "cat.jpg".into())));
        assert!(["", "photos/", "/cat.jpg", "/"].iter().all(|text| name(text).is_err()));
        assert!("cat.jpg".parse::<ObjectName>().unwrap().in_bucket(None).unwrap_err().message.contains("BUCKET/cat.jpg"));
    }
}
