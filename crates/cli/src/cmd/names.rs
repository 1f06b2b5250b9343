//! Names of objects and ranges as typed by users.

use std::{fmt, str::FromStr};
use weft_cli::session::Session;
use weft_types::{Error, Result, Span};

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

/// Bytes of an object: `A-B`, both included; `A-`, to the end; `-N`, the last N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// From the first to the last, both included.
    Between(u64, u64),
    /// From this byte to the end.
    From(u64),
    /// The last bytes of the object.
    Last(u64),
}

impl FromStr for ByteRange {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("'{text}' is not a range: write 0-1023, 1024- or -1024 (both ends are included)");
        let (first, last) = text.split_once('-').ok_or_else(wrong)?;
        let number = |digits: &str| digits.parse::<u64>().map_err(|_| wrong());
        match (first, last) {
            ("", last) => Ok(Self::Last(number(last)?)),
            (first, "") => Ok(Self::From(number(first)?)),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                if first > last { Err(wrong()) } else { Ok(Self::Between(first, last)) }
            }
        }
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Between(first, last) => write!(f, "{first}-{last}"),
            Self::From(first) => write!(f, "{first}-"),
            Self::Last(count) => write!(f, "-{count}"),
        }
    }
}

impl ByteRange {
    /// The bytes of an object of `size` bytes. As in HTTP, a range must start within the object, and its end is clamped.
    pub(crate) fn of(self, size: u64) -> Result<Span> {
        let span = match self {
            Self::Between(first, last) => Span::new(first, last.saturating_add(1).min(size)),
            Self::From(first) => Span::new(first, size),
            Self::Last(count) => Span::new(size.saturating_sub(count), size),
        };
        if span.is_empty() {
            let has = match size.checked_sub(1) {
                Some(last) => format!("its {size} bytes are 0-{last}"),
                None => "it is empty".to_owned(),
            };
            return Err(Error::invalid(format!("range {self} is outside the object: {has}")));
        }
        Ok(span)
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

    #[test]
    fn ranges_include_both_ends() {
        let of = |text: &str, size: u64| text.parse::<ByteRange>().unwrap().of(size);
        assert_eq!(of("0-0", 10), Ok(Span::new(0, 1)));
        assert_eq!(of("3-9", 10), Ok(Span::new(3, 10)));
        assert_eq!(of("3-", 10), Ok(Span::new(3, 10)));
        assert_eq!(of("-4", 10), Ok(Span::new(6, 10)));
        assert_eq!(of("-40", 10), Ok(Span::new(0, 10)));
        assert_eq!(of("3-10", 10), Ok(Span::new(3, 10)));
        assert_eq!(of("0-18446744073709551615", 10), Ok(Span::new(0, 10)));
        for (text, size) in [("10-", 10), ("10-12", 10), ("-0", 10), ("0-", 0), ("0-0", 0)] {
            let error = of(text, size).unwrap_err().message;
            assert!(error.contains("outside the object"), "{error}");
        }
        for text in ["", "-", "5-4", "a-b", "1-2-3", "5"] {
            assert!(text.parse::<ByteRange>().is_err(), "'{text}' was taken for a range");
        }
    }
}
