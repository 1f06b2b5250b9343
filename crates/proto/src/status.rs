//! Converts weft errors to gRPC statuses and back. The details carry the whole error; the code is for other gRPC
//! software.

use crate::rpc::{find_error, innermost};
use tonic::{Code, Status};
use weft_types::{Error, Reaction};

/// The most bytes of each text of an error on the wire; longer texts are cut.
const TEXT_BYTES_MAX: usize = 2048;
/// The most bytes of an encoded error that are decoded.
const ERROR_BYTES_MAX: usize = 8192;

/// The status for `error`.
pub fn to_status(error: &Error) -> Status {
    let error = shortened(error);
    Status::with_details(code_of(error.reaction), error.to_string(), encode_error(&error).into())
}

/// The error in `status`; a foreign status gets the reaction that its code suggests.
pub fn from_status(status: &Status) -> Error {
    if let Some(error) = decode_error(status.details()) {
        return error;
    }
    let source = std::error::Error::source(status);
    if let Some(error) = source.and_then(find_error) {
        // A peer that cannot be reached now may be reachable again soon.
        let reaction = if error.reaction == Reaction::Replan { Reaction::Retry } else { error.reaction };
        return Error { reaction, ..error };
    }
    let (text, reaction) = match (source, reaction_of(status.code())) {
        // No peer sent this status: the connection broke, whatever code was derived from that.
        (Some(source), Reaction::Fatal) => (format!("{}: {}", status.message(), innermost(source)), Reaction::Retry),
        (Some(source), reaction) => (format!("{}: {}", status.message(), innermost(source)), reaction),
        (None, reaction) => (status.message().to_string(), reaction),
    };
    let text = if text.is_empty() { format!("{:?}", status.code()) } else { cut(&text).to_string() };
    Error::new(reaction, text)
}

/// Encodes an error, in at most about 8 KiB.
pub fn encode_error(error: &Error) -> Vec<u8> {
    // Strings and numbers always encode.
    postcard::to_allocvec(&(shortened(error), error.cause)).unwrap_or_default()
}

/// Decodes an error; `None` if the bytes are invalid or too long.
pub fn decode_error(bytes: &[u8]) -> Option<Error> {
    if bytes.is_empty() || bytes.len() > ERROR_BYTES_MAX {
        return None;
    }
    let (error, rest): (Error, &[u8]) = postcard::take_from_bytes(bytes).ok()?;
    // Older versions do not send a cause.
    let cause = postcard::from_bytes(rest).unwrap_or_default();
    Some(Error { cause, ..error })
}

fn shortened(error: &Error) -> Error {
    let mut error = error.clone();
    error.message.truncate(cut(&error.message).len());
    if let Some(object) = &mut error.object {
        object.truncate(cut(object).len());
    }
    error
}

fn cut(text: &str) -> &str {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

fn code_of(reaction: Reaction) -> Code {
    match reaction {
        Reaction::Retry => Code::ResourceExhausted,
        Reaction::Replan => Code::Aborted,
        Reaction::Corrupt => Code::DataLoss,
        Reaction::InvalidInput => Code::InvalidArgument,
        Reaction::NotFound => Code::NotFound,
        Reaction::Unavailable => Code::FailedPrecondition,
        Reaction::Fatal => Code::Internal,
    }
}

fn reaction_of(code: Code) -> Reaction {
    match code {
        Code::ResourceExhausted | Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Reaction::Retry,
        Code::Aborted => Reaction::Replan,
        Code::DataLoss => Reaction::Corrupt,
        Code::NotFound => Reaction::NotFound,
        Code::FailedPrecondition => Reaction::Unavailable,
        Code::Ok | Code::Unknown | Code::Internal => Reaction::Fatal,
        Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => Reaction::InvalidInput,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{BlockId, Cause, NodeId, Party, StripeId};

    #[test]
    fn a_broken_connection_is_no_answer() {
        let broken = Status::from_error("stream closed because of a broken pipe".into());
        assert_eq!(from_status(&broken).reaction, Reaction::Retry, "a broken call must be repeatable");
        assert_eq!(from_status(&Status::unknown("the peer cannot go on")).reaction, Reaction::Fatal);
    }

    #[test]
    fn errors_are_transferred_completely() {
        let block = BlockId { stripe: StripeId(1), index: 2, copy: 0, generation: 3 };
        for reaction in [
            Reaction::Retry,
            Reaction::Replan,
            Reaction::Corrupt,
            Reaction::InvalidInput,
            Reaction::NotFound,
            Reaction::Unavailable,
            Reaction::Fatal,
        ] {
            let error = Error::new(reaction, "ä page").object("b/k").block(block).party(Party::Node(NodeId(7))).link(5, 4096);
            assert_eq!(from_status(&to_status(&error)), error);
            for cause in [Cause::TooFewNodes, Cause::NoSpace, Cause::Unreadable, Cause::Inconsistent, Cause::OpenForUpdates] {
                let caused = error.clone().cause(cause);
                assert_eq!(from_status(&to_status(&caused)), caused);
            }
            let newer = [postcard::to_allocvec(&error).unwrap(), postcard::to_allocvec(&Some(99u32)).unwrap()].concat();
            assert_eq!(decode_error(&newer), Some(error.clone()), "a newer version sends a cause that is not known here");
            assert_eq!(decode_error(&postcard::to_allocvec(&error).unwrap()), Some(error), "an older version sends no cause");
            assert_eq!(reaction_of(code_of(reaction)), reaction);
        }
    }

    #[test]
    fn long_texts_are_cut_and_invalid_details_are_ignored() {
        let error = Error::fatal("ä".repeat(100_000)).object("o".repeat(100_000));
        let status = to_status(&error);
        assert!(status.details().len() <= ERROR_BYTES_MAX);
        assert!(from_status(&status).message.starts_with("äää"));
        let strange = Status::with_details(Code::Aborted, "text", vec![0xff; 100].into());
        assert_eq!(from_status(&strange), Error::replan("text"));
        assert_eq!(decode_error(&vec![0; ERROR_BYTES_MAX + 1]), None);
    }
}
