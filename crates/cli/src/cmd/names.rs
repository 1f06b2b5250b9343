//! Names of objects as typed by users.

use std::str::FromStr;
use weft_cli::session::Session;
use weft_types::{Error, Result};

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
    /// Bucket and key. A key without a bucket must not be the name of a bucket: `weft ls photos` means the bucket, so no command takes
    /// `photos` for an object. `example` is a key for the error message.
    pub(crate) async fn resolve(&self, session: &Session, example: &str) -> Result<(String, String)> {
        let (bucket, key) = self.in_bucket(session.bucket.as_deref())?;
        if self.bucket.is_none() && session.client.has_bucket(&key).await? {
            return Err(Error::invalid(format!(
                "'{key}' is the name of a bucket: write {key}/{example} for an object in it, or {bucket}/{key} for the object in the \
                 bucket '{bucket}'"
            )));
        }
        Ok((bucket, key))
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
