//! The encoding of the update protocol's values: a version, then the value. Decoding bounds the memory that a hostile input can make it
//! allocate.

use crate::updates::check::is_sound;
use serde::{Serialize, de::DeserializeOwned};
use weft_types::{Error, Result};
use weft_update::{Message, Sealed};

/// The most bytes of an encoded message or sealed record. Decoding takes a small multiple of that. Two of them fit into a call.
pub const MESSAGE_BYTES_MAX: usize = 6 << 20;

const VERSION: u8 = 1;

/// Encodes what a seal has decided.
pub fn encode_sealed(sealed: &Sealed) -> Result<Vec<u8>> {
    encode("the record of a seal", sealed)
}

/// Decodes what a seal has decided.
pub fn decode_sealed(bytes: &[u8]) -> Result<Sealed> {
    decode("the record of a seal", bytes)
}

/// Encodes a message between nodes.
pub fn encode_message(message: &Message) -> Result<Vec<u8>> {
    encode("the message about updates", message)
}

/// Decodes a message between nodes. Its records have what the state machines rely on. Whether it fits its sender and its stripe is not checked here.
pub fn decode_message(bytes: &[u8]) -> Result<Message> {
    let message = decode("the message about updates", bytes)?;
    if is_sound(&message) { Ok(message) } else { Err(Error::invalid("the message about updates has an invalid record")) }
}

fn encode<T: Serialize>(what: &str, value: &T) -> Result<Vec<u8>> {
    let failed = |error| Error::fatal(format!("cannot encode {what}: {error}"));
    let bytes = postcard::to_extend(value, vec![VERSION]).map_err(failed)?;
    require_short(what, &bytes)?;
    Ok(bytes)
}

fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    require_short(what, bytes)?;
    match bytes.split_first() {
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(Error::invalid(format!("{} extra bytes follow {what}", rest.len()))),
            Err(error) => Err(Error::invalid(format!("cannot decode {what}: {error}"))),
        },
        Some((version, _)) => Err(Error::invalid(format!("{what} has version {version}, but this side reads version {VERSION}"))),
        None => Err(Error::invalid(format!("{what} is empty"))),
    }
}

fn require_short(what: &str, bytes: &[u8]) -> Result<()> {
    match bytes.len() {
        len if len > MESSAGE_BYTES_MAX => {
            Err(Error::invalid(format!("{what} is too large: {len} bytes, at most {MESSAGE_BYTES_MAX}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use weft_types::{BlockId, Reaction, StripeId};
    use weft_update::{Claim, Outcome, Record, Report, Session, UpdateId};

    fn sealed() -> Sealed {
        let block = |index| BlockId { stripe: StripeId(7), index, copy: 0, generation: 1 };
        let id = UpdateId { session: Session { number: 300, ends_at_ms: 9 }, counter: 2, lead: 1 };
        Sealed {
            term: 4,
            members: vec![block(0), block(2)],
            outcomes: [(id, Outcome::Committed)].into(),
            vector: [(1, 5)].into(),
            floors: [(id.session, 1)].into(),
        }
    }

    #[test]
    fn the_encoding_is_unchanged_and_decodes() {
        let bytes = encode_sealed(&sealed()).unwrap();
        let expected = [&[1, 4, 2][..], &[7, 0, 0, 1, 7, 2, 0, 1], &[1, 0xac, 2, 9, 2, 1, 0], &[1, 1, 5], &[1, 0xac, 2, 9, 1]];
        assert_eq!(bytes, expected.concat(), "the bytes of version 1");
        assert_eq!(decode_sealed(&bytes).unwrap(), sealed());
        for message in [
            Message::Sealed(sealed().into()),
            Message::Seal { term: 3 },
            Message::SealReported { term: 3, report: Report::default() },
            Message::SealKnown { term: 3 },
        ] {
            assert_eq!(decode_message(&encode_message(&message).unwrap()).unwrap(), message);
        }
        assert_eq!(encode_message(&Message::Seal { term: 3 }).unwrap(), [1, 14, 3]);
    }

    #[test]
    fn a_record_without_parts_is_an_error() {
        let id = UpdateId { session: Session { number: 3, ends_at_ms: 9 }, counter: 2, lead: 1 };
        let record = Record { id, term: 1, participants: Vec::new(), parts: Vec::new() };
        let report = Report { records: [(id, (Arc::new(record), Claim::Refused))].into(), ..Report::default() };
        let bytes = encode_message(&Message::SealReported { term: 3, report }).unwrap();
        assert_eq!(decode_message(&bytes).unwrap_err().message, "the message about updates has an invalid record");
    }

    #[test]
    fn a_number_that_cannot_be_counted_up_is_an_error() {
        let report = Report { numbers: [(0, u64::MAX)].into(), ..Report::default() };
        let bytes = encode_message(&Message::SealReported { term: 3, report }).unwrap();
        assert!(decode_message(&bytes).is_err());
    }

    #[test]
    fn other_versions_cut_and_long_inputs_are_errors() {
        let bytes = encode_sealed(&sealed()).unwrap();
        let other = [&[2], &bytes[1..]].concat();
        assert!(decode_sealed(&other).unwrap_err().message.contains("version 2"));
        assert!(decode_sealed(&[&bytes[..], &[0]].concat()).unwrap_err().message.contains("1 extra bytes"));
        for len in 0..bytes.len() {
            assert_eq!(decode_sealed(&bytes[..len]).unwrap_err().reaction, Reaction::InvalidInput, "{len} bytes");
        }
        // A count that promises more than there is allocates nothing for it.
        assert!(decode_sealed(&[1, 4, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
        assert!(decode_message(&vec![1; MESSAGE_BYTES_MAX + 1]).unwrap_err().message.contains("too large"));
    }
}
