//! Certificates: one authority for each cluster, one certificate for each coordinator, agent and client.
//!
//! Certificates do not expire; to revoke them, create a new authority. A process reads three files: `ca.pem`, the
//! authority's certificate; `NAME.pem`, its own certificate; and `NAME-key.pem`, its private key, readable only by its
//! owner.

use crate::security::Peer;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};
use weft_types::{ClusterId, Error, Result};

/// The certificate authority of a cluster. Its key can admit new members.
///
/// ```
/// # use weft_proto::{Peer, Security, certs::Authority};
/// # use weft_types::ClusterId;
/// # fn main() -> weft_types::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let authority = Authority::create(dir.path(), ClusterId(7))?;
/// let files = authority.issue(dir.path(), &Peer::Agent("node-1".into()))?;
/// let security = Security::load(&files)?;
/// assert!(!security.is_insecure());
/// # Ok(()) }
/// ```
pub struct Authority {
    cluster: ClusterId,
    params: CertificateParams,
    key: KeyPair,
    certificate_pem: String,
}

/// The files with which a process proves its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The authority's certificate.
    pub authority: PathBuf,
    /// The process's own certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// The files of `peer` in `dir`, as [`Authority::issue`] names them.
    pub fn in_dir(dir: &Path, peer: &Peer) -> Self {
        let name = match peer {
            Peer::Coordinator => "coordinator".to_string(),
            Peer::Client => "client".to_string(),
            Peer::Agent(name) => format!("agent-{name}"),
            Peer::Anonymous => "anonymous".to_string(),
        };
        Self {
            authority: dir.join("ca.pem"),
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}-key.pem")),
        }
    }
}

impl Authority {
    /// Creates an authority and writes `ca.pem` and `ca-key.pem` to `dir`. Fails if `dir` has an authority already.
    pub fn create(dir: &Path, cluster: ClusterId) -> Result<Self> {
        let (certificate, key_file) = (dir.join("ca.pem"), dir.join("ca-key.pem"));
        for file in [&certificate, &key_file] {
            if file.exists() {
                return Err(Error::invalid(format!("{} exists: this directory already has an authority", file.display())));
            }
        }
        let key = KeyPair::generate().map_err(cannot_make)?;
        let params = authority_params(cluster);
        let certificate_pem = params.self_signed(&key).map_err(cannot_make)?.pem();
        write_private(&key_file, &key.serialize_pem())?;
        write_public(&certificate, &certificate_pem)?;
        Ok(Self { cluster, params, key, certificate_pem })
    }

    /// Loads the authority in `dir`.
    pub fn load(dir: &Path) -> Result<Self> {
        let (certificate, key_file) = (dir.join("ca.pem"), dir.join("ca-key.pem"));
        let certificate_pem = read(&certificate)?;
        let key = read(&key_file)?;
        crate::security::require_private(&key_file)?;
        let key = KeyPair::from_pem(&key)
            .map_err(|error| Error::invalid(format!("{}: not a private key: {error}", key_file.display())))?;
        let certificates = crate::security::read_certificates(&certificate)?;
        let own = key.public_key_raw();
        let is_of_key = |der: &&_| AsRef::<[u8]>::as_ref(*der).windows(own.len()).any(|window| window == own);
        let cluster = certificates.iter().filter(is_of_key).find_map(|der| cluster_of(der));
        let cluster = cluster
            .ok_or_else(|| Error::invalid(format!("{} does not match the private key beside it", certificate.display())))?;
        Ok(Self { cluster, params: authority_params(cluster), key, certificate_pem })
    }

    /// The authority's cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Creates a certificate and a key for `peer`, and writes them and the authority's certificate to `dir`.
    pub fn issue(&self, dir: &Path, peer: &Peer) -> Result<CertificateFiles> {
        let name = peer
            .dns_name()
            .ok_or_else(|| Error::invalid("a certificate can be issued only to a coordinator, an agent or a client"))?;
        if let Peer::Agent(name) = peer {
            check_agent_name(name)?;
        }
        let mut params = CertificateParams::new(vec![name.clone()]).map_err(cannot_make)?;
        params.distinguished_name = distinguished_name(&name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(cannot_make)?;
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).map_err(cannot_make)?;

        let files = CertificateFiles::in_dir(dir, peer);
        write_private(&files.key, &key.serialize_pem())?;
        write_public(&files.certificate, &certificate.pem())?;
        if !files.authority.exists() {
            write_public(&files.authority, &self.certificate_pem)?;
        }
        Ok(files)
    }
}

/// Checks an agent's name, which must be a label of the DNS name in its certificate.
pub fn check_agent_name(name: &str) -> Result<()> {
    let fits = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
        // The certificate of `a-key` and the key of `a` would be the same file.
        && !name.ends_with("-key");
    if fits {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Error::invalid(format!(
        "'{shown}' is not a valid node name: use up to 63 characters of a-z, 0-9 and inner '-', as in node-07, not ending in -key"
    )))
}

fn authority_params(cluster: ClusterId) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = distinguished_name(&common_name(cluster));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

const COMMON_NAME: &str = "weft cluster ";

fn common_name(cluster: ClusterId) -> String {
    format!("{COMMON_NAME}{cluster}")
}

/// The cluster in an authority's common name, which is found by its text anywhere in the certificate.
fn cluster_of(der: &[u8]) -> Option<ClusterId> {
    let start = der.windows(COMMON_NAME.len()).position(|window| window == COMMON_NAME.as_bytes())? + COMMON_NAME.len();
    std::str::from_utf8(der.get(start..start + 32)?).ok()?.parse().ok()
}

fn distinguished_name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn cannot_make(error: rcgen::Error) -> Error {
    Error::fatal(format!("cannot make a certificate: {error}"))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("cannot read {}: it does not exist", path.display())),
        _ => Error::invalid(format!("cannot read {}: {error}", path.display())),
    })
}

fn write_public(path: &Path, text: &str) -> Result<()> {
    write_mode(path, text, 0o644)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    write_mode(path, text, 0o600)
}

/// Writes a temporary file first, so that a crash leaves no partial key. Other users can never read it.
fn write_mode(path: &Path, text: &str, mode: u32) -> Result<()> {
    let temporary = path.with_extension("pem.new");
    let write = || -> std::io::Result<()> {
        if let Err(error) = fs::remove_file(&temporary)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| Error::fatal(format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Security;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_private_and_an_authority_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(dir.path(), ClusterId(1)).unwrap();
        let files = authority.issue(dir.path(), &Peer::Client).unwrap();
        for key in [&files.key, &dir.path().join("ca-key.pem")] {
            assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(Authority::create(dir.path(), ClusterId(1)).is_err());
        let loaded = Authority::load(dir.path()).unwrap();
        assert_eq!(loaded.cluster(), ClusterId(1));
        loaded.issue(dir.path(), &Peer::Agent("node-1".into())).unwrap();
        for (key, mode) in [(&files.key, 0o640), (&files.key, 0o604), (&dir.path().join("ca-key.pem"), 0o644)] {
            fs::set_permissions(key, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Security::load(&files).err().or(Authority::load(dir.path()).err()).unwrap().message;
            assert!(refused.contains(&format!("mode {mode:03o}): chmod 600 {}", key.display())), "{refused}");
            fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        }
        fs::copy(&files.certificate, dir.path().join("ca.pem")).unwrap();
        assert!(Authority::load(dir.path()).is_err(), "a client's certificate was accepted as an authority's");
    }

    #[test]
    fn names_that_are_no_dns_label_are_refused() {
        for name in ["", "-a", "a-", "a-key", "-key", "A", "a.b", "a_b", "ä", &"a".repeat(64)] {
            assert!(check_agent_name(name).is_err(), "{name}");
        }
        for name in ["a", "key", "node-07", &"a".repeat(63)] {
            assert_eq!(check_agent_name(name), Ok(()), "{name}");
        }
    }
}
