//! Certificates for rows whose connections are sealed.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tercel::Tls;

use super::failed;

/// Makes an authority, and a certificate each of a server and of a client.
pub(super) fn make(dir: &Path) -> Result<(), String> {
    let key = KeyPair::generate().map_err(failed)?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let trusted = authority.self_signed(&key).map_err(failed)?.pem();
    let issuer = Issuer::new(authority, key);
    for (name, uri) in [(SERVER, "tercel://bench/member/server"), (CLIENT, "tercel://client/bench")] {
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().map_err(failed)?)];
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        let dir = place(dir, name);
        std::fs::create_dir_all(&dir).map_err(failed)?;
        for (file, text) in
            [("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem()), ("ca.crt", trusted.clone())]
        {
            std::fs::write(dir.join(file), text).map_err(failed)?;
        }
    }
    Ok(())
}

/// The certificate of an end.
pub(super) fn open(dir: &Path, name: &str) -> Result<Tls, String> {
    Tls::open(place(dir, name)).map_err(failed)
}

fn place(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}-tls"))
}

pub(super) const SERVER: &str = "server";
pub(super) const CLIENT: &str = "client";
