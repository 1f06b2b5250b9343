//! Which bytes of an object a get returns.

use std::{fmt, ops::Range, str::FromStr};
use weft_proto::v1::BeginRead;
use weft_types::{Error, Result, Span};

/// Bytes of an object.
///
/// ```
/// # use weft_client::ByteRange;
/// assert_eq!("0-1023".parse(), Ok(ByteRange::Between(0, 1023)));
/// assert_eq!("-512".parse(), Ok(ByteRange::Last(512)));
/// assert_eq!(ByteRange::from(0..1024), ByteRange::Exactly(0..1024));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ByteRange {
    /// These bytes, possibly none. All of them must be within the object.
    Exactly(Range<u64>),
    /// `A-B`: from the first to the last, both included, or to the end of the object if that comes first.
    Between(u64, u64),
    /// `A-`: from this byte to the end.
    From(u64),
    /// `-N`: the last bytes of the object.
    Last(u64),
}

impl From<Range<u64>> for ByteRange {
    fn from(range: Range<u64>) -> Self {
        Self::Exactly(range)
    }
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
            Self::Exactly(range) => write!(f, "{}..{}", range.start, range.end),
            Self::Between(first, last) => write!(f, "{first}-{last}"),
            Self::From(first) => write!(f, "{first}-"),
            Self::Last(count) => write!(f, "-{count}"),
        }
    }
}

impl ByteRange {
    /// The bytes of an object of `size` bytes. As in HTTP, a range must start within the object, and its end is clamped; the bytes of
    /// [`Exactly`](Self::Exactly) must all exist.
    pub fn of(&self, size: u64) -> Result<Span> {
        let (span, is_within) = match *self {
            Self::Exactly(Range { start, end }) if start <= end && end <= size => return Ok(Span::new(start, end)),
            Self::Exactly(_) => (Span::new(0, 0), false),
            Self::Between(first, last) => (Span::new(first, last.saturating_add(1).min(size)), true),
            Self::From(first) => (Span::new(first, size), true),
            Self::Last(count) => (Span::new(size.saturating_sub(count), size), true),
        };
        if !is_within || span.is_empty() {
            let has = match size.checked_sub(1) {
                Some(last) => format!("its {size} bytes are 0-{last}"),
                None => "it is empty".to_owned(),
            };
            return Err(Error::invalid(format!("range {self} is outside the object: {has}")));
        }
        Ok(span)
    }

    /// The request to read the beginning of these bytes, up to `bytes_max` of them; `None`: all bytes of the object.
    pub(crate) fn begin(range: Option<&Self>, bytes_max: u64) -> BeginRead {
        let begin = BeginRead { bytes_max, ..BeginRead::default() };
        match range {
            None => begin,
            Some(Self::Exactly(range)) => BeginRead { start: range.start, end: Some(range.end), ..begin },
            Some(Self::Between(first, last)) => BeginRead { start: *first, end: Some(last.saturating_add(1)), ..begin },
            Some(Self::From(first)) => BeginRead { start: *first, ..begin },
            Some(Self::Last(count)) => BeginRead { last: Some(*count), ..begin },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_ranges_include_both_ends() {
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

    #[test]
    fn exact_ranges_outside_of_the_object_are_refused() {
        let of = |range: Range<u64>| ByteRange::from(range).of(10);
        assert_eq!((of(3..10), of(10..10)), (Ok(Span::new(3, 10)), Ok(Span::new(10, 10))));
        for outside in [3..11, 11..11, Range { start: 5, end: 4 }] {
            assert!(of(outside).unwrap_err().message.contains("10"));
        }
    }
}
