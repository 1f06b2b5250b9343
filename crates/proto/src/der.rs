//! A minimal DER reader for the DNS names of a certificate that TLS has already verified.

/// The DNS names in a certificate's subject alternative names; empty if they cannot be parsed.
pub(crate) fn dns_names(certificate: &[u8]) -> Vec<String> {
    subject_alternative_names(certificate).unwrap_or_default()
}

const SEQUENCE: u8 = 0x30;
const OBJECT_ID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
/// The field `extensions` of RFC 5280's TBSCertificate.
const EXTENSIONS: u8 = 0xa3;
/// `dNSName` of RFC 5280's GeneralName.
const DNS_NAME: u8 = 0x82;
/// 2.5.29.17
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

fn subject_alternative_names(certificate: &[u8]) -> Option<Vec<String>> {
    let (certificate, _) = expect(SEQUENCE, certificate)?;
    let (to_be_signed, _) = expect(SEQUENCE, certificate)?;
    let (_, fields) = elements(to_be_signed).find(|(tag, _)| *tag == EXTENSIONS)?;
    let (extensions, _) = expect(SEQUENCE, fields)?;
    for (_, extension) in elements(extensions) {
        let (id, _) = expect(OBJECT_ID, extension)?;
        if id == SUBJECT_ALTERNATIVE_NAME {
            let (_, value) = elements(extension).find(|(tag, _)| *tag == OCTET_STRING)?;
            let (names, _) = expect(SEQUENCE, value)?;
            let dns = elements(names).filter(|(tag, _)| *tag == DNS_NAME);
            return Some(dns.filter_map(|(_, name)| String::from_utf8(name.to_vec()).ok()).collect());
        }
    }
    None
}

fn expect(tag: u8, input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(input)?;
    (found == tag).then_some((content, rest))
}

/// The consecutive elements in `input`, up to the first incomplete one.
fn elements(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = element(input)?;
        input = rest;
        Some((tag, content))
    })
}

/// The first element's tag and content, and the bytes after it.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut len = usize::from(first);
    if first & 0x80 != 0 {
        let bytes = usize::from(first & 0x7f);
        if bytes > 4 || rest.len() < bytes {
            return None;
        }
        let (digits, after) = rest.split_at(bytes);
        len = digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit));
        rest = after;
    }
    (len <= rest.len()).then(|| {
        let (content, after) = rest.split_at(len);
        (tag, content, after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_found_and_a_truncated_certificate_has_none() {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = vec!["a.agent.weft".to_string(), "b.agent.weft".to_string()];
        let certificate = rcgen::CertificateParams::new(names.clone()).unwrap().self_signed(&key).unwrap();
        assert_eq!(dns_names(certificate.der()), names);
        for len in 0..certificate.der().len() {
            assert!(dns_names(&certificate.der()[..len]).is_empty(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _names = dns_names(&bytes);
        }
    }
}
