//! Debug output of messages that contain a put's key: it names the put and hides the key.

use crate::v1;
use std::fmt;

macro_rules! without_key {
    ($($message:ident: $($field:ident),*;)*) => {
        $(impl fmt::Debug for v1::$message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($message))$(.field(stringify!($field), &self.$field))*.finish_non_exhaustive()
            }
        })*
    };
}

without_key! {
    AbortPutRequest: upload;
    BeginPutReply: upload, code, block_len, cell_len, k, m, warnings, lease_ms, first;
    CommitPutRequest: upload, size;
    ConvertStripeRequest: epoch, bucket, key, version, from_stripe, stripes, start, end, upload, number;
    EndStripeRequest: upload, number, plan, sent, errors, commit_size;
    KeepPutRequest: upload, number, plan, waits_for;
    PutStripeRequest: upload, number, data_len, options;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_prints_itself_and_not_its_key() {
        let asked = v1::CommitPutRequest { upload: 7, size: 100, put_key: vec![123; 16] };
        assert_eq!(format!("{asked:?}"), "CommitPutRequest { upload: 7, size: 100, .. }");
    }
}
