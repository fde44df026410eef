//! Certificates of a test's own authority.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use tercel::Tls;

/// Opens a certificate for each name, in directories of their own. One authority has signed all of them.
pub fn certificates<const N: usize>(dir: &Path, uris: [&str; N]) -> [Tls; N] {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let trusted = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    uris.map(|uri| {
        let dir = dir.join(uri.replace(['/', ':'], "_"));
        std::fs::create_dir_all(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        let files = [("tls.crt", certificate), ("tls.key", key.serialize_pem()), ("ca.crt", trusted.clone())];
        files.iter().for_each(|(name, pem)| std::fs::write(dir.join(name), pem).unwrap());
        Tls::open(&dir).unwrap()
    })
}
